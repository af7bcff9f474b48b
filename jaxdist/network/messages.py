"""Messages of a step, and their demand on the links of a topology."""

from dataclasses import dataclass

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.network.bandwidth_sharing import LinkDemand
from jaxdist.network.protocol_overheads import ProtocolOverheads
from jaxdist.network.routes import FloatArray, IntArray, Routes
from jaxdist.network.topology import Topology

SHARING_RULES = ("maxmin", "rtt")
"""How flows share a link: equally, or with weights of 1 / latency."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MessageBatch:
    """Messages that start together."""

    sources: IntArray
    """`[F]`, devices that send."""
    targets: IntArray
    """`[F]`, devices that receive."""
    size: FloatArray
    """`[F]`, bytes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoutedMessages:
    """Messages with their routes: all that sharing and time depend on."""

    routes: Routes
    """From sources to targets."""
    demand: LinkDemand
    """Load on links, with the ways back where they count."""
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
    """Route messages over a topology.

    Args:
        topology: has the devices.
        messages: F messages.
        overheads: of the protocol.
        sharing: `maxmin` or `rtt`.

    Raises:
        BadInput: shares by round trip, where a route has no latency at all.
    """
    size = messages.size
    ways = topology.routes(messages.sources, messages.targets)
    latency = ways.path_sum(topology.latency)
    latency_factor, bandwidth_factor = overheads.factors(size)
    # Alone, a flow has the rate of its narrowest link, and at most a window a round
    # trip.
    most = ways.path_min(topology.capacity) * bandwidth_factor
    # A route without latency has no bound by a window.
    window = np.full(size.size, np.inf)
    np.divide(overheads.window_bytes, 2 * latency, out=window, where=latency > 0)

    flow, link, use = ways.flow, ways.link, np.ones(ways.flow.size)
    if overheads.reverse_load:
        back = topology.routes(messages.targets, messages.sources)
        flow = np.concatenate((ways.flow, back.flow))
        # Crossings have to ascend by flow, which both directions have in common.
        order = np.argsort(flow, kind="stable")
        counts = ways.flow.size, back.flow.size
        use = np.repeat((1.0, overheads.reverse_load), counts)[order]
        link = np.concatenate((ways.link, back.link))[order]
        flow = flow[order]

    weight = np.ones(size.size)
    if sharing != "maxmin":
        trip = latency + overheads.hop_bytes * ways.path_sum(1 / topology.capacity)
        if not (trip > 0).all():
            raise BadInput(
                "links cannot be shared by round trip where a way has no latency",
                rule="--bandwidth-sharing rtt shares a link in parts of 1 / latency",
                values=f"{int((trip <= 0).sum())} messages cross links of 0 s only",
                remedy=(
                    "--bandwidth-sharing maxmin",
                    "a latency for each link of the platform",
                ),
            )
        # Relative to the shortest trip, so that sums of weights stay near 1.
        weight = np.asarray(trip.min() / trip)
    demand = LinkDemand(
        flow=flow,
        link=link,
        link_load=use,
        weight=weight,
        max_rate=np.minimum(most, window),
    )
    start = latency * latency_factor
    return RoutedMessages(routes=ways, demand=demand, start=start, size=size)
