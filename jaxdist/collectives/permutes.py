"""Permutes: the transfers of a step, divided so that devices can run them.

A device program moves data by permutes: each rank sends at most one message and
receives at most one, and all messages have one size. So the transfers of a step are
parted by size and by whether they add, and each part is divided into as many permutes
as its busiest rank sends or receives messages.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule, ScheduleStep
from jaxdist.collectives.matchings import matchings
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Permute:
    """Messages of one size, at most one from and one to a rank."""

    pairs: tuple[tuple[int, int], ...]
    """(source, target) of each message."""
    count: int
    """Chunks of a message."""
    adds: bool
    """Whether they are added to what the target has."""
    starts: tuple[int, ...]
    """First chunk of each message."""


PermuteStep = tuple[Permute, ...]


def permutes(schedule: CollectiveSchedule) -> tuple[PermuteStep, ...]:
    """Return the permutes of each step, in the order in which they run.

    Raises:
        BadInput: a rank would send a chunk that an earlier permute of the same step has
            changed.
    """
    return tuple(_checked(tuple(_permutes(step))) for step in schedule.steps)


def _checked(step: PermuteStep) -> PermuteStep:
    changed: set[tuple[int, int]] = set()
    for permute in step:
        spans = [range(start, start + permute.count) for start in permute.starts]
        moves = list(zip(permute.pairs, spans))
        late = {(source, c) for (source, _), span in moves for c in span} & changed
        if late:
            rank, chunk = min(late)
            raise BadInput(
                "a step of messages one behind another cannot be run",
                rule="what a rank sends in a step changes only in the same permute",
                values=f"rank {rank} sends chunk {chunk} and receives it from others",
                remedy="a step for each: Step(transfers[:k]), Step(transfers[k:])",
            )
        changed |= {(target, c) for (_, target), span in moves for c in span}
    return step


def _permutes(step: ScheduleStep) -> Iterator[Permute]:
    alike = defaultdict(list)
    for transfer in step.transfers:
        alike[transfer.count, transfer.adds].append(transfer)
    for (count, adds), transfers in alike.items():
        for some in matchings(transfers):
            yield Permute(
                pairs=tuple((t.source, t.target) for t in some),
                count=count,
                adds=adds,
                starts=tuple(t.start for t in some),
            )
