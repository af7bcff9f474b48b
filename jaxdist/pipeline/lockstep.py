"""Play: the table that devices make of their orders when all move in lock-step.

Every device does the next work of its order as soon as its inputs are there, at most
one a tick; what is sent in a tick can be used from the next one on.
"""

from collections.abc import Callable, Sequence

from jaxdist.core.errors import FatalError
from jaxdist.pipeline.work_item import DeviceOrder, TickRow, Ticks, WorkItem

DependencyFn = Callable[[WorkItem], Sequence[WorkItem]]
"""What must have been done in an earlier tick."""


def lockstep_ticks(orders: Sequence[DeviceOrder], dependencies: DependencyFn) -> Ticks:
    """Return the table of some orders, with forwards no earlier than they are needed.

    Args:
        orders: one a device.
        dependencies: what each work waits for.

    Raises:
        Failed: the orders wait for each other.

    >>> from jaxdist.pipeline.work_item import backward, forward, dependencies
    >>> orders = (forward(0, 0), backward(0, 0)), (forward(1, 0), backward(1, 0))
    >>> len(lockstep_ticks(orders, lambda work: dependencies(work, num_stages=2)))
    4
    """
    return _delay_forwards(_earliest_ticks(orders, dependencies), dependencies)


def _earliest_ticks(orders: Sequence[DeviceOrder], needs: DependencyFn) -> Ticks:
    done: set[WorkItem] = set()
    at = [0] * len(orders)
    ticks: list[TickRow] = []

    def turn(device: int) -> WorkItem | None:
        if at[device] == len(orders[device]):
            return None
        work = orders[device][at[device]]
        return work if done.issuperset(needs(work)) else None

    while len(done) < sum(map(len, orders)):
        row = tuple(map(turn, range(len(orders))))
        if not any(row):
            raise FatalError(
                f"the devices wait for each other from tick {len(ticks)} on"
            )
        done.update(filter(None, row))
        at = [place + (work is not None) for place, work in zip(at, row)]
        ticks.append(row)
    return tuple(ticks)


def _delay_forwards(ticks: Ticks, needs: DependencyFn) -> Ticks:
    """Move each forward to the last tick at which nobody has to wait for it.

    Orders and the number of ticks stay as they are. Messages wait no longer than they
    must, and inputs are held for fewer ticks.
    """
    devices = len(ticks[0])
    table: list[list[WorkItem | None]] = [[None] * devices for _ in ticks]
    last: dict[WorkItem, int] = {}
    busy = [len(ticks)] * devices
    for tick in reversed(range(len(ticks))):
        for device, work in enumerate(ticks[tick]):
            if work is None:
                continue
            free = min(last.get(work, len(ticks) - 1), busy[device] - 1)
            place = free if work.kind == "forward" else tick
            table[place][device] = work
            busy[device] = place
            for before in needs(work):
                last[before] = min(last.get(before, place - 1), place - 1)
    return tuple(map(tuple, table))
