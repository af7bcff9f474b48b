"""An algorithm as data: steps, and in each who sends which chunks to whom.

The array is cut into equal chunks. In a step every rank sends its chunks as they were
before the step; chunks that are received are added to the rank's own, or replace them.
What a network is asked to carry and what a device runs is read from the same list.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxdist.collectives.algorithms.transfer import Transfer
from jaxdist.collectives.algorithms.vectorized_transfers import (
    TransferBlock,
    VectorizedTransfers,
    concatenate_transfers,
    vectorize_transfers,
)
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """Transfers that run at the same time."""

    transfers: Sequence[Transfer]
    """In no particular order: a tuple, or `VectorizedTransfers`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveSchedule:
    """One way to give every rank the sum of the arrays of all."""

    name: str
    """As in the registry."""
    ranks: int
    """Devices that take part, numbered from 0."""
    chunks: int
    """Equal parts that the array is cut into."""
    steps: tuple[ScheduleStep, ...]
    """One after another; none for a rank alone."""

    def __post_init__(self) -> None:
        parts = (
            p for step in self.steps for p in vectorize_transfers(step.transfers).blocks
        )
        # Turned chunks are the same chunks, and many steps share both arrays.
        apart = {(id(part.messages), id(part.first_chunks)): part for part in parts}
        for part in apart.values():
            wrong = np.flatnonzero(self._misses(part))
            if wrong.size:
                raise BadInput(
                    f"the step list {self.name!r} moves what is not there",
                    rule=f"ranks 0 to {self.ranks - 1} send chunks "
                    f"0 to {self.chunks - 1} to other ranks",
                    values=str(VectorizedTransfers((part,))[int(wrong[0])]),
                    remedy="Transfer(source, target, start, count, adds) within these",
                )

    def _misses(self, part: TransferBlock) -> NDArray[np.bool_]:
        """Tell of each message whether its ranks or chunks are not there."""
        moves, first, end = (
            part.messages,
            part.starts,
            part.starts + part.messages.counts,
        )
        ranks = np.stack((moves.sources, moves.targets))
        outside = ((ranks < 0) | (ranks >= self.ranks)).any(axis=0)
        empty = (first < 0) | (moves.counts < 1) | (end > self.chunks)
        return outside | empty | (moves.sources == moves.targets)


ScheduleSteps = tuple[ScheduleStep, ...]


def send(source: int, target: int, piece: range, *, adds: bool) -> Transfer:
    """Return the transfer of a run of chunks."""
    return Transfer(source, target, piece.start, len(piece), adds)


def merge_concurrent(lists: Iterable[ScheduleSteps]) -> ScheduleSteps:
    """Run several lists side by side, each from its first step on.

    >>> there = ScheduleStep((Transfer(0, 1, 0, 1, True),))
    >>> a = there, ScheduleStep((Transfer(1, 0, 0, 1, False),))
    >>> b = (ScheduleStep((Transfer(2, 3, 0, 1, True),)),)
    >>> [len(step.transfers) for step in merge_concurrent([a, b])]
    [2, 1]
    """
    rows = itertools.zip_longest(*lists, fillvalue=ScheduleStep(()))
    return tuple(
        ScheduleStep(concatenate_transfers([step.transfers for step in row]))
        for row in rows
    )


def split_chunks(piece: range, parts: int) -> tuple[range, ...]:
    """Cut a run of chunks into equal neighbours.

    >>> split_chunks(range(4, 10), 3)
    (range(4, 6), range(6, 8), range(8, 10))
    """
    size = len(piece) // parts
    starts = range(piece.start, piece.start + parts * size, max(size, 1))
    return tuple(range(start, start + size) for start in starts)


def check_ranks(ranks: int) -> int:
    """Return a number of ranks that is one.

    Raises:
        BadInput: it is below 1.
    """
    if ranks < 1:
        raise BadInput(
            "a sum needs a rank",
            rule="the number of ranks is at least 1",
            values=f"ranks={ranks}",
            remedy="ranks=1",
        )
    return ranks
