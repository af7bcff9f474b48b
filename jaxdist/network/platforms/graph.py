"""A graph: vertices joined by cables, and shortest ways between devices.

Of equally short ways the one is taken whose last vertex, in the order of the file,
comes first; of those, seen from the device with the lower number, the one whose next
vertex comes first. The way back is the same way. That is what the algorithm of Floyd
keeps. Under `hash` each next vertex is drawn by a hash of both devices instead, as ECMP
does.

Source: Floyd 1962, "Algorithm 97: shortest path", Commun. ACM 5(6) (vertices are tried
in their order, and a way is kept until a shorter one is found).
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.network.topologies.fat_tree import splitmix64

TIE_BREAKS = ("first", "hash")
_TOLERANCE = 1e-9
"""Ways whose lengths differ by a smaller part are equally long."""


@dataclass(frozen=True, kw_only=True)
class PlatformGraph:
    """Vertices 0 to V-1, of which 0 to D-1 are devices; cables between them."""

    names: tuple[str, ...]
    """Of the vertices, in the order of the file."""
    devices: int
    """D."""
    edges: tuple[tuple[int, int], ...]
    """The vertices that each cable joins, as the file has them."""
    costs: tuple[float, ...]
    """What each cable adds to the length of a way."""
    devices_forward: bool
    """Whether devices pass messages on."""
    tie_break: str
    """`first` or `hash`."""


GraphHop = tuple[int, int]
"""The next vertex, and 2 c or 2 c + 1 for the cable c to it."""


DistanceMap = dict[int, tuple[float, int, int]]
"""By vertex: what is left to a device, the hops to it, the last vertex between."""


class ShortestPaths:
    """Shortest ways on a graph, found when they are asked for."""

    def __init__(self, graph: PlatformGraph) -> None:
        self._graph = graph
        self._hops = _neighbours(graph)
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def paths(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
        """Return the cables of each way, 2 c forwards and 2 c + 1 backwards.

        Args:
            pairs: devices, from and to.

        Raises:
            BadInput: two devices are not joined.
        """
        asked = list(pairs)
        wanted: dict[int, set[int]] = {}
        for a, b in set(asked) - self._known.keys():
            low, high = (a, b) if self._graph.tie_break == "hash" else sorted((a, b))
            wanted.setdefault(high, set()).add(low)
        for target, sources in wanted.items():
            left = self._distances(target, sources)
            for source in sources:
                self._store_path(source, target, left)
        return [self._known[pair] for pair in asked]

    def _store_path(self, source: int, target: int, left: DistanceMap) -> None:
        at, way = source, []
        while at != target:
            at, hop = self._break_tie(
                self._shortest_hops(at, left), left, (source, target)
            )
            way.append(hop)
        self._known[source, target] = tuple(way)
        if self._graph.tie_break == "first":
            self._known[target, source] = tuple(hop ^ 1 for hop in reversed(way))

    def _distances(self, target: int, sources: set[int]) -> DistanceMap:
        """Return what is left to a device from all that is not farther than these."""
        left: DistanceMap = {}
        heap, missing = [(0.0, 0, target)], set(sources)
        while heap and missing:
            length, hops, vertex = heapq.heappop(heap)
            if vertex in left:
                continue
            left[vertex] = (length, hops, -1)
            nearer = self._shortest_hops(vertex, left)
            last = min((_last_vertex(hop, left) for hop in nearer), default=-1)
            left[vertex] = (length, hops, last)
            missing.discard(vertex)
            if vertex != target and not self._forwards(vertex):
                continue
            for other, hop in self._hops[vertex]:
                if other not in left:
                    cost = self._graph.costs[hop // 2]
                    heapq.heappush(heap, (length + cost, hops + 1, other))
        if missing:
            raise self._disconnected_error(min(missing), target)
        return left

    def _shortest_hops(self, vertex: int, left: DistanceMap) -> list[GraphHop]:
        """List the hops from a vertex that are on shortest ways."""
        length, hops, _ = left[vertex]
        found = []
        for other, hop in self._hops[vertex]:
            rest, fewer, _ = left.get(other, (0.0, hops, 0))
            through = fewer == 0 or self._forwards(other)
            way = rest + self._graph.costs[hop // 2]
            if through and fewer == hops - 1 and way <= length * (1 + _TOLERANCE):
                found.append((other, hop))
        return found

    def _break_tie(
        self, hops: list[GraphHop], left: DistanceMap, ends: tuple[int, int]
    ) -> GraphHop:
        if self._graph.tie_break == "first":
            return min(hops, key=lambda hop: (_last_vertex(hop, left), hop))
        source, target = ends
        key = np.array([(source << 42) + (target << 21) + hops[0][0]])
        return hops[int(splitmix64(key)[0]) % len(hops)]

    def _forwards(self, vertex: int) -> bool:
        return self._graph.devices_forward or vertex >= self._graph.devices

    def _disconnected_error(self, source: int, target: int) -> BadInput:
        names = self._graph.names
        return BadInput(
            f"no way from {names[source]} to {names[target]}",
            rule="cables join all devices"
            + ", over switches alone" * (not self._graph.devices_forward),
            values=f"{len(self._graph.edges)} cables, {len(names)} vertices",
            remedy="a cable between them"
            + ", or devices_forward: true" * (not self._graph.devices_forward),
        )


def _neighbours(graph: PlatformGraph) -> list[list[GraphHop]]:
    """List by vertex where its cables lead, in the order of the file."""
    hops: list[list[GraphHop]] = [[] for _ in graph.names]
    for cable, (low, high) in enumerate(graph.edges):
        hops[low].append((high, 2 * cable))
        hops[high].append((low, 2 * cable + 1))
    return [sorted(each) for each in hops]


def _last_vertex(hop: GraphHop, left: DistanceMap) -> int:
    """Return the last vertex between, on the way by a hop; -1 if it is the end."""
    vertex, _ = hop
    _, hops, last = left[vertex]
    return max(vertex, last) if hops else -1
