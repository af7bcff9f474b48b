"""Lock-step simulation: the ticks that follow from the order of each device's work.

Every device does the next item of its order as soon as its inputs are there, at most
one a tick; what is sent in a tick can be used from the next one on.
"""

from collections.abc import Callable, Sequence

from jaxdist.core.errors import FatalError
from jaxdist.pipeline.work_item import (
    DeviceOrder,
    Supersteps,
    TickRow,
    Ticks,
    WorkItem,
    dependencies,
    exchange_every_tick,
)


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

    >>> from jaxdist.pipeline.work_item import backward, forward, dependencies
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
