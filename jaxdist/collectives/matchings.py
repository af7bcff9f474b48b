"""Matchings: transfers divided so that in each part a rank sends and receives once.

Senders and receivers are the two sides of a bipartite graph, transfers its edges, and
a part a colour that no two edges at one end share. As many colours are enough as the
busiest end has edges: where the two ends of an edge have no free colour in common, two
colours are swapped along a path that leaves one of them.

Source: König 1916, "Über Graphen und ihre Anwendung auf Determinantentheorie und
Mengenlehre", Math. Ann. 77.
"""

import itertools
from collections import Counter
from collections.abc import Sequence

from jaxdist.collectives.algorithms.schedule import Transfer

Endpoint = tuple[str, int]
"""A rank that sends, or a rank that receives."""


def matchings(transfers: Sequence[Transfer]) -> list[list[Transfer]]:
    """Divide transfers into as few parts as there can be.

    >>> to_one = [Transfer(rank, 0, 0, 1, True) for rank in (1, 2, 3)]
    >>> [len(part) for part in matchings(to_one)]
    [1, 1, 1]
    """
    colouring = _Colouring(transfers)
    for edge in range(len(transfers)):
        colouring.add(edge)
    parts: list[list[Transfer]] = [[] for _ in set(colouring.colours)]
    for transfer, colour in zip(transfers, colouring.colours):
        parts[colour].append(transfer)
    return parts


class _Colouring:
    """Colours of the edges so far."""

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self._ends = [(("source", t.source), ("target", t.target)) for t in transfers]
        self._at: dict[tuple[Endpoint, int], int] = {}  # the edge of a colour at an end
        degrees = Counter(itertools.chain.from_iterable(self._ends))
        self._enough = max(degrees.values(), default=0)
        self.colours: list[int] = []

    def add(self, edge: int) -> None:
        """Colour the next edge."""
        source, target = self._ends[edge]
        colour = self._free(source, target)
        if colour >= self._enough:
            colour, other = self._free(source), self._free(target)
            self._swap(target, colour, other)
        self.colours.append(colour)
        self._put(edge)

    def _free(self, *ends: Endpoint) -> int:
        """Return the first colour that no edge has at these ends."""
        at = self._at
        taken = (any((e, colour) in at for e in ends) for colour in itertools.count())
        return next(colour for colour, used in enumerate(taken) if not used)

    def _swap(self, end: Endpoint, colour: int, other: int) -> None:
        """Free `colour` at an end that has `other` free, along a path of both."""
        path = []
        while (end, colour) in self._at:
            path.append(self._at.pop((end, colour)))
            end = self._across(path[-1], end)
            self._at.pop((end, colour))
            colour, other = other, colour
        for edge in path:
            self.colours[edge] = colour + other - self.colours[edge]
            self._put(edge)

    def _across(self, edge: int, end: Endpoint) -> Endpoint:
        source, target = self._ends[edge]
        return target if end == source else source

    def _put(self, edge: int) -> None:
        for end in self._ends[edge]:
            self._at[end, self.colours[edge]] = edge
