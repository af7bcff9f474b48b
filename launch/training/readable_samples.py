"""Readable samples: a run reads until something cannot be read, and then saves.

Steps are hours of work, and a file that is damaged must not cost those since the newest
checkpoint. So batches end there, as for a run that is asked to stop, and the error is
raised when the run is saved.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jax

from jaxdist.core.errors import BadInput
from jaxdist.train.callbacks import EvalMetrics, EvaluatorProtocol
from jaxdist.train.state import TrainState

BatchIterator = Iterator[Mapping[str, jax.Array]]


@dataclass
class ReadableSamples:
    """What a run reads, up to the first error."""

    error: BadInput | None = None
    """What could not be read."""

    def batches(self, batches: BatchIterator) -> BatchIterator:
        """Yield batches until one, or a held-out sample, cannot be read."""
        try:
            for batch in batches:
                if self.error is not None:
                    return
                yield batch
        except BadInput as error:
            self.stop(error)

    def stop(self, error: BadInput) -> None:
        """Let the run end in order; raises the error where that cannot be."""
        # Of several processes the others have their batch, and would not save.
        if jax.process_count() > 1:
            raise error
        self.error = error

    def raise_error(self) -> None:
        """Raise what could not be read, once the run is saved.

        Raises:
            BadInput: there is something.
        """
        if self.error is not None:
            raise self.error


@dataclass(frozen=True)
class ReadableEvaluator:
    """An evaluation that counts as interrupted where a sample cannot be read."""

    evaluate: EvaluatorProtocol
    """The evaluation."""
    samples: ReadableSamples = field(repr=False)
    """Takes the error."""

    @property
    def ready(self) -> bool:
        """Whether the evaluation step is compiled."""
        return self.evaluate.ready

    def prepare(self) -> None:
        """Compile the evaluation step."""
        self.evaluate.prepare()

    def __call__(self, state: TrainState) -> EvalMetrics:
        """Evaluate a state on the held-out samples; empty where it was interrupted."""
        try:
            return self.evaluate(state)
        except BadInput as error:
            self.samples.stop(error)
            return {}
