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

from jaxdist.collectives.algorithms.steps import Step, Steps, cut, send

Partners = Sequence[Sequence[int]]
"""For each round, the place of every rank's partner in the group."""


def hypercube(places: int, distances: Sequence[int]) -> Partners:
    """Return the partners along the dims of a hypercube, in an order of its dims.

    >>> hypercube(4, [1, 2])
    [[1, 0, 3, 2], [2, 3, 0, 1]]
    """
    return [[place ^ distance for place in range(places)] for distance in distances]


def halve_and_double(group: Sequence[int], piece: range, partners: Partners) -> Steps:
    """Sum a run of chunks over a group.

    Args:
        group: 2^m ranks.
        piece: chunks, a multiple of 2^m.
        partners: m rounds, in which the ranks that a rank reaches from a round on are
            the same for all of them: disjoint sets of 2^m, 2^(m-1), ..., 1 ranks.
    """
    held = _held(len(group), piece, partners)
    halving, doubling = [], []
    for partner, kept in zip(partners, held[1:]):
        pairs = [(a, b, group[a], group[b]) for a, b in enumerate(partner)]
        sums = (send(me, other, kept[b], adds=True) for _, b, me, other in pairs)
        copies = (send(me, other, kept[a], adds=False) for a, _, me, other in pairs)
        halving.append(Step(tuple(sums)))
        doubling.append(Step(tuple(copies)))
    return (*halving, *reversed(doubling))


def _held(places: int, piece: range, partners: Partners) -> list[list[range]]:
    """List the chunks that each place still sums, before each round and at the end."""
    names = _names(places, partners)
    held = [[piece] * places]
    for now, later in itertools.pairwise(names):
        halves = [cut(run, 2) for run in held[-1]]
        keeps_low = [a == b for a, b in zip(now, later)]
        held.append([both[0 if low else 1] for both, low in zip(halves, keeps_low)])
    return held


def _names(places: int, partners: Partners) -> list[list[int]]:
    """Name, for each round, the set of places that a place meets from there on.

    The name is the least place in it. So a set divides into one part that has its name
    and another that has not.
    """
    names = [list(range(places))]
    for partner in reversed(partners):
        last = names[0]
        names.insert(0, [min(name, last[other]) for name, other in zip(last, partner)])
    return names
