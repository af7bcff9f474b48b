"""Halving-doubling (Rabenseifner) and its relatives: striped, and Swing.

In round k of the reduce-scatter two partners hold the same run of chunks; each sends
the half that the other keeps. The all-gather goes back the same way. P = 2^m ranks,
S bytes:

    2 m steps,  2 (P-1)/P S sent by every rank

They differ in the partners of each round. Other numbers of ranks are folded, where an
algorithm is defined for them: two steps and S bytes more, for some ranks.

Source: Rabenseifner 2004, "Optimization of collective reduction operations", ICCS;
Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", section 4.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdist.collectives.algorithms.non_power_of_two import (
    GroupAllReduce,
    floor_power_of_two,
    fold_to_power_of_two,
    log2_ranks,
)
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    ScheduleSteps,
    check_ranks,
    merge_concurrent,
    split_chunks,
)
from jaxdist.collectives.algorithms.vectorized_transfers import uniform_transfers

Partners = Sequence[ArrayLike]
"""For each round, the place of every rank's partner in the group."""


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


def striped_halving_doubling(ranks: int) -> CollectiveSchedule:
    """Return several halving-doublings at once, each over the dims in another order.

    The array is cut into m = log2 P stripes. In every step a rank sends m messages, one
    along each dim of the hypercube of ranks, so all links between switches are in use
    all the time. A message of round k has S / (m 2^(k+1)) bytes: it is for large
    arrays, and for ranks that send to several others at once.

    Source: own; of the family of multi-port algorithms (bucket, Swing).

    Args:
        ranks: a power of two.

    Raises:
        BadInput: another number.

    >>> [(t.source, t.target) for t in striped_halving_doubling(8).steps[0].transfers
    ...  if t.source == 0]
    [(0, 1), (0, 2), (0, 4)]
    """
    dims = max(log2_ranks("striped_halving_doubling", ranks), 1)
    chunks, hops = dims * ranks, hypercube_distances(ranks)
    # Stripe j walks the dims in the order j, j + 1, ..., m - 1, 0, ..., j - 1.
    steps = merge_concurrent(
        halve_and_double(range(ranks), stripe, hypercube(ranks, hops[j:] + hops[:j]))
        for j, stripe in enumerate(split_chunks(range(chunks), dims))
    )
    return CollectiveSchedule(
        name="striped_halving_doubling", ranks=ranks, chunks=chunks, steps=steps
    )


def swing(ranks: int) -> CollectiveSchedule:
    """Return Swing over all ranks in their order on a ring.

    Partners lie on both sides, at about 2/3 of the distance of halving-doubling's.

    Source: De Sensi, Bonato, Saam and Hoefler 2024, "Swing: short-cutting rings for
    higher bandwidth allreduce", NSDI, arXiv:2401.09356: the form for one ring and one
    port. The publication has forms for other even numbers of ranks and for tori, too.

    Args:
        ranks: a power of two.

    Raises:
        BadInput: another number.

    >>> [t.target for t in swing(8).steps[1].transfers]
    [7, 2, 1, 4, 3, 6, 5, 0]
    """
    # In round k an even rank meets the rank ρ_k further on, an odd one the rank ρ_k
    # back, modulo P, with ρ_k = Σ_{i=0..k} (-2)^i = 1, -1, 3, -5, 11, ...
    partners, hop = [], 0
    for k in range(log2_ranks("swing", ranks)):
        hop += (-2) ** k
        partners.append(
            [(rank + (-hop if rank % 2 else hop)) % ranks for rank in range(ranks)]
        )
    steps = halve_and_double(range(ranks), range(ranks), partners)
    return CollectiveSchedule(name="swing", ranks=ranks, chunks=ranks, steps=steps)


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
    # Which half a rank keeps follows from the rounds to come: it must be the same for
    # all ranks that it will still meet. So each round names the set of places that a
    # place meets from there on by the least place in it: of the next sets that it
    # divides into, one has its name and the other has not. What a rank holds is always
    # one run of chunks, whatever the partners are.
    names = [np.arange(len(group))]
    for partner in reversed(partners):
        names.insert(0, np.minimum(names[0], names[0][np.asarray(partner)]))

    ranks, width = np.asarray(group), len(piece)
    held = np.full(len(group), piece.start)
    halving, doubling = [], []
    for partner, (now, later) in zip(partners, itertools.pairwise(names)):
        width //= 2
        # Both partners hold the same run; each sends the half that the other keeps.
        kept = held + np.where(now == later, 0, width)
        there, others = ranks[np.asarray(partner)], kept[np.asarray(partner)]
        sums = uniform_transfers(ranks, there, starts=others, count=width, adds=True)
        copies = uniform_transfers(ranks, there, starts=kept, count=width, adds=False)
        halving.append(ScheduleStep(sums))
        doubling.append(ScheduleStep(copies))
        held = kept
    return (*halving, *reversed(doubling))
