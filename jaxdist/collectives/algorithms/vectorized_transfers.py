"""Transfers of a step, one by one or as columns: who sends which chunks to whom.

Steps of many ranks are alike: those of a ring differ only in the chunks that move. So a
step holds columns that it shares with others, and a transfer is made when it is asked
for. A schedule for 65,536 ranks is a few arrays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Neighbouring chunks that one rank sends to another."""

    source: int
    """Rank that sends."""
    target: int
    """Rank that receives."""
    start: int
    """First chunk, the same index at both ranks."""
    count: int
    """Number of consecutive chunks."""
    adds: bool
    """Whether the target adds them to its own; else they replace them."""


@dataclass(frozen=True, eq=False, slots=True)
class MessageColumns:
    """Who sends how much to whom: what a network sees of a step."""

    sources: IntArray
    """`[M]`, the rank that sends."""
    targets: IntArray
    """`[M]`, the rank that receives."""
    counts: IntArray
    """`[M]`, chunks of each message."""
    adds: bool
    """Whether targets add; else chunks are replaced."""


@dataclass(frozen=True, eq=False, slots=True)
class TransferBlock:
    """Messages, and the chunks that they move."""

    messages: MessageColumns
    """Shared with other steps."""
    first_chunks: IntArray
    """`[M]`, first chunk of each message, before the rotation."""
    rotation: int = 0
    """Places by which `first_chunks` is rotated, where all messages have one size."""

    @property
    def starts(self) -> IntArray:
        """`[M]`, first chunk of each message."""
        # Rotated when asked for: a ring of P ranks has P steps, and each would else
        # hold an array of its own.
        return np.roll(self.first_chunks, self.rotation)


class VectorizedTransfers(Sequence[Transfer]):
    """Transfers of one step, made when they are read.

    Args:
        parts: one behind the other.

    >>> pairs = uniform_transfers([0, 1], [1, 0], starts=[0, 1], count=1, adds=True)
    >>> len(pairs), pairs[1]
    (2, Transfer(source=1, target=0, start=1, count=1, adds=True))
    """

    def __init__(self, parts: Sequence[TransferBlock]) -> None:
        self.blocks = tuple(parts)

    def rotate_chunks(self, positions: int) -> "VectorizedTransfers":
        """Return the same messages, with the chunks of `positions` places before."""
        return VectorizedTransfers(
            [
                TransferBlock(p.messages, p.first_chunks, p.rotation + positions)
                for p in self.blocks
            ]
        )

    def __len__(self) -> int:
        return sum(part.messages.sources.size for part in self.blocks)

    def __iter__(self) -> Iterator[Transfer]:
        for part in self.blocks:
            moves = part.messages
            ends = zip(moves.sources.tolist(), moves.targets.tolist())
            chunks = zip(part.starts.tolist(), moves.counts.tolist())
            for (source, target), (start, count) in zip(ends, chunks):
                yield Transfer(source, target, start, count, moves.adds)

    @overload
    def __getitem__(self, index: int) -> Transfer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Transfer, ...]: ...
    def __getitem__(self, index: int | slice) -> Transfer | tuple[Transfer, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        # Equal to the tuple of its transfers, so that both forms compare and hash
        # alike.
        if not isinstance(other, tuple | VectorizedTransfers):
            return NotImplemented
        return tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def uniform_transfers(
    sources: ArrayLike, targets: ArrayLike, *, starts: ArrayLike, count: int, adds: bool
) -> VectorizedTransfers:
    """Return messages of one size.

    Args:
        sources: `[M]`, ranks.
        targets: `[M]`, ranks.
        starts: `[M]`, first chunk of each, or one for all.
        count: chunks of each.
        adds: whether targets add them.
    """
    ranks = np.asarray(sources, np.int64)
    first = np.broadcast_to(np.asarray(starts, np.int64), ranks.shape)
    moves = MessageColumns(
        ranks, np.asarray(targets, np.int64), np.full_like(ranks, count), adds
    )
    return VectorizedTransfers((TransferBlock(moves, first),))


def vectorize_transfers(transfers: Sequence[Transfer]) -> VectorizedTransfers:
    """Return any transfers as columns.

    >>> vectorize_transfers([Transfer(0, 1, 0, 3, True)]).blocks[0].messages.counts
    array([3])
    """
    if isinstance(transfers, VectorizedTransfers):
        return transfers
    parts = []
    # Columns have one kind of message, added or copied.
    for adds in (True, False):
        rows = [t for t in transfers if t.adds == adds]
        table = np.array(
            [(t.source, t.target, t.count, t.start) for t in rows], np.int64
        ).reshape(-1, 4)
        if rows:
            sources, targets, counts, first = table.T
            parts.append(
                TransferBlock(MessageColumns(sources, targets, counts, adds), first)
            )
    return VectorizedTransfers(parts)
