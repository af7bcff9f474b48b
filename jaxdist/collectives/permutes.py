"""Permutes: the transfers of a step, divided so that devices can run them.

A device program moves data by permutes: each rank sends at most one message and
receives at most one, and all messages have one size. So the transfers of a step are
grouped by size and by whether they add, and each group is divided into as many permutes
as its busiest rank sends or receives messages.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.collectives.algorithms.schedule import CollectiveSchedule, Transfer
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Permute:
    """Messages of one size, at most one from and one to a rank."""

    pairs: tuple[tuple[int, int], ...]
    """(source, target) of each message."""
    count: int
    """Chunks of a message."""
    adds: bool
    """Whether they are added to the target's own; else they replace it."""
    starts: tuple[int, ...]
    """First chunk of each message."""


PermuteStep = tuple[Permute, ...]


def permutes(schedule: CollectiveSchedule) -> tuple[PermuteStep, ...]:
    """Return the permutes of each step, in the order in which they run.

    Raises:
        BadInput: a rank would send a chunk that an earlier permute of the same step has
            changed.
    """
    steps = []
    for step in schedule.steps:
        # All messages of one permute have one shape and do the same at the target.
        alike = defaultdict(list)
        for transfer in step.transfers:
            alike[transfer.count, transfer.adds].append(transfer)
        found = tuple(
            Permute(
                pairs=tuple((t.source, t.target) for t in some),
                count=count,
                adds=adds,
                starts=tuple(t.start for t in some),
            )
            for (count, adds), transfers in alike.items()
            for some in matchings(transfers)
        )
        # In a step all ranks send their chunks as they were before it.
        changed: set[tuple[int, int]] = set()
        for permute in found:
            spans = [range(start, start + permute.count) for start in permute.starts]
            moves = list(zip(permute.pairs, spans))
            late = {(source, c) for (source, _), span in moves for c in span} & changed
            if late:
                rank, chunk = min(late)
                raise BadInput(
                    "a step of messages one behind another cannot be run",
                    rule="what a rank sends in a step changes only in the same permute",
                    values=f"rank {rank} sends chunk {chunk} and receives it from "
                    "others",
                    remedy="a step for each: Step(transfers[:k]), Step(transfers[k:])",
                )
            changed |= {(target, c) for (_, target), span in moves for c in span}
        steps.append(found)
    return tuple(steps)


def matchings(transfers: Sequence[Transfer]) -> list[list[Transfer]]:
    """Divide transfers into as few matchings as possible: one colour each.

    Source: König 1916, "Über Graphen und ihre Anwendung auf Determinantentheorie und
    Mengenlehre", Math. Ann. 77.

    >>> to_one = [Transfer(rank, 0, 0, 1, True) for rank in (1, 2, 3)]
    >>> [len(part) for part in matchings(to_one)]
    [1, 1, 1]
    """
    # Senders and receivers are the two sides of a bipartite graph, transfers its edges,
    # and no two edges at one end may share a colour. As many colours are enough as the
    # busiest end has edges.
    ends = [(("source", t.source), ("target", t.target)) for t in transfers]
    enough = max(Counter(itertools.chain.from_iterable(ends)).values(), default=0)
    colours: list[int] = []
    at: dict[tuple[tuple[str, int], int], int] = {}  # the edge of a colour at an end

    def free_colour(*own: tuple[str, int]) -> int:
        taken = (any((end, c) in at for end in own) for c in itertools.count())
        return next(colour for colour, used in enumerate(taken) if not used)

    for edge, (source, target) in enumerate(ends):
        first = colour = free_colour(source, target)
        if colour >= enough:
            # The ends have no free colour in common: two colours are swapped along the
            # path of both that leaves the target, which frees one there.
            first = colour = free_colour(source)
            other, end = free_colour(target), target
            path: list[int] = []
            while (end, colour) in at:
                path.append(at.pop((end, colour)))
                here, there = ends[path[-1]]
                end = there if end == here else here
                at.pop((end, colour))
                colour, other = other, colour
            for turned in path:
                colours[turned] = colour + other - colours[turned]
                at.update({(e, colours[turned]): turned for e in ends[turned]})
        colours.append(first)
        at.update({(e, first): edge for e in ends[edge]})

    parts: list[list[Transfer]] = [[] for _ in set(colours)]
    for transfer, colour in zip(transfers, colours):
        parts[colour].append(transfer)
    return parts
