"""Double binary tree: two trees, in which nobody works in both, pipelined.

Each tree sums one half of the array up to its root and sends the sum down again. A
rank that has children in one tree has none in the other (but for an odd rank out), so
both halves of its link are in use. Each half is cut into c pieces that follow each
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

ParentMap = Mapping[int, int]
"""The parent of every rank but the root."""


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
    one = _tree(check_ranks(ranks))
    halves = split_chunks(range(2 * pieces), 2)
    trees = zip((one, _other(one, ranks)), halves)
    steps = merge_concurrent(_pipelined(tree, half) for tree, half in trees)
    return CollectiveSchedule(
        name="double_binary_tree", ranks=ranks, chunks=2 * pieces, steps=steps
    )


def _tree(ranks: int) -> dict[int, int]:
    """Return a tree whose odd ranks are leaves; rank 0 is its root.

    A rank that is divisible by 2^k and by no higher power has its parent 2^k further on
    or back: where the next power divides it and the one behind that does not. Past the
    last rank it is the one back.

    >>> _tree(6)
    {1: 2, 2: 4, 3: 2, 4: 0, 5: 4}
    """
    parents = {}
    for rank in range(1, ranks):
        low = rank & -rank
        back = (rank - low) % (4 * low) != 0
        parents[rank] = rank - low if back or rank + low >= ranks else rank + low
    return parents


def _other(tree: ParentMap, ranks: int) -> dict[int, int]:
    """Return the tree with even ranks as leaves: turned round, or moved on by one."""
    if ranks % 2 == 0:
        return {ranks - 1 - rank: ranks - 1 - up for rank, up in tree.items()}
    return {(rank + 1) % ranks: (up + 1) % ranks for rank, up in tree.items()}


def _pipelined(parents: ParentMap, half: range) -> ScheduleSteps:
    """Send pieces up and down a tree, one level a step, one piece behind another."""
    levels = {rank: _level(rank, parents) for rank in parents}
    depth = max(levels.values(), default=0)
    steps: list[list[Transfer]] = [[] for _ in range(len(half) - 1 + 2 * depth)]
    for late, piece in enumerate(split_chunks(half, len(half))):
        for rank, level in levels.items():
            up = send(rank, parents[rank], piece, adds=True)
            steps[late + depth - level].append(up)
            down = send(parents[rank], rank, piece, adds=False)
            steps[late + depth + level - 1].append(down)
    return tuple(ScheduleStep(tuple(transfers)) for transfers in steps if transfers)


def _level(rank: int, parents: ParentMap) -> int:
    """Return the steps from a rank to the root."""
    return 1 + _level(parents[rank], parents) if rank in parents else 0
