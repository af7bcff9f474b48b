"""Parties: those whom the loop asks and tells, by what it needs of them."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jaxdist.train.state import TrainState

EvalMetrics = Mapping[str, Any]


class EvaluatorProtocol(Protocol):
    """What the loop asks of an evaluation."""

    @property
    def ready(self) -> bool:
        """Whether its program is compiled."""

    def prepare(self) -> None:
        """Compile its program."""

    def __call__(self, state: TrainState) -> EvalMetrics:
        """Score a state on the held-out samples; nothing where it was cut short."""


class CheckpointerProtocol(Protocol):
    """What the loop asks of checkpoints."""

    def save(self, state: TrainState) -> None:
        """Keep a state; returns before it is on disk."""


class TrainingCallback(Protocol):
    """Someone who looks on, a progress bar for one."""

    def update(self, *, step: int, loss: float, step_s: float) -> None:
        """See a finished step, counted from 1."""

    def tested(self, *, step: int, metrics: EvalMetrics) -> None:
        """See an evaluation."""


@runtime_checkable
class PausingCallback(Protocol):
    """A watcher that does something between two steps, with the devices at rest."""

    def due(self, step: int) -> bool:
        """Whether it does so before this step; asked before each, alike in all."""

    def pause(self) -> None:
        """Do it."""
