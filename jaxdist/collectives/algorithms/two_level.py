"""Two levels: reduce-scatter in each host, sums across hosts, all-gather in each host.

g ranks a host, G = P/g hosts, S bytes:

    ring in the host, ring across:     2 (g-1) + 2 (G-1) steps
    ring in the host, halving across:  2 (g-1) + 2 log2 G steps
    sent in the host 2 (g-1)/g S,  across 2 (G-1)/G S/g;  together 2 (P-1)/P S

Hosts beyond a power of two are folded across: two steps and S/g bytes more, for some.

Source: Jia et al. 2018, "Highly scalable deep learning training system with
mixed-precision", arXiv:1807.11205 (hierarchical all-reduce); Ueno and Yokota 2019,
"Exhaustive study of hierarchical AllReduce patterns for large messages between GPUs",
CCGrid.
"""

from collections.abc import Callable, Sequence

from jaxdist.collectives.algorithms import rings
from jaxdist.collectives.algorithms.halving_doubling import nearest_first_steps
from jaxdist.collectives.algorithms.non_power_of_two import (
    floor_power_of_two,
    fold_to_power_of_two,
)
from jaxdist.collectives.algorithms.rank_grid import (
    near_square_divisor,
    rank_columns,
    rank_rows,
)
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleSteps,
    merge_concurrent,
    split_chunks,
)

GroupAllReduce = Callable[[Sequence[int], range], ScheduleSteps]
"""Sums a run of chunks over a group of ranks."""


def two_level_ring(ranks: int, per_host: int | None = None) -> CollectiveSchedule:
    """Return a ring in each host, and rings across hosts.

    Args:
        ranks: any number P; those of a host are neighbours.
        per_host: ranks of a host, g, which must divide P; without it, the largest
            divisor that is not above √P.

    Raises:
        BadInput: `per_host` does not divide `ranks`.

    >>> len(two_level_ring(8, per_host=4).steps)
    8
    """
    hosts = _hosts(ranks, per_host)
    steps = two_level_steps(hosts, range(ranks), rings.ring_all_reduce)
    return CollectiveSchedule(
        name="two_level_ring", ranks=ranks, chunks=ranks, steps=steps
    )


def two_level_halving(ranks: int, per_host: int | None = None) -> CollectiveSchedule:
    """Return a ring in each host, and halving-doubling across hosts.

    Args:
        ranks: any number P; those of a host are neighbours.
        per_host: ranks of a host, as in `two_level_ring`.

    Raises:
        BadInput: `per_host` does not divide `ranks`.

    >>> len(two_level_halving(16, per_host=2).steps)
    8
    """
    hosts = _hosts(ranks, per_host)
    # Each part of a host is halved across hosts, so it has as many chunks as the power
    # of two that does the work there.
    chunks = len(hosts[0]) * floor_power_of_two(len(hosts))
    steps = two_level_steps(
        hosts,
        range(chunks),
        lambda group, piece: fold_to_power_of_two(group, piece, nearest_first_steps),
    )
    return CollectiveSchedule(
        name="two_level_halving", ranks=ranks, chunks=chunks, steps=steps
    )


def two_level_steps(
    rows: Sequence[Sequence[int]], piece: range, column_all_reduce: GroupAllReduce
) -> ScheduleSteps:
    """Sum a run of chunks: scatter in each row, sum each column, gather in each row.

    Args:
        rows: groups of ranks, of one size.
        piece: chunks, as many as the size and `column_all_reduce` need.
        column_all_reduce: sums one part over a column.
    """
    # Rank j of a row sums part j over its column, so all links between rows work at the
    # same time, on 1 / width of the array each.
    parts = split_chunks(piece, len(rows[0]))
    columns = zip(rank_columns(rows), parts)
    return (
        *merge_concurrent(rings.ring_reduce_scatter(row, piece) for row in rows),
        *merge_concurrent(column_all_reduce(column, part) for column, part in columns),
        *merge_concurrent(rings.ring_all_gather(row, piece) for row in rows),
    )


def _hosts(ranks: int, per_host: int | None) -> list[range]:
    width = near_square_divisor(ranks) if per_host is None else per_host
    return rank_rows(ranks, width)
