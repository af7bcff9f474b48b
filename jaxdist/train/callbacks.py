"""Protocols of the objects that the training loop calls."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

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

    def save(self, state: TrainState) -> None:
        """Begin to save a state; it may be donated before it is on disk."""


class TrainingCallback(Protocol):
    """Observes the training loop: a progress bar, for one."""

    def on_step(self, *, step: int, loss: float, step_s: float) -> None:
        """Called after a finished step, counted from 1, with its seconds."""

    def on_evaluation(self, *, step: int, metrics: EvalMetrics) -> None:
        """Called after an evaluation."""


@runtime_checkable
class PausingCallback(Protocol):
    """A callback that does something between two steps, while the devices are idle."""

    def is_due(self, step: int) -> bool:
        """Whether to pause before this step; every process must answer alike."""

    def on_pause(self) -> None:
        """Called during the pause."""
