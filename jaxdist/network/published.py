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
from jaxdist.collectives.algorithms.halving_doubling import distances, halving_doubling
from jaxdist.collectives.algorithms.non_power_of_two import folded
from jaxdist.collectives.algorithms.parameter_server import sharded_parameter_server
from jaxdist.collectives.algorithms.rank_grid import rows_of
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    ScheduleSteps,
    together,
)
from jaxdist.collectives.algorithms.two_level import (
    levels,
    two_level_halving,
    two_level_ring,
)
from jaxdist.collectives.algorithms.vectorized_transfers import columns


def tree_up(group: Sequence[int], piece: range) -> ScheduleSteps:
    """Sum a run of chunks to the first rank of a group, by a binomial tree.

    >>> [(t.source, t.target) for step in tree_up(range(4), range(1))
    ...  for t in step.transfers]
    [(1, 0), (3, 2), (2, 0)]
    """
    return tuple(_rounds(group, piece, adds=True))


def tree_down(group: Sequence[int], piece: range) -> ScheduleSteps:
    """Give a run of chunks of the first rank to a group, by the same tree."""
    return tuple(reversed(tuple(_rounds(group, piece, adds=False))))


def _rounds(group: Sequence[int], piece: range, adds: bool) -> ScheduleSteps:
    ranks, steps = np.asarray(group), []
    for distance in distances(len(ranks)):
        far = np.arange(distance, len(ranks), 2 * distance)
        ends = (ranks[far], ranks[far - distance])
        a, b = ends if adds else reversed(ends)
        steps.append(
            ScheduleStep(columns(a, b, starts=piece.start, count=len(piece), adds=adds))
        )
    return tuple(steps)


def lr_rdb(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return a ring in each host, and recursive doubling across hosts."""
    hosts = rows_of(ranks, per_host)

    def across(group: Sequence[int], piece: range) -> ScheduleSteps:
        return folded(group, piece, recursive_doubling.exchange)

    steps = levels(hosts, range(per_host), across)
    return CollectiveSchedule(name="lr_rdb", ranks=ranks, chunks=per_host, steps=steps)


def binominal_lr(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return trees in hosts to their first ranks, a ring over those, and back."""
    hosts = rows_of(ranks, per_host)
    leaders, piece = [host[0] for host in hosts], range(ranks // per_host)
    steps = (
        *together(tree_up(host, piece) for host in hosts),
        *rings.allreduce(leaders, piece),
        *together(tree_down(host, piece) for host in hosts),
    )
    return CollectiveSchedule(
        name="binominal_lr", ranks=ranks, chunks=len(piece), steps=steps
    )


def smp_binominal(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return trees in hosts and over their first ranks, up and down."""
    hosts, piece = rows_of(ranks, per_host), range(1)
    leaders = [host[0] for host in hosts]
    steps = (
        *together(tree_up(host, piece) for host in hosts),
        *tree_up(leaders, piece),
        *tree_down(leaders, piece),
        *together(tree_down(host, piece) for host in hosts),
    )
    return CollectiveSchedule(name="smp_binominal", ranks=ranks, chunks=1, steps=steps)


def reduce_bcast(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return all ranks sending to the first one at once, and a tree down."""
    others = np.arange(1, ranks)
    up = ScheduleStep(columns(others, 0 * others, starts=0, count=1, adds=True))
    steps = (up, *tree_down(range(ranks), range(1)))
    return CollectiveSchedule(
        name="dense_reduce_bcast", ranks=ranks, chunks=1, steps=steps
    )


def direct(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return parts sent straight to their owners, and owners sending to all at once."""
    parts = sharded_parameter_server(ranks)
    return CollectiveSchedule(
        name="direct", ranks=ranks, chunks=ranks, steps=parts.steps
    )


def direct_doubling(ranks: int, per_host: int) -> CollectiveSchedule:
    """Return parts sent straight to their owners, and a gather by doubling."""
    first, *_ = sharded_parameter_server(ranks).steps
    own = np.arange(ranks)
    gather = tuple(
        ScheduleStep(columns(own, own ^ d, starts=own // d * d, count=d, adds=False))
        for d in distances(ranks)
    )
    return CollectiveSchedule(
        name="direct_doubling", ranks=ranks, chunks=ranks, steps=(first, *gather)
    )


def _flat(
    build: Callable[[int], CollectiveSchedule],
) -> Callable[[int, int], CollectiveSchedule]:
    return lambda ranks, per_host: build(ranks)


PUBLISHED: Final[Mapping[str, Callable[[int, int], CollectiveSchedule]]] = (
    MappingProxyType(
        {
            "lr": _flat(rings.ring),
            "rab": _flat(halving_doubling),
            "rdb": _flat(recursive_doubling.recursive_doubling),
            "lr_lr": two_level_ring,
            "lr_rab": two_level_halving,
            "lr_rdb": lr_rdb,
            "binominal_lr": binominal_lr,
            "smp_binominal": smp_binominal,
            "dense_reduce_bcast": reduce_bcast,
            "dense_ring": _flat(rings.ring),
            "dense_ring_ring": two_level_ring,
        }
    )
)
"""By the name in the tables; each takes the ranks and those of a host."""

SPARSE: Final[Mapping[str, Callable[[int, int], CollectiveSchedule]]] = (
    MappingProxyType(
        {
            "sparse_big": direct,
            "sparse_small": direct_doubling,
            "sparse_ring": _flat(rings.ring),
            "sparse_ring_ring": two_level_ring,
        }
    )
)
"""The same for sums of entries."""

FORMS_OF: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "sparse_big": ("entries", "numbers"),
        "sparse_small": ("entries", "entries"),
        "sparse_ring": ("shorter", "shorter"),
        "sparse_ring_ring": ("shorter", "shorter"),
    }
)
"""How they write messages that are added, and those that replace."""
