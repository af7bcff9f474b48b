"""Step lists of published simulations, built of the lists that are run here.

`lr` ring; `X_Y` X inside a host and Y across hosts; `lr`, `rab` (halving-doubling,
nearest first), `rdb` (recursive doubling), `binominal` (a tree to the first rank of a
host and back). Names and rules are those of the tables.

Source: github.com/TruongThaoNguyen/allreduce_simulate, commit 45057ad: names and
rules; Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH" (binomial trees).
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from jaxdist.collectives.algorithms import recursive_doubling, rings
from jaxdist.collectives.algorithms.halving_doubling import (
    halving_doubling,
    hypercube_distances,
)
from jaxdist.collectives.algorithms.non_power_of_two import (
    floor_power_of_two,
    fold_to_power_of_two,
)
from jaxdist.collectives.algorithms.parameter_server import sharded_parameter_server
from jaxdist.collectives.algorithms.rank_grid import rank_rows
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    ScheduleSteps,
    merge_concurrent,
)
from jaxdist.collectives.algorithms.two_level import (
    two_level_halving,
    two_level_ring,
    two_level_steps,
)
from jaxdist.collectives.algorithms.vectorized_transfers import uniform_transfers
from jaxdist.core.errors import BadInput


def tree_reduce(group: Sequence[int], piece: range) -> ScheduleSteps:
    """Sum a run of chunks to the first rank of a group, by a binomial tree.

    >>> [(t.source, t.target) for step in tree_reduce(range(4), range(1))
    ...  for t in step.transfers]
    [(1, 0), (3, 2), (2, 0)]
    """
    return tuple(_tree_steps(group, piece, adds=True))


def tree_broadcast(group: Sequence[int], piece: range) -> ScheduleSteps:
    """Give a run of chunks of the first rank to a group, by the same tree."""
    return tuple(reversed(tuple(_tree_steps(group, piece, adds=False))))


def _tree_steps(group: Sequence[int], piece: range, adds: bool) -> ScheduleSteps:
    ranks, steps = np.asarray(group), []
    # In round k the ranks that are 2^k beyond a multiple of 2^(k+1) send.
    for distance in hypercube_distances(len(ranks)):
        far = np.arange(distance, len(ranks), 2 * distance)
        ends = (ranks[far], ranks[far - distance])
        a, b = ends if adds else reversed(ends)
        steps.append(
            ScheduleStep(
                uniform_transfers(a, b, starts=piece.start, count=len(piece), adds=adds)
            )
        )
    return tuple(steps)


def lr_rdb(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return a ring in each host, and recursive doubling across hosts."""
    # Each part of a host is summed across by ranks of the same place, whatever their
    # number.
    hosts = rank_rows(ranks, per_host)

    def across(group: Sequence[int], piece: range) -> ScheduleSteps:
        return fold_to_power_of_two(
            group, piece, recursive_doubling.recursive_doubling_steps
        )

    steps = two_level_steps(hosts, range(per_host), across)
    return CollectiveSchedule(name="lr_rdb", ranks=ranks, chunks=per_host, steps=steps)


