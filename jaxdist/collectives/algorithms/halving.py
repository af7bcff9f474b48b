"""Recursive halving and doubling over partners that are given round by round.

In round k of the reduce-scatter two partners hold the same run of chunks; each sends
the half that the other keeps. The all-gather goes back the same way. With m rounds and
2^m ranks:

    2 m steps,  2 (P-1)/P S sent by every rank

Which half a rank keeps follows from the rounds to come: it must be the same for all
ranks that it will still meet. Chunks are numbered so that what a rank holds is always
one run, whatever the partners are.

Source: Rabenseifner 2004, "Optimization of collective reduction operations", ICCS.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdist.collectives.algorithms.schedule import ScheduleStep, ScheduleSteps
from jaxdist.collectives.algorithms.vectorized_transfers import uniform_transfers

Partners = Sequence[ArrayLike]
"""For each round, the place of every rank's partner in the group."""


def hypercube(places: int, distances: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the partners along the dims of a hypercube, in an order of its dims.

    >>> [list(map(int, partners)) for partners in hypercube(4, [1, 2])]
    [[1, 0, 3, 2], [2, 3, 0, 1]]
    """
    return [np.arange(places) ^ distance for distance in distances]


def halve_and_double(
    group: Sequence[int], piece: range, partners: Partners
) -> ScheduleSteps:
    """Sum a run of chunks over a group.

    Args:
        group: 2^m ranks.
        piece: chunks, a multiple of 2^m.
        partners: m rounds, in which the ranks that a rank reaches from a round on are
            the same for all of them: disjoint sets of 2^m, 2^(m-1), ..., 1 ranks.
    """
    ranks, width = np.asarray(group), len(piece)
    held = np.full(len(group), piece.start)
    names = _names(len(group), partners)
    halving, doubling = [], []
    for partner, (now, later) in zip(partners, itertools.pairwise(names)):
        width //= 2
        kept = held + np.where(now == later, 0, width)
        there, others = ranks[np.asarray(partner)], kept[np.asarray(partner)]
        sums = uniform_transfers(ranks, there, starts=others, count=width, adds=True)
        copies = uniform_transfers(ranks, there, starts=kept, count=width, adds=False)
        halving.append(ScheduleStep(sums))
        doubling.append(ScheduleStep(copies))
        held = kept
    return (*halving, *reversed(doubling))


def _names(places: int, partners: Partners) -> list[NDArray[np.int64]]:
    """Name, for each round, the set of places that a place meets from there on.

    The name is the least place in it. So a set divides into one part that has its name
    and another that has not.
    """
    names = [np.arange(places)]
    for partner in reversed(partners):
        names.insert(0, np.minimum(names[0], names[0][np.asarray(partner)]))
    return names
