"""Halving-doubling (Rabenseifner): reduce-scatter by halving, all-gather by doubling.

P = 2^m ranks, S bytes:

    2 m steps,  2 (P-1)/P S sent by every rank

Other numbers of ranks are folded: two steps and S bytes more, for some ranks.
Two orders of the partners: nearest first sends the largest message, S/2, to the
nearest rank; farthest first is the order of textbooks, and loads trunk links most.

Source: Rabenseifner 2004, "Optimization of collective reduction operations", ICCS;
Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", section 4.
"""

from collections.abc import Sequence

from jaxdist.collectives.algorithms.halving import halve_and_double, hypercube
from jaxdist.collectives.algorithms.non_power_of_two import (
    GroupAllReduce,
    folded,
    power_below,
)
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleSteps,
    checked,
)


def halving_doubling(ranks: int) -> CollectiveSchedule:
    """Return halving-doubling, nearest partner first.

    Args:
        ranks: any number P.

    >>> len(halving_doubling(8).steps), len(halving_doubling(9).steps)
    (6, 8)
    """
    return _folded("halving_doubling", ranks, near_first)


def halving_doubling_far(ranks: int) -> CollectiveSchedule:
    """Return halving-doubling, farthest partner first.

    Args:
        ranks: any number P.
    """
    return _folded("halving_doubling_far", ranks, _far_first)


def near_first(group: Sequence[int], piece: range) -> ScheduleSteps:
    """Sum a run of chunks over 2^m ranks, nearest partner first."""
    return halve_and_double(group, piece, hypercube(len(group), distances(len(group))))


def distances(ranks: int) -> list[int]:
    """List the powers of two below a number of ranks, least first.

    >>> distances(8), distances(1)
    ([1, 2, 4], [])
    """
    return [1 << bit for bit in range((ranks - 1).bit_length())]


def _far_first(group: Sequence[int], piece: range) -> ScheduleSteps:
    dims = distances(len(group))[::-1]
    return halve_and_double(group, piece, hypercube(len(group), dims))


def _folded(name: str, ranks: int, middle: GroupAllReduce) -> CollectiveSchedule:
    chunks = power_below(checked(ranks))
    steps = folded(range(ranks), range(chunks), middle)
    return CollectiveSchedule(name=name, ranks=ranks, chunks=chunks, steps=steps)