def binominal_lr(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return trees in hosts to their first ranks, a ring over those, and back."""
    hosts = rank_rows(ranks, per_host)
    # Only the leaders use the network cards, each with the whole array.
    leaders, piece = [host[0] for host in hosts], range(ranks // per_host)
    steps = (
        *merge_concurrent(tree_reduce(host, piece) for host in hosts),
        *rings.ring_all_reduce(leaders, piece),
        *merge_concurrent(tree_broadcast(host, piece) for host in hosts),
    )
    return CollectiveSchedule(
        name="binominal_lr", ranks=ranks, chunks=len(piece), steps=steps
    )


def smp_binominal(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return trees in hosts and over their first ranks, up and down."""
    # The whole array is one chunk: trees do not cut it.
    hosts, piece = rank_rows(ranks, per_host), range(1)
    leaders = [host[0] for host in hosts]
    steps = (
        *merge_concurrent(tree_reduce(host, piece) for host in hosts),
        *tree_reduce(leaders, piece),
        *tree_broadcast(leaders, piece),
        *merge_concurrent(tree_broadcast(host, piece) for host in hosts),
    )
    return CollectiveSchedule(name="smp_binominal", ranks=ranks, chunks=1, steps=steps)


def reduce_bcast(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return all ranks sending to the first one at once, and a tree down."""
    # All at once on the link of the first rank: what the tables call dense.
    others = np.arange(1, ranks)
    up = ScheduleStep(
        uniform_transfers(others, 0 * others, starts=0, count=1, adds=True)
    )
    steps = (up, *tree_broadcast(range(ranks), range(1)))
    return CollectiveSchedule(
        name="dense_reduce_bcast", ranks=ranks, chunks=1, steps=steps
    )


def direct_reduce_scatter_gather(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return parts sent straight to their owners, and owners sending to all at once."""
    parts = sharded_parameter_server(ranks)
    return CollectiveSchedule(
        name="direct", ranks=ranks, chunks=ranks, steps=parts.steps
    )


def direct_reduce_doubling_gather(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return parts sent straight to their owners, and a gather by doubling.

    Raises:
        BadInput: ranks that are no power of two.
    """
    if ranks & (ranks - 1):
        raise BadInput(
            f"no gather by doubling on {ranks} ranks",
            rule="the published gather by doubling has a power of two of ranks",
            values=f"sparse_small, {ranks} ranks",
            remedy=f"{floor_power_of_two(ranks)} ranks, or sparse_big",
        )
    # Its first step is the reduce-scatter, with a server on every rank.
    first, *_ = sharded_parameter_server(ranks).steps
    own = np.arange(ranks)
    gather = tuple(
        ScheduleStep(
            uniform_transfers(own, own ^ d, starts=own // d * d, count=d, adds=False)
        )
        for d in hypercube_distances(ranks)
    )
    return CollectiveSchedule(
        name="direct_doubling", ranks=ranks, chunks=ranks, steps=(first, *gather)
    )


def _ignore_hosts(
    build: Callable[[int], CollectiveSchedule],
) -> Callable[[int, int], CollectiveSchedule]:
    # Rows of the tables have the ranks of a host, also for lists that know none.
    return lambda ranks, per_host: build(ranks)


PUBLISHED_SCHEDULES: Final[Mapping[str, Callable[[int, int], CollectiveSchedule]]] = (
    MappingProxyType(
        {
            "lr": _ignore_hosts(rings.ring),
            "rab": _ignore_hosts(halving_doubling),
            "rdb": _ignore_hosts(recursive_doubling.recursive_doubling),
            "lr_lr": two_level_ring,
            "lr_rab": two_level_halving,
            "lr_rdb": lr_rdb,
            "binominal_lr": binominal_lr,
            "smp_binominal": smp_binominal,
            "dense_reduce_bcast": reduce_bcast,
            "dense_ring": _ignore_hosts(rings.ring),
            "dense_ring_ring": two_level_ring,
        }
    )
)
"""By the name in the tables; each takes the ranks and those of a host."""

PUBLISHED_SPARSE_SCHEDULES: Final[
    Mapping[str, Callable[[int, int], CollectiveSchedule]]
] = MappingProxyType(
    {
        "sparse_big": direct_reduce_scatter_gather,
        "sparse_small": direct_reduce_doubling_gather,
        "sparse_ring": _ignore_hosts(rings.ring),
        "sparse_ring_ring": two_level_ring,
    }
)
"""The same for sums of entries."""

PUBLISHED_ENCODINGS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "sparse_big": ("entries", "numbers"),
        "sparse_small": ("entries", "entries"),
        "sparse_ring": ("shorter", "shorter"),
        "sparse_ring_ring": ("shorter", "shorter"),
    }
)
"""How they write messages that are added, and those that replace."""
