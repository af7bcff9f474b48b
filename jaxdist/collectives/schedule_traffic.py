"""Bytes of a step list: what a rank sends, and what a compiled program shows.

They differ where a rank sends nothing in a permute: a program is one for all devices,
and shows the message on each of them.
"""

from collections.abc import Sequence

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
from jaxdist.collectives.permutes import PermuteStep, permutes


def chunk_size(algorithm: CollectiveSchedule, size: int) -> int:
    """Return the numbers in a chunk, the last one padded.

    Args:
        algorithm: cut into C chunks.
        size: numbers in the array, n.

    Returns:
        ⌈n / C⌉.
    """
    return -(-size // algorithm.chunks)


def elements_per_rank(algorithm: CollectiveSchedule, size: int) -> tuple[int, ...]:
    """Return the numbers that each rank sends, padding included.

    >>> from jaxdist.collectives.algorithms.rings import ring
    >>> elements_per_rank(ring(4), 100)
    (150, 150, 150, 150)
    """
    chunks = [0] * algorithm.ranks
    for step in algorithm.steps:
        for transfer in step.transfers:
            chunks[transfer.source] += transfer.count
    each = chunk_size(algorithm, size)
    return tuple(each * count for count in chunks)


def busiest_rank_bytes(algorithm: CollectiveSchedule, size: int, itemsize: int) -> int:
    """Return the bytes that the busiest rank sends.

    Args:
        algorithm: the step list.
        size: numbers in the array.
        itemsize: bytes of a number.
    """
    return itemsize * max(elements_per_rank(algorithm, size))


def schedule_payload_bytes(
    algorithm: CollectiveSchedule, size: int, itemsize: int
) -> int:
    """Return the bytes of all permutes on one device, as a compiled program has them.

    Args:
        algorithm: the step list.
        size: numbers in the array.
        itemsize: bytes of a number.
    """
    return permutes_payload_bytes(algorithm, permutes(algorithm), size, itemsize)


def permutes_payload_bytes(
    algorithm: CollectiveSchedule,
    steps: Sequence[PermuteStep],
    size: int,
    itemsize: int,
) -> int:
    """Return the same where the permutes of the list are at hand.

    Args:
        algorithm: the step list.
        steps: its permutes.
        size: numbers in the array.
        itemsize: bytes of a number.
    """
    chunks = sum(permute.count for step in steps for permute in step)
    return itemsize * chunks * chunk_size(algorithm, size)
