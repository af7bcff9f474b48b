"""Objects that the training loop calls: their protocols, and one to derive from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxdist.core.plan import Plan
from jaxdist.core.run_record import Run
from jaxdist.train.state import TrainState

EvalMetrics = Mapping[str, Any]


class EvaluatorProtocol(Protocol):
    """Evaluates a state; compiled at its first use."""

    @property
    def ready(self) -> bool:
        """Whether the evaluation step is compiled."""

    def prepare(self) -> None:
        """Compile the evaluation step."""

    def __call__(self, state: TrainState) -> EvalMetrics:
        """Evaluate a state on the held-out samples; empty where it was interrupted."""


class CheckpointerProtocol(Protocol):
    """Saves states."""

    def is_best(self, metrics: EvalMetrics) -> bool:
        """Whether a state with these metrics is to be saved, as the best so far."""

    def save(self, state: TrainState, metrics: EvalMetrics) -> None:
        """Begin to save a state; it may be donated before it is on disk.

        Args:
            state: what is saved.
            metrics: of its evaluation; empty where it was not evaluated.
        """


class TrainingCallback(Protocol):
    """Observes the training loop: a progress bar, for one."""

    def on_step(self, *, step: int, loss: float, step_s: float) -> None:
        """Called after a finished step, counted from 1, with its seconds."""

    def on_evaluation(self, *, step: int, metrics: EvalMetrics) -> None:
        """Called after an evaluation."""


@runtime_checkable
class CheckpointCallback(Protocol):
    """A callback that is told of checkpoints, too."""

    def on_checkpoint(self, *, step: int) -> None:
        """Called after a checkpoint has begun to be saved."""


@runtime_checkable
class ScalarsCallback(Protocol):
    """A callback that is told of what a step reports beside its loss, too."""

    def on_scalars(self, *, step: int, scalars: Mapping[str, float]) -> None:
        """Called before `on_step`: `gradient_norm`, and what else there is by name."""


@runtime_checkable
class PausingCallback(Protocol):
    """A callback that does something between two steps, while the devices are idle."""

    def is_due(self, step: int) -> bool:
        """Whether to pause before this step; every process must answer alike."""

    def on_pause(self) -> None:
        """Called during the pause."""


def notify_checkpoint(callback: TrainingCallback, step: int) -> None:
    """Tell a callback of a checkpoint, if it wants to know."""
    if isinstance(callback, CheckpointCallback):
        callback.on_checkpoint(step=step)


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """What a callback is told as a run begins."""

    name: str
    """Name of the run."""
    folder: Path
    """Its files, which process 0 writes."""
    plan: Plan
    """The plan that runs."""
    steps: int
    """Steps of the whole run."""
    start_step: int
    """Steps done before."""


class Callback:
    """What a program wants to know of a run: derive from it, and write what you need.

    Every process calls its own, at the same steps. What a callback raises ends the run.
    """

    def on_begin(self, start: RunStart) -> None:
        """Called before the first step; the step is compiled."""

    def on_step(self, *, step: int, loss: float, step_s: float) -> None:
        """Called after a finished step, counted from 1, with its seconds."""

    def on_scalars(self, *, step: int, scalars: Mapping[str, float]) -> None:
        """Called before `on_step`, with what the step reports beside its loss by name.

        `gradient_norm`, and shares of tokens where the network has experts. Numbers
        that are not finite are left out.
        """

    def on_evaluation(self, *, step: int, metrics: EvalMetrics) -> None:
        """Called after an evaluation, with loss, accuracy and metrics of one's own."""

    def on_checkpoint(self, *, step: int) -> None:
        """Called after a checkpoint has begun to be saved."""

    def on_end(self, run: Run) -> None:
        """Called after the last step, or the one at which the run was asked to end."""
