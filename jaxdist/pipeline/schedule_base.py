"""Pipeline schedules: work items, the ticks they take in lock-step, what follows.

Lock-step simulation: the ticks that follow from the order of each device's work.

Every device does the next item of its order as soon as its inputs are there, at most
one a tick; what is sent in a tick can be used from the next one on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from jaxdist.core.errors import FatalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

WorkKind = Literal["forward", "backward", "weights"]
WORK_KINDS: Final[tuple[WorkKind, ...]] = get_args(WorkKind)


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


@dataclass(frozen=True, kw_only=True)
class PipelineSchedule:
    """The work of all devices along the pipe axis, tick by tick."""

    name: str
    """Name of the schedule."""
    microbatches: int
    """Number of microbatches."""
    supersteps: Supersteps
    """`supersteps[b][t][device]`: what the device does in tick t of superstep b, or
    None. A superstep ends with an exchange: other devices can use its results from the
    next superstep on, the device itself at once.
    """

    @cached_property
    def ticks(self) -> Ticks:
        """`ticks[t][device]`: what the device does in tick t, or None."""
        return tuple(row for superstep in self.supersteps for row in superstep)

    @cached_property
    def work_table(self) -> "NDArray[Any]":
        """Place of each work's kind in `WORK_KINDS`, and its stage.

        `[superstep, tick, device, 2]`; a device that rests has -1 twice.
        """
        # Not above: numpy takes long to import, and a plan is read before it is needed.
        import numpy as np

        places = {kind: place for place, kind in enumerate(WORK_KINDS)}
        ticks = max(map(len, self.supersteps))
        shape = len(self.supersteps), ticks, len(self.ticks[0]), 2
        found = np.full(shape, -1)
        for superstep, rows in zip(found, self.supersteps, strict=True):
            for tick, row in zip(superstep, rows):
                for device, work in enumerate(row):
                    if work:
                        tick[device] = places[work.kind], work.stage
        return found

    @property
    def exchanges(self) -> int:
        """How often devices exchange messages."""
        return len(self.supersteps)

    @property
    def length(self) -> int:
        """Number of ticks."""
        return len(self.ticks)

    @property
    def bubble_fraction(self) -> float:
        """The bubble: the share of ticks, over all devices, without work."""
        cells = [work for row in self.ticks for work in row]
        return cells.count(None) / len(cells)

    @cached_property
    def tick_of(self) -> dict[WorkItem, int]:
        """The tick of each work item."""
        return {w: tick for tick, row in enumerate(self.ticks) for w in row if w}

    @cached_property
    def release_kind(self) -> WorkKind | None:
        """Kind of work that uses a stage's input last; None without backward passes."""
        kinds = {work.kind for row in self.ticks for work in row if work}
        # A separate gradient of the weights needs the stage's input again, after the
        # backward pass.
        if "weights" in kinds:
            return "weights"
        return "backward" if "backward" in kinds else None

    def in_flight(self, device: int) -> int:
        """Return how many inputs at most wait on a device for their backward pass."""
        return self._peak_pending(device, "backward") if self.release_kind else 0

    def live_inputs(self, device: int) -> int:
        """Return how many inputs at most a device holds until `release_kind`."""
        kind = self.release_kind
        return self._peak_pending(device, kind) if kind else 0

    def pending_weights(self, device: int) -> int:
        """Return how many backward passes at most wait for their gradient of weights.

        0 where that has no tick of its own.
        """
        if self.release_kind != "weights":
            return 0
        return self._peak_pending(device, "weights", first_kind="backward")

    def _peak_pending(
        self, device: int, release_kind: WorkKind, first_kind: WorkKind = "forward"
    ) -> int:
        held = most = 0
        for work in filter(None, (row[device] for row in self.ticks)):
            held += work.kind == first_kind
            most = max(most, held)
            # The tick of its last use still holds what it reads.
            held -= work.kind == release_kind
        return most


def lockstep_supersteps(orders: Sequence[DeviceOrder], num_stages: int) -> Supersteps:
    """Return the schedule of some orders that exchange messages after every tick."""
    return exchange_every_tick(
        lockstep_ticks(orders, lambda work: dependencies(work, num_stages))
    )


def lockstep_ticks(
    orders: Sequence[DeviceOrder],
    dependencies_of: Callable[[WorkItem], Sequence[WorkItem]],
) -> Ticks:
    """Return the ticks of some orders, with forwards no earlier than they are needed.

    Args:
        orders: one a device.
        dependencies_of: the items that must be done in earlier ticks than an item.

    Raises:
        FatalError: the orders wait for each other.

    >>> from jaxdist.pipeline.schedule_base import backward, forward, dependencies
    >>> orders = (forward(0, 0), backward(0, 0)), (forward(1, 0), backward(1, 0))
    >>> len(lockstep_ticks(orders, lambda work: dependencies(work, num_stages=2)))
    4
    """
    # As early as possible: this fixes the number of ticks.
    earliest: list[TickRow] = []
    done: set[WorkItem] = set()
    positions = [0] * len(orders)
    while len(done) < sum(map(len, orders)):
        heads = [
            order[at] if at < len(order) else None
            for order, at in zip(orders, positions)
        ]
        row = tuple(
            work if work and done.issuperset(dependencies_of(work)) else None
            for work in heads
        )
        if not any(row):
            raise FatalError(
                f"the devices wait for each other from tick {len(earliest)} on"
            )
        # Behind the row: what a tick makes can be used from the next one on.
        done.update(filter(None, row))
        positions = [at + (work is not None) for at, work in zip(positions, row)]
        earliest.append(row)

    # Then, from the last tick back, move each forward to the last tick at which nobody
    # waits for it. Orders and length stay; messages and inputs are held for less time.
    devices = len(orders)
    ticks: list[list[WorkItem | None]] = [[None] * devices for _ in earliest]
    deadline: dict[WorkItem, int] = {}
    next_busy = [len(earliest)] * devices
    for tick in reversed(range(len(earliest))):
        for device, work in enumerate(earliest[tick]):
            if work is None:
                continue
            latest = min(deadline.get(work, len(earliest) - 1), next_busy[device] - 1)
            # Backwards stay early: they free residuals.
            place = latest if work.kind == "forward" else tick
            ticks[place][device] = work
            next_busy[device] = place
            for before in dependencies_of(work):
                deadline[before] = min(deadline.get(before, place - 1), place - 1)
    return tuple(map(tuple, ticks))
