"""A graph: vertices joined by cables, and shortest ways between devices.

Of equally short ways the first one is taken: the least next vertex in the order of the
file, seen from the device with the lower number; the way back is the same way. Under
`hash` each next vertex is drawn by a hash of both devices instead, as ECMP does.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.network.topologies.fat_tree import mixed

TIES = ("first", "hash")
_SAME = 1e-9
"""Ways whose lengths differ by a smaller part are equally long."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Vertices 0 to V-1, of which 0 to D-1 are devices; cables between them."""

    names: tuple[str, ...]
    """Of the vertices, in the order of the file."""
    devices: int
    """D."""
    ends: tuple[tuple[int, int], ...]
    """The vertices that each cable joins, as the file has them."""
    costs: tuple[float, ...]
    """What each cable adds to the length of a way."""
    forwards: bool
    """Whether devices pass messages on."""
    ties: str
    """`first` or `hash`."""


Hop = tuple[int, int]
"""The next vertex, and 2 c or 2 c + 1 for the cable c to it."""


class Ways:
    """Shortest ways on a graph, found when they are asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._hops = _neighbours(graph)
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def find(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
        """Return the cables of each way, 2 c forwards and 2 c + 1 backwards.

        Args:
            pairs: devices, from and to.

        Raises:
            BadInput: two devices are not joined.
        """
        asked = list(pairs)
        wanted: dict[int, set[int]] = {}
        for a, b in set(asked) - self._known.keys():
            low, high = (a, b) if self._graph.ties == "hash" else sorted((a, b))
            wanted.setdefault(high, set()).add(low)
        for target, sources in wanted.items():
            left = self._left(target, sources)
            for source in sources:
                self._learn(source, target, left)
        return [self._known[pair] for pair in asked]

    def _learn(self, source: int, target: int, left: dict[int, float]) -> None:
        way = tuple(self._walk(source, target, left))
        self._known[source, target] = way
        if self._graph.ties == "first":
            self._known[target, source] = tuple(hop ^ 1 for hop in reversed(way))

    def _left(self, target: int, sources: set[int]) -> dict[int, float]:
        """Return what is left to a device, from all that is not farther than these."""
        left: dict[int, float] = {}
        heap, missing = [(0.0, target)], set(sources)
        while heap and missing:
            length, vertex = heapq.heappop(heap)
            if vertex in left:
                continue
            left[vertex] = length
            missing.discard(vertex)
            if vertex == target or self._passes(vertex):
                for other, hop in self._hops[vertex]:
                    if other not in left:
                        cost = self._graph.costs[hop // 2]
                        heapq.heappush(heap, (length + cost, other))
        if missing:
            raise self._apart(min(missing), target)
        return left

    def _walk(self, source: int, target: int, left: dict[int, float]) -> Iterable[int]:
        at = source
        while at != target:
            nearer = [
                hop
                for hop in self._hops[at]
                if hop[0] in left
                and (hop[0] == target or self._passes(hop[0]))
                and left[hop[0]] + self._graph.costs[hop[1] // 2]
                <= left[at] * (1 + _SAME)
            ]
            at, hop = self._choose(nearer, source, target, at)
            yield hop

    def _choose(self, hops: Sequence[Hop], source: int, target: int, at: int) -> Hop:
        if self._graph.ties == "first" or len(hops) == 1:
            return hops[0]
        key = np.array([(source << 42) + (target << 21) + at])
        return hops[int(mixed(key)[0]) % len(hops)]

    def _passes(self, vertex: int) -> bool:
        return self._graph.forwards or vertex >= self._graph.devices

    def _apart(self, source: int, target: int) -> BadInput:
        names = self._graph.names
        return BadInput(
            f"no way from {names[source]} to {names[target]}",
            rule="cables join all devices"
            + ", over switches alone" * (not self._graph.forwards),
            values=f"{len(self._graph.ends)} cables, {len(names)} vertices",
            remedy="a cable between them"
            + ", or devices_forward: true" * (not self._graph.forwards),
        )


def _neighbours(graph: Graph) -> list[list[Hop]]:
    """List by vertex where its cables lead, in the order of the file."""
    hops: list[list[Hop]] = [[] for _ in graph.names]
    for cable, (low, high) in enumerate(graph.ends):
        hops[low].append((high, 2 * cable))
        hops[high].append((low, 2 * cable + 1))
    return [sorted(each) for each in hops]
