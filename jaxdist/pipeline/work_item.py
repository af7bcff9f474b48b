"""Work: what one device does in one tick, and what must be done before it."""

from dataclasses import dataclass
from typing import Literal

WorkKind = Literal["forward", "backward", "weights"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkItem:
    """One cell of a table."""

    kind: WorkKind
    """`backward` is the gradient of the input, and that of the weights as well unless
    the table has `weight_gradient` for it."""
    stage: int
    """Chunk of the network, in its order, from 0."""
    microbatch: int
    """Microbatch, from 0."""


DeviceOrder = tuple[WorkItem, ...]
"""What one device does, first to last."""

TickRow = tuple[WorkItem | None, ...]
"""What the devices do in one tick; None does nothing."""

Ticks = tuple[TickRow, ...]
"""A table: rows are ticks, columns devices."""

Superstep = Ticks
"""The ticks between two exchanges: of each device one forward, one backward at most."""

Supersteps = tuple[Superstep, ...]
"""A table in its beats."""


def exchange_every_tick(ticks: Ticks) -> Supersteps:
    """Return a table whose devices exchange what they made behind every tick."""
    return tuple((row,) for row in ticks)


def forward(stage: int, micro: int) -> WorkItem:
    """Return the forward pass of a stage."""
    return WorkItem(kind="forward", stage=stage, microbatch=micro)


def backward(stage: int, micro: int) -> WorkItem:
    """Return the backward pass of a stage."""
    return WorkItem(kind="backward", stage=stage, microbatch=micro)


def weight_gradient(stage: int, micro: int) -> WorkItem:
    """Return the gradient of a stage's weights, where it has a tick of its own."""
    return WorkItem(kind="weights", stage=stage, microbatch=micro)


def dependencies(work: WorkItem, num_stages: int) -> tuple[WorkItem, ...]:
    """Return the work of earlier ticks that a work takes its inputs from.

    Args:
        work: the work that needs them.
        num_stages: number of stages of the network.

    >>> [(w.kind, w.stage) for w in dependencies(backward(1, 0), 4)]
    [('forward', 1), ('backward', 2)]
    """
    stage, micro = work.stage, work.microbatch
    match work.kind:
        case "forward":
            return (forward(stage - 1, micro),) if stage else ()
        case "backward":
            above = (backward(stage + 1, micro),) if stage < num_stages - 1 else ()
            return (forward(stage, micro), *above)
        case "weights":
            return (backward(stage, micro),)
