"""A topology from devices, switches and cables, as a platform file lists them."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from jaxdist.core.text.parsing import parse_bandwidth, parse_duration
from jaxdist.core.validation import check_fields
from jaxdist.network.platforms.graph import TIE_BREAKS, PlatformGraph, ShortestPaths
from jaxdist.network.platforms.parts import (
    DUPLEX_MODES,
    PlatformCable,
    PlatformVertex,
    YamlTable,
    check_ports,
    read_cables,
    read_choice,
    read_count,
    read_devices,
    read_flag,
    read_switches,
    vertex_indices,
)
from jaxdist.network.routes import IntArray
from jaxdist.network.topology import Topology

_TOP_LEVEL_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": (),
    "source": (),
    "devices": (),
    "switches": (),
    "cables": (),
    "kinds": (),
    "per_host": (),
    "adding": (),
    "merging": (),
    "duplex": DUPLEX_MODES,
    "routing": ("fewest_cables", "least_latency"),
    "ties": TIE_BREAKS,
    "switch_counts": ("once", "below"),
    "devices_forward": (),
}


def build_topology(tree: YamlTable, default_name: str) -> Topology:
    """Return the topology of a platform file.

    Args:
        tree: contents of the file.
        default_name: its name without a suffix.

    Raises:
        BadInput: a field that is not known, a name that is not there, quantities that
            cannot be.
    """
    check_fields(tree, tuple(_TOP_LEVEL_FIELDS), "the platform")
    words = {
        key: read_choice(tree, key, known)
        for key, known in _TOP_LEVEL_FIELDS.items()
        if known
    }
    vertices = [*read_devices(tree), *read_switches(tree)]
    places = vertex_indices(vertices)
    cables = list(read_cables(tree, places, words["duplex"]))
    check_ports(vertices, cables)
    links = LinkTable(vertices, cables, words["switch_counts"])
    devices = sum(vertex.is_device for vertex in vertices)
    # A route is short by its cables, or by its latency: of a cable with the switches at
    # its ends, in the slower direction.
    pairs = zip(links.hop_links[::2], links.hop_links[1::2])
    latencies = [
        max(sum(links.latency[link] for link in way) for way in ways) for ways in pairs
    ]
    fewest = words["routing"] == "fewest_cables"
    graph = PlatformGraph(
        names=tuple(vertex.name for vertex in vertices),
        devices=devices,
        edges=tuple((cable.source, cable.target) for cable in cables),
        costs=tuple(1.0 if fewest else seconds for seconds in latencies),
        devices_forward=read_flag(tree, "devices_forward"),
        tie_break=words["ties"],
    )
    paths = ShortestPaths(graph)

    def walk(sources: IntArray, targets: IntArray) -> IntArray:
        found = paths.paths(zip(sources.tolist(), targets.tolist()))
        rows = [[link for hop in way for link in links.hop_links[hop]] for way in found]
        # Rows of different lengths are padded with -1, as `routes_from_hops` expects.
        table = np.full((len(rows), max(map(len, rows), default=0)), -1)
        for row, way in zip(table, rows):
            row[: len(way)] = way
        return table

    # The injection bandwidth is that of the device that has the least.
    rates = np.zeros(devices)
    for cable in cables:
        for end in (cable.source, cable.target):
            if end < devices:
                # A cable that both directions share: as much is received meanwhile.
                rates[end] += cable.capacity / (2 if cable.shared else 1)
    # Ports are counted at switches, or at devices that are joined directly.
    switches = len(vertices) - devices
    degree = np.bincount([end for pair in graph.edges for end in pair])
    return Topology(
        name=str(tree.get("name", default_name)),
        devices=devices,
        capacity=np.array(links.capacity),
        latency=np.array(links.latency),
        route_fn=walk,
        ports=int(degree[devices:].max() if switches else degree.max()),
        switches=switches,
        injection_bandwidth=float(rates.min()),
        per_host=read_count(tree, "per_host", 1),
        reduce_s_per_byte=reduce_s_per_byte(tree),
        merge_s_per_entry=merge_s_per_entry(tree),
    )


def reduce_s_per_byte(tree: YamlTable) -> float:
    """Return the seconds a byte that a device takes to add what it received."""
    return 1 / parse_bandwidth(tree["adding"], "adding") if "adding" in tree else 0.0


def merge_s_per_entry(tree: YamlTable) -> float:
    """Return the seconds an entry that a device takes to merge sparse lists."""
    return parse_duration(tree["merging"], "merging") if "merging" in tree else 0.0


class LinkTable:
    """Links of cables and of switches, and which of them a hop crosses.

    `hop_links[2 c]` are the links of cable c forwards, `hop_links[2 c + 1]` backwards.
    """

    def __init__(
        self,
        vertices: Sequence[PlatformVertex],
        cables: Sequence[PlatformCable],
        counts: str,
    ) -> None:
        self.capacity: list[float] = []
        self.latency: list[float] = []
        inner = {
            place: self._add(vertex.capacity, vertex.latency)
            for place, vertex in enumerate(vertices)
            if np.isfinite(vertex.capacity) or vertex.latency
        }
        self.hop_links: list[tuple[int, ...]] = []
        for cable in cables:
            there = back = self._add(cable.capacity, cable.latency)
            if not cable.shared:
                back = self._add(cable.capacity, cable.latency)
            low, high = (
                (inner[end],) if end in inner else ()
                for end in (cable.source, cable.target)
            )
            # A hop crosses the backplane of the switch that it enters; under `below`
            # that of the switch above, both up to it and down from it.
            if counts == "below":
                self.hop_links += [(there, *high), (*high, back)]
            else:
                self.hop_links += [(there, *high), (back, *low)]

    def _add(self, capacity: float, latency: float) -> int:
        self.capacity.append(capacity)
        self.latency.append(latency)
        return len(self.capacity) - 1
