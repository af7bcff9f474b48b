"""Counts: what a table says of time and memory."""

from collections.abc import Iterable

from jaxdist.pipeline.work import Kind, Ticks, Work


def column(ticks: Ticks, device: int) -> tuple[Work | None, ...]:
    """Return what one device does, tick by tick."""
    return tuple(row[device] for row in ticks)


def tick_of(ticks: Ticks) -> dict[Work, int]:
    """Return the tick of each work."""
    return {work: tick for tick, row in enumerate(ticks) for work in row if work}


def idle(ticks: Ticks) -> float:
    """Return the share of ticks, over all devices, in which nobody works."""
    cells = [work for row in ticks for work in row]
    return cells.count(None) / len(cells)


def most_held(works: Iterable[Work | None], until: Kind) -> int:
    """Return how many stage inputs a device holds at most.

    An input is held from the tick of its forward to that of its last use, inclusive.

    Args:
        works: what the device does, in order.
        until: kind of its last use.
    """
    held = most = 0
    for work in filter(None, works):
        held += work.kind == "forward"
        most = max(most, held)
        held -= work.kind == until
    return most
