"""A topology: devices, links between them, and the route of every message."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxdist.network.routes import FloatArray, IntArray, Routes, routes_from_hops

RouteFn = Callable[[IntArray, IntArray], IntArray]
"""From sources and targets `[F]` to the links of each route, `[F, H]`, -1 for none."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Topology:
    """What carries messages between devices 0 to D-1."""

    name: str
    """Description in a few words."""
    devices: int
    """D; ranks are placed on the first of them unless a placement says otherwise."""
    capacity: FloatArray
    """`[L]`, bytes a second of each link."""
    latency: FloatArray
    """`[L]`, seconds of each link."""
    route_fn: RouteFn
    """Routes, by arithmetic instead of a search."""
    ports: int
    """Cables at the busiest switch, or at a device where there is no switch."""
    switches: int
    """Number of switches."""
    injection_bandwidth: float
    """Bytes a second that a device can send while it receives as many."""
    host_injection_bandwidth: float = 0.0
    """The same of a host over its network cards; 0 where hosts are not modelled."""
    per_host: int = 1
    """Devices of a host, which are neighbours in number."""
    per_switch: int = 1
    """Devices below one switch, which are neighbours in number."""
    reduce_s_per_byte: float = 0.0
    """Seconds a byte that a device takes to add what it received."""
    merge_s_per_entry: float = 0.0
    """Seconds an entry that it takes to merge sparse lists."""

    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the route of each message.

        Args:
            sources: `[F]`, devices that send.
            targets: `[F]`, devices that receive, none of them its own source.
        """
        return routes_from_hops(self.route_fn(sources, targets))
