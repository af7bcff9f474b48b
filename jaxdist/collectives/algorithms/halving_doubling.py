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
    floor_power_of_two,
    fold_to_power_of_two,
)
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleSteps,
    check_ranks,
)


def halving_doubling(ranks: int) -> CollectiveSchedule:
    """Return halving-doubling, nearest partner first.

    Args:
        ranks: any number P.

    >>> len(halving_doubling(8).steps), len(halving_doubling(9).steps)
    (6, 8)
    """
    return _folded("halving_doubling", ranks, nearest_first_steps)


def halving_doubling_far(ranks: int) -> CollectiveSchedule:
    """Return halving-doubling, farthest partner first.

    Args:
        ranks: any number P.
    """
    return _folded("halving_doubling_far", ranks, _far_first)


def nearest_first_steps(group: Sequence[int], piece: range) -> ScheduleSteps:
    """Sum a run of chunks over 2^m ranks, nearest partner first."""
    return halve_and_double(
        group, piece, hypercube(len(group), hypercube_distances(len(group)))
    )


def hypercube_distances(ranks: int) -> list[int]:
    """List the powers of two below a number of ranks, least first.

    >>> hypercube_distances(8), hypercube_distances(1)
    ([1, 2, 4], [])
    """
    return [1 << bit for bit in range((ranks - 1).bit_length())]


def _far_first(group: Sequence[int], piece: range) -> ScheduleSteps:
    dims = hypercube_distances(len(group))[::-1]
    return halve_and_double(group, piece, hypercube(len(group), dims))


def _folded(name: str, ranks: int, middle: GroupAllReduce) -> CollectiveSchedule:
    chunks = floor_power_of_two(check_ranks(ranks))
    steps = fold_to_power_of_two(range(ranks), range(chunks), middle)
    return CollectiveSchedule(name=name, ranks=ranks, chunks=chunks, steps=steps)
