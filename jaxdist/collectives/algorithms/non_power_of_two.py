"""Folding: ranks beyond a power of two give their array to a neighbour and wait.

With P = 2^m + e ranks the first 2 e form pairs, and 2^m ranks do the work. It costs two
steps, and S bytes more for both ranks of a pair.

Source: Rabenseifner 2004, "Optimization of collective reduction operations", ICCS.
"""

from collections.abc import Callable, Sequence

from jaxdist.collectives.algorithms.schedule import (
    ScheduleStep,
    ScheduleSteps,
    check_ranks,
    send,
)
from jaxdist.core.errors import BadInput

GroupAllReduce = Callable[[Sequence[int], range], ScheduleSteps]
"""Sums a run of chunks over ranks whose number is a power of two."""


def floor_power_of_two(ranks: int) -> int:
    """Return the largest power of two that is not above a number of ranks.

    >>> [floor_power_of_two(ranks) for ranks in (1, 6, 8)]
    [1, 4, 8]
    """
    return 1 << (ranks.bit_length() - 1)


def fold_to_power_of_two(
    group: Sequence[int], piece: range, group_all_reduce: GroupAllReduce
) -> ScheduleSteps:
    """Return an all-reduce over any group, from one over a power of two.

    Args:
        group: any number of ranks.
        piece: chunks, as many as `group_all_reduce` needs.
        group_all_reduce: gives the steps of those that work.
    """
    extra = len(group) - floor_power_of_two(len(group))
    idle, busy = group[: 2 * extra : 2], group[1 : 2 * extra : 2]
    core = group_all_reduce([*busy, *group[2 * extra :]], piece)
    if not extra:
        return core
    # Before, the even rank of each pair sends its whole array to the odd one, which
    # adds it; afterwards it gets the sum back.
    pairs = list(zip(idle, busy))
    before = ScheduleStep(tuple(send(a, b, piece, adds=True) for a, b in pairs))
    behind = ScheduleStep(tuple(send(b, a, piece, adds=False) for a, b in pairs))
    return (before, *core, behind)


def log2_ranks(name: str, ranks: int) -> int:
    """Return the binary logarithm of a number of ranks.

    Raises:
        BadInput: the number is not a power of two.

    >>> log2_ranks("swing", 8)
    3
    """
    below = floor_power_of_two(check_ranks(ranks))
    if below != ranks:
        # The nearest power of two, for the remedy.
        near = min(below, 2 * below, key=lambda power: abs(power - ranks))
        raise BadInput(
            f"{name} is not defined for {ranks} ranks",
            rule="the number of ranks is a power of two",
            values=f"ranks={ranks}",
            remedy=(f"{name}({near})", f"halving_doubling({ranks})"),
        )
    return ranks.bit_length() - 1
