"""Ring: every rank sends to the next one only.

A reduce-scatter, in which each piece travels once round the ring and grows to a sum,
and an all-gather, in which the sums travel round once more. P ranks, S bytes:

    2 (P-1) steps,  2 (P-1)/P S sent by every rank

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", J. Parallel Distrib. Comput. 69(2).
"""

from collections.abc import Sequence

import numpy as np

from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    ScheduleSteps,
    check_ranks,
)
from jaxdist.collectives.algorithms.vectorized_transfers import uniform_transfers


def ring(ranks: int) -> CollectiveSchedule:
    """Return the ring over all ranks in their order.

    Args:
        ranks: any number P; the array is cut into P chunks.

    >>> len(ring(5).steps)
    8
    """
    steps = ring_all_reduce(range(check_ranks(ranks)), range(ranks))
    return CollectiveSchedule(name="ring", ranks=ranks, chunks=ranks, steps=steps)


def ring_all_reduce(order: Sequence[int], piece: range) -> ScheduleSteps:
    """Sum chunks round a ring: `ring_reduce_scatter`, then `ring_all_gather`."""
    return ring_reduce_scatter(order, piece) + ring_all_gather(order, piece)


def ring_reduce_scatter(order: Sequence[int], piece: range) -> ScheduleSteps:
    """Sum a run of chunks so that rank `order[i]` ends with its part i.

    Args:
        order: the ranks in the order of the ring.
        piece: chunks, a multiple of the ranks.
    """
    return _round_trip(order, piece, behind=1, adds=True)


def ring_all_gather(order: Sequence[int], piece: range) -> ScheduleSteps:
    """Give every rank the parts of all: the steps behind `ring_reduce_scatter`."""
    return _round_trip(order, piece, behind=0, adds=False)


def _round_trip(
    order: Sequence[int], piece: range, behind: int, adds: bool
) -> ScheduleSteps:
    """Send each part from rank to rank; rank i starts with part i - `behind`."""
    size, width = len(order), len(piece) // len(order)
    first = piece.start + width * np.arange(size)
    ranks = np.asarray(order)
    # In each step rank i sends the part that it has just received, or added.
    hop = uniform_transfers(
        ranks, np.roll(ranks, -1), starts=first, count=width, adds=adds
    )
    # All steps share the arrays of the first: in each, the chunks move on by one rank.
    return tuple(
        ScheduleStep(hop.rotate_chunks(late))
        for late in range(behind, size - 1 + behind)
    )
