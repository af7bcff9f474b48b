"""Bytes of a schedule: what a rank sends, and what a compiled program shows.

They differ where a rank sends nothing in a permute: a program is one for all devices,
and shows the message on each of them.
"""

from collections.abc import Sequence

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.permutes import PermuteStep, permutes


def chunk_size(schedule: CollectiveSchedule, elements: int) -> int:
    """Return the elements in a chunk, ⌈n / C⌉; the last one is padded."""
    return -(-elements // schedule.chunks)


def elements_per_rank(schedule: CollectiveSchedule, elements: int) -> tuple[int, ...]:
    """Return the elements that each rank sends, padding included.

    >>> from jaxdist.collectives.algorithms.rings import ring
    >>> elements_per_rank(ring(4), 100)
    (150, 150, 150, 150)
    """
    chunks = [0] * schedule.ranks
    for step in schedule.steps:
        for transfer in step.transfers:
            chunks[transfer.source] += transfer.count
    each = chunk_size(schedule, elements)
    return tuple(each * count for count in chunks)


def busiest_rank_bytes(
    schedule: CollectiveSchedule, elements: int, itemsize: int
) -> int:
    """Return the bytes that the busiest rank sends, for an array of `elements`."""
    return itemsize * max(elements_per_rank(schedule, elements))


def schedule_payload_bytes(
    schedule: CollectiveSchedule, elements: int, itemsize: int
) -> int:
    """Return the bytes of all permutes on one device, as in a compiled program."""
    return permutes_payload_bytes(schedule, permutes(schedule), elements, itemsize)


def permutes_payload_bytes(
    schedule: CollectiveSchedule,
    permute_steps: Sequence[PermuteStep],
    elements: int,
    itemsize: int,
) -> int:
    """Return the same for a schedule whose permutes are known already."""
    chunks = sum(permute.count for step in permute_steps for permute in step)
    return itemsize * chunks * chunk_size(schedule, elements)
