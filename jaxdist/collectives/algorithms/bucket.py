"""Two-dimensional bucket: rings along rows and columns of a torus, both at once.

The array is cut into quarters, so that links of rows and of columns are in use in both
directions at the same time. a rows, b columns, P = a b ranks, S bytes:

    2 (a + b - 2) steps of up to four messages,  2 (P-1)/P S sent by every rank

With one quarter only it is `two_level_ring`.

Source: Jain and Sabharwal 2010, "Optimal bucket algorithms for large MPI collectives on
torus interconnects", ICS; Sack and Gropp 2015, "Collective algorithms for multiported
torus networks", ACM Trans. Parallel Comput. 1(2).
"""

from collections.abc import Sequence

from jaxdist.collectives.algorithms import rings
from jaxdist.collectives.algorithms.rank_grid import (
    near_square_divisor,
    rank_columns,
    rank_rows,
)
from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    merge_concurrent,
    split_chunks,
)
from jaxdist.collectives.algorithms.two_level import two_level_steps


def bucket_2d(ranks: int, per_row: int | None = None) -> CollectiveSchedule:
    """Return the two-dimensional bucket algorithm.

    Args:
        ranks: any number P; those of a row are neighbours.
        per_row: ranks of a row, b, which must divide P; without it, the largest divisor
            that is not above √P.

    Raises:
        BadInput: `per_row` does not divide `ranks`.

    >>> len(bucket_2d(12, per_row=4).steps)
    10
    """
    rows = rank_rows(ranks, near_square_divisor(ranks) if per_row is None else per_row)
    columns = rank_columns(rows)
    # Two quarters are summed along rows first, two along columns; of each two, one goes
    # round forwards and one backwards.
    ways: list[Sequence[Sequence[int]]] = []
    for grid in (rows, columns):
        ways += [grid, [line[::-1] for line in reversed(grid)]]
    quarters = split_chunks(range(4 * ranks), 4)
    steps = merge_concurrent(
        two_level_steps(way, quarter, rings.ring_all_reduce)
        for way, quarter in zip(ways, quarters)
    )
    return CollectiveSchedule(
        name="bucket_2d", ranks=ranks, chunks=4 * ranks, steps=steps
    )
