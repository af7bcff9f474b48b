"""Collective schedules as data: steps, and in each who sends which chunks to whom.

The array is cut into equal chunks. In a step every rank sends its chunks as they were
before the step; chunks that are received are added to the rank's own, or replace them.
The network simulation and the executor read the same schedule.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxdist.collectives.algorithms.vectorized_transfers import (
    Transfer,
    VectorizedTransfers,
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
    """An all-reduce: every rank gets the sum of the arrays of all."""

    name: str
    """As in the registry."""
    ranks: int
    """Devices that take part, numbered from 0."""
    chunks: int
    """Equal parts that the array is cut into."""
    steps: tuple[ScheduleStep, ...]
    """One after another; none for a rank alone."""

    def __post_init__(self) -> None:
        # Rotated chunks are the same chunks, and many steps share both arrays: each is
        # checked once.
        apart = {}
        for step in self.steps:
            for part in vectorize_transfers(step.transfers).blocks:
                apart[id(part.messages), id(part.first_chunks)] = part
        for part in apart.values():
            moves, first = part.messages, part.starts
            ranks = np.stack((moves.sources, moves.targets))
            wrong = ((ranks < 0) | (ranks >= self.ranks)).any(axis=0)
            wrong |= moves.sources == moves.targets
            wrong |= (first < 0) | (moves.counts < 1)
            wrong |= first + moves.counts > self.chunks
            if wrong.any():
                raise BadInput(
                    f"the step list {self.name!r} moves what is not there",
                    rule=f"ranks 0 to {self.ranks - 1} send chunks "
                    f"0 to {self.chunks - 1} to other ranks",
                    values=str(VectorizedTransfers((part,))[int(wrong.argmax())]),
                    remedy="Transfer(source, target, start, count, adds) within these",
                )


ScheduleSteps = tuple[ScheduleStep, ...]


def send(source: int, target: int, piece: range, *, adds: bool) -> Transfer:
    """Return the transfer of consecutive chunks."""
    return Transfer(source, target, piece.start, len(piece), adds)


def merge_concurrent(lists: Iterable[ScheduleSteps]) -> ScheduleSteps:
    """Run several schedules side by side, each from its first step on.

    >>> there = ScheduleStep((Transfer(0, 1, 0, 1, True),))
    >>> a = there, ScheduleStep((Transfer(1, 0, 0, 1, False),))
    >>> b = (ScheduleStep((Transfer(2, 3, 0, 1, True),)),)
    >>> [len(step.transfers) for step in merge_concurrent([a, b])]
    [2, 1]
    """
    steps = []
    for row in itertools.zip_longest(*lists, fillvalue=ScheduleStep(())):
        some = [step.transfers for step in row if len(step.transfers)]
        tables = [each for each in some if isinstance(each, VectorizedTransfers)]
        # Columns stay columns, without a `Transfer` for each message.
        if tables and len(tables) == len(some):
            blocks = [block for table in tables for block in table.blocks]
            steps.append(ScheduleStep(VectorizedTransfers(blocks)))
        else:
            steps.append(ScheduleStep(tuple(itertools.chain.from_iterable(some))))
    return tuple(steps)


def split_chunks(piece: range, parts: int) -> tuple[range, ...]:
    """Split consecutive chunks into equal parts.

    >>> split_chunks(range(4, 10), 3)
    (range(4, 6), range(6, 8), range(8, 10))
    """
    size = len(piece) // parts
    # At least 1: `range` refuses a step of 0, that of an empty run.
    starts = range(piece.start, piece.start + parts * size, max(size, 1))
    return tuple(range(start, start + size) for start in starts)


def check_ranks(ranks: int) -> int:
    """Return a number of ranks that is at least 1.

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
