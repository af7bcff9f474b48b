"""Evaluation of a state on every held-out sample exactly once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from jaxdist.train.count_words import words_total
from jaxdist.train.layout import BatchShapes, Layout
from jaxdist.train.program import compile_eval_step
from jaxdist.train.state import TrainState

_MAX_IN_FLIGHT: Final = 2
"""Batches dispatched to the devices before the sums of an earlier one are awaited."""

BatchContext = AbstractContextManager[Iterable[Mapping[str, jax.Array]]]


@dataclass(kw_only=True)
class Evaluator:
    """Evaluates states; compiled at its first use, so that training starts sooner."""

    layout: Layout
    """Task and its layout."""
    batch_shapes: BatchShapes
    """Shapes of a global evaluation batch, `weight` included."""
    batches: Callable[[], BatchContext]
    """Opens a pass over the held-out samples."""
    should_stop: Callable[[], bool] = lambda: False
    """Whether to interrupt an evaluation; called after every batch."""
    compiler_options: Mapping[str, str | bool] = field(default_factory=dict)
    """Options of the compiler, by name."""
    _compiled_step: Any = field(default=None, repr=False)

    @property
    def ready(self) -> bool:
        """Whether the evaluation step is compiled."""
        return self._compiled_step is not None

    def prepare(self) -> None:
        """Compile the evaluation step."""
        self._compiled_step = compile_eval_step(
            self.layout, self.batch_shapes, self.compiler_options
        )

    def __call__(self, state: TrainState) -> dict[str, Any]:
        """Return loss, accuracy, correct, answers, samples, scores, and own metrics.

        `accuracy` is the share of right answers: one a sample, a token or a pixel. An
        interrupted evaluation returns an empty dict.
        """
        if not self.ready:
            self.prepare()
        with self.batches() as batches:
            sums: list[Any] = []
            for batch in batches:
                # Devices of one host share threads: a sum that waits for a device whose
                # work is queued behind later batches would wait forever.
                jax.block_until_ready(sums[-_MAX_IN_FLIGHT : -_MAX_IN_FLIGHT + 1])
                sums.append(self._compiled_step(*state.evaluated, batch))
                if self.should_stop():
                    return {}
        return metrics_of_sums(self.layout, sums)


def metrics_of_sums(
    layout: Layout, sums: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the metrics of an evaluation from the sums of its parts.

    Args:
        layout: whose objective makes scores of counts.
        sums: of each part.
    """
    has_answers = "answers" in sums[0]
    # In 64 bits: devices have added within a batch alone.
    totals = {key: np.sum([_on_host(s[key]) for s in sums], 0) for key in sums[0]}
    # Of arrays the objective makes scores.
    arrays = {key: total for key, total in totals.items() if total.ndim}
    scores = layout.objective.scores(arrays) if arrays else {}
    whole = {k: float(total) for k, total in totals.items() if k not in arrays}
    counts = {key: int(whole.pop(key, 0)) for key in ("correct", "answers", "samples")}
    # Held-out samples may have no target that counts.
    share = counts["correct"] / max(counts["answers"], 1)
    means = {name: total / counts["samples"] for name, total in whole.items()}
    shown = {"accuracy": share if has_answers else None}
    return {**shown, **counts, **means, **scores}


def _on_host(batch_sum: Any) -> NDArray[Any]:
    """Return a sum over a batch: counts as int64, real numbers as float64."""
    array = np.asarray(batch_sum)
    whole = np.issubdtype(array.dtype, np.integer)
    return words_total(array) if whole else np.asarray(array, np.float64)
