"""Shortest paths between devices on a graph of vertices and cables.

Source: Floyd 1962, "Algorithm 97: shortest path", Commun. ACM 5(6) (vertices are tried
in their order, and a path is kept until a shorter one is found).
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.network.topologies.fat_tree import splitmix64

TIE_BREAKS = ("first", "hash")
_TOLERANCE = 1e-9
"""Paths whose lengths differ by a smaller part are equally long."""


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
    """Length of each cable."""
    devices_forward: bool
    """Whether devices forward messages."""
    tie_break: str
    """`first` or `hash`."""


GraphHop = tuple[int, int]
"""The next vertex, and 2 c or 2 c + 1 for the cable c to it."""


DistanceMap = dict[int, tuple[float, int, int]]
"""By vertex: distance and hops to a device, the last vertex between."""


class ShortestPaths:
    """Shortest paths on a graph, found when they are asked for."""

    def __init__(self, graph: PlatformGraph) -> None:
        self._graph = graph
        # By vertex where its cables lead, in the order of the file.
        hops: list[list[GraphHop]] = [[] for _ in graph.names]
        for cable, (low, high) in enumerate(graph.edges):
            hops[low].append((high, 2 * cable))
            hops[high].append((low, 2 * cable + 1))
        self._hops = [sorted(each) for each in hops]
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def paths(self, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
        """Return the cables of each path, 2 c forwards and 2 c + 1 backwards.

        Args:
            pairs: devices, from and to.

        Raises:
            BadInput: two devices are not joined.
        """
        # By target, since one search from it finds the paths of all sources.
        asked, first = list(pairs), self._graph.tie_break == "first"
        wanted: dict[int, set[int]] = {}
        for a, b in set(asked) - self._known.keys():
            low, high = sorted((a, b)) if first else (a, b)
            wanted.setdefault(high, set()).add(low)
        for target, sources in wanted.items():
            left = self._distances(target, sources)
            for source in sources:
                at, way = source, []
                while at != target:
                    hops = self._shortest_hops(at, left)
                    # Of equally short paths the one whose last vertex, in the order of
                    # the file, comes first; of those, seen from the device with the
                    # lower number, the one whose next vertex comes first. That is what
                    # Floyd's algorithm keeps. Under `hash` each next vertex is drawn by
                    # a hash of both devices instead, as ECMP does.
                    if first:
                        at, hop = min(
                            hops, key=lambda hop: (_last_vertex(hop, left), hop)
                        )
                    else:
                        # Another key for each, with numbers below 2**21.
                        key = (source << 42) + (target << 21) + hops[0][0]
                        drawn = int(splitmix64(np.array([key]))[0])
                        at, hop = hops[drawn % len(hops)]
                    way.append(hop)
                self._known[source, target] = tuple(way)
                if first:  # the way back is the same way
                    self._known[target, source] = tuple(
                        hop ^ 1 for hop in reversed(way)
                    )
        return [self._known[pair] for pair in asked]

    def _distances(self, target: int, sources: set[int]) -> DistanceMap:
        """Return distances to a device (Dijkstra) until all sources are reached."""
        left: DistanceMap = {}
        heap, missing = [(0.0, 0, target)], set(sources)
        while heap and missing:
            length, hops, vertex = heapq.heappop(heap)
            if vertex in left:
                continue
            # The entry is needed for the lookup of its own hops, and completed after
            # it.
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
            names, alone = self._graph.names, not self._graph.devices_forward
            raise BadInput(
                f"no way from {names[min(missing)]} to {names[target]}",
                rule="cables join all devices" + ", over switches alone" * alone,
                values=f"{len(self._graph.edges)} cables, {len(names)} vertices",
                remedy="a cable between them" + ", or devices_forward: true" * alone,
            )
        return left

    def _shortest_hops(self, vertex: int, left: DistanceMap) -> list[GraphHop]:
        """List the hops from a vertex that are on shortest paths."""
        length, hops, _ = left[vertex]
        found = []
        for other, hop in self._hops[vertex]:
            rest, fewer, _ = left.get(other, (0.0, hops, 0))
            # A path may end at a device, but passes through one only where it forwards.
            through = fewer == 0 or self._forwards(other)
            way = rest + self._graph.costs[hop // 2]
            if through and fewer == hops - 1 and way <= length * (1 + _TOLERANCE):
                found.append((other, hop))
        return found

    def _forwards(self, vertex: int) -> bool:
        return self._graph.devices_forward or vertex >= self._graph.devices


def _last_vertex(hop: GraphHop, left: DistanceMap) -> int:
    """Return the last vertex between, on the path by a hop; -1 if it is the end."""
    vertex, _ = hop
    _, hops, last = left[vertex]
    return max(vertex, last) if hops else -1
