"""Traffic: the messages of a step, and what they ask of a topology's links."""

from dataclasses import dataclass

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.network.bandwidth_sharing import LinkDemand
from jaxdist.network.protocol_overheads import ProtocolOverheads
from jaxdist.network.routes import FloatArray, IntArray, Routes
from jaxdist.network.topology import Topology

SHARING_RULES = ("maxmin", "rtt")
"""How links are shared: in equal parts, or in parts of 1 / latency."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MessageBatch:
    """Messages that start together."""

    sources: IntArray
    """`[F]`, devices that send."""
    targets: IntArray
    """`[F]`, devices that receive."""
    size: FloatArray
    """`[F]`, bytes."""

    @classmethod
    def empty(cls) -> "MessageBatch":
        """Return no messages at all."""
        nobody = np.zeros(0, np.int64)
        return cls(sources=nobody, targets=nobody, size=np.zeros(0))


@dataclass(frozen=True, eq=False, kw_only=True)
class RoutedMessages:
    """Messages with their ways: all that sharing and time depend on."""

    routes: Routes
    """The ways there."""
    demand: LinkDemand
    """What is asked of links, ways back included where they count."""
    start: FloatArray
    """`[F]`, seconds until bytes begin to flow."""
    size: FloatArray
    """`[F]`, bytes."""


def route_messages(
    topology: Topology,
    messages: MessageBatch,
    overheads: ProtocolOverheads,
    sharing: str,
) -> RoutedMessages:
    """Lay messages on a topology.

    Args:
        topology: has the devices.
        messages: F messages.
        overheads: what a protocol makes of links.
        sharing: `maxmin` or `rtt`.

    Raises:
        BadInput: shares by round trip, where a way has no latency at all.
    """
    size = messages.size
    ways = topology.routes(messages.sources, messages.targets)
    latency = ways.path_sum(topology.latency)
    start = latency * overheads.latency_factor(size)
    most = ways.path_min(topology.capacity) * overheads.bandwidth_factor(size)
    window = np.full(size.size, np.inf)
    np.divide(overheads.window_bytes, 2 * latency, out=window, where=latency > 0)
    back = (
        topology.routes(messages.targets, messages.sources)
        if overheads.reverse_load
        else None
    )
    flow, link, use = _link_crossings(ways, back, overheads.reverse_load)
    demand = LinkDemand(
        flow=flow,
        link=link,
        link_load=use,
        weight=_sharing_weights(topology, ways, latency, overheads, sharing),
        max_rate=np.minimum(most, window),
    )
    return RoutedMessages(routes=ways, demand=demand, start=start, size=size)


def _link_crossings(
    ways: Routes, back: Routes | None, part: float
) -> tuple[IntArray, IntArray, FloatArray]:
    if back is None:
        return ways.flow, ways.link, np.ones(ways.flow.size)
    flow = np.concatenate((ways.flow, back.flow))
    order = np.argsort(flow, kind="stable")
    link = np.concatenate((ways.link, back.link))
    use = np.repeat((1.0, part), (ways.flow.size, back.flow.size))
    return flow[order], link[order], use[order]


def _sharing_weights(
    topology: Topology,
    ways: Routes,
    latency: FloatArray,
    factors: ProtocolOverheads,
    sharing: str,
) -> FloatArray:
    if sharing == "maxmin":
        return np.ones(latency.size)
    trip = latency + factors.hop_bytes * ways.path_sum(1 / topology.capacity)
    if not (trip > 0).all():
        raise BadInput(
            "links cannot be shared by round trip where a way has no latency",
            rule="--sharing rtt shares a link in parts of 1 / latency",
            values=f"{int((trip <= 0).sum())} messages cross links of 0 s only",
            remedy=("--sharing maxmin", "a latency for each link of the platform"),
        )
    # In parts of the shortest, so that sums of them stay near 1.
    return np.asarray(trip.min() / trip)
