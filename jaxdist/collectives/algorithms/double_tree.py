"""Double binary tree: two trees, in which no rank has children in both, pipelined.

Each tree sums one half of the array up to its root and sends the sum down again. A
rank that has children in one tree has none in the other (but for an odd rank out), so
both directions of its link are in use. Each half is cut into c pieces that follow each
other from level to level. P ranks, trees of depth D <= ⌈log2 P⌉, S bytes:

    c - 1 + 2 D steps of up to four messages of S/(2c)
    sent by all ranks 2 (P-1) S,  by the busiest about 2 S

Source: Sanders, Speck and Träff 2009, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan", Parallel Computing 35(12).
"""

from collections.abc import Mapping

from jaxdist.collectives.algorithms.schedule import (
    CollectiveSchedule,
    ScheduleStep,
    ScheduleSteps,
    Transfer,
    check_ranks,
    merge_concurrent,
    send,
    split_chunks,
)
from jaxdist.core.errors import BadInput


def double_binary_tree(ranks: int, pieces: int = 4) -> CollectiveSchedule:
    """Return the double binary tree.

    Args:
        ranks: any number P.
        pieces: c, the pieces that each half is cut into.

    Raises:
        BadInput: no pieces.

    >>> len(double_binary_tree(8).steps)
    9
    """
    if pieces < 1:
        raise BadInput(
            "a tree needs a piece to send",
            rule="pieces is at least 1",
            values=f"pieces={pieces}",
            remedy="pieces=4",
        )
    # Odd ranks are leaves, rank 0 is the root. A rank that is divisible by 2^k and by
    # no higher power has its parent 2^k further on or back: where the next power
    # divides it and the one after that does not. Past the last rank it is the one back.
    parents = {}
    for rank in range(1, check_ranks(ranks)):
        low = rank & -rank
        back = (rank - low) % (4 * low) != 0
        parents[rank] = rank - low if back or rank + low >= ranks else rank + low
    # The other tree has even ranks as leaves: mirrored, or shifted by one.
    if ranks % 2 == 0:
        other = {ranks - 1 - rank: ranks - 1 - up for rank, up in parents.items()}
    else:
        other = {(rank + 1) % ranks: (up + 1) % ranks for rank, up in parents.items()}
    halves = split_chunks(range(2 * pieces), 2)
    steps = merge_concurrent(
        _pipelined(tree, half) for tree, half in zip((parents, other), halves)
    )
    return CollectiveSchedule(
        name="double_binary_tree", ranks=ranks, chunks=2 * pieces, steps=steps
    )


def _pipelined(parents: Mapping[int, int], half: range) -> ScheduleSteps:
    """Send pieces up and down a tree, one level a step, one piece behind another."""
    # The level of a rank is its distance to the root: deep ranks send first.
    levels = dict.fromkeys(parents, 0)
    for rank in parents:
        at = rank
        while at in parents:
            at = parents[at]
            levels[rank] += 1
    depth = max(levels.values(), default=0)
    steps: list[list[Transfer]] = [[] for _ in range(len(half) - 1 + 2 * depth)]
    for late, piece in enumerate(split_chunks(half, len(half))):
        for rank, level in levels.items():
            up = send(rank, parents[rank], piece, adds=True)
            steps[late + depth - level].append(up)
            down = send(parents[rank], rank, piece, adds=False)
            steps[late + depth + level - 1].append(down)
    return tuple(ScheduleStep(tuple(transfers)) for transfers in steps if transfers)
