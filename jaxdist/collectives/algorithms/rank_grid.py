"""Ranks as a table: hosts of equal size, or rows of a torus."""

import math
from collections.abc import Sequence

from jaxdist.collectives.algorithms.schedule import check_ranks
from jaxdist.core.errors import BadInput


def rank_rows(ranks: int, width: int) -> list[range]:
    """Return the ranks row by row, neighbours beside each other.

    Args:
        ranks: number of ranks.
        width: ranks in a row; it must divide them.

    Raises:
        BadInput: it does not.

    >>> rank_rows(6, 3)
    [range(0, 3), range(3, 6)]
    """
    if width < 1 or check_ranks(ranks) % width:
        # The divisor that is nearest to what was asked for, for the remedy.
        widths = [w for w in range(1, ranks + 1) if ranks % w == 0]
        near = min(widths, key=lambda w: abs(w - width))
        raise BadInput(
            f"{ranks} ranks cannot be laid in rows of {width}",
            rule="the ranks of a row (or of a host) divide all ranks",
            values=f"ranks={ranks}, ranks of a row={width}",
            remedy=f"{near} ranks of a row",
        )
    return [range(start, start + width) for start in range(0, ranks, width)]


def rank_columns(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the ranks column by column.

    >>> rank_columns([range(0, 3), range(3, 6)])
    [[0, 3], [1, 4], [2, 5]]
    """
    return [list(column) for column in zip(*rows)]


def near_square_divisor(ranks: int) -> int:
    """Return the largest divisor whose square is not above a number of ranks.

    >>> [near_square_divisor(ranks) for ranks in (1, 7, 12, 16)]
    [1, 1, 3, 4]
    """
    divisors = range(1, math.isqrt(check_ranks(ranks)) + 1)
    return max(width for width in divisors if ranks % width == 0)
