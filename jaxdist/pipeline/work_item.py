"""Work items: what one device does in one tick, and what has to come before it."""

from dataclasses import dataclass
from typing import Literal

WorkKind = Literal["forward", "backward", "weights"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkItem:
    """One pass of one microbatch through one stage: a cell of a schedule."""

    kind: WorkKind
    """`backward` is the gradient of the stage's input, and of its weights as well
    unless the schedule has separate `weights` items."""
    stage: int
    """Chunk of the network, in order, from 0."""
    microbatch: int
    """Microbatch, from 0."""


DeviceOrder = tuple[WorkItem, ...]
"""What one device does, first to last."""

TickRow = tuple[WorkItem | None, ...]
"""What each device does in one tick; None is idle."""

Ticks = tuple[TickRow, ...]
"""A schedule: rows are ticks, columns devices."""

Superstep = Ticks
"""The ticks between two exchanges: at most one forward and one backward a device."""

Supersteps = tuple[Superstep, ...]
"""A schedule, split at its exchanges."""


def exchange_every_tick(ticks: Ticks) -> Supersteps:
    """Return a schedule whose devices exchange messages after every tick."""
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
    """Return the items of earlier ticks that produce the inputs of an item.

    >>> [(w.kind, w.stage) for w in dependencies(backward(1, 0), 4)]
    [('forward', 1), ('backward', 2)]
    """
    stage, micro = work.stage, work.microbatch
    match work.kind:
        case "forward":
            return (forward(stage - 1, micro),) if stage else ()
        case "backward":
            # The last stage starts from the loss, not from another stage's gradient.
            after = (backward(stage + 1, micro),) if stage < num_stages - 1 else ()
            return (forward(stage, micro), *after)
        case "weights":
            return (backward(stage, micro),)
