"""Dragonfly: groups of routers, all joined within a group, and groups joined once.

p endpoints a router, a routers a group, h cables from each router to other groups; up
to a h + 1 groups, each joined to each.

Source: Kim et al. 2008, "Technology-driven, highly-scalable dragonfly topology", ISCA
(balanced: a = 2 p = 2 h; minimal routing).
"""

from dataclasses import replace

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.network.routes import IntArray
from jaxdist.network.topologies.fabric import (
    CableSpec,
    Fabric,
    check_positive,
    stack_hops,
    uniform_cables,
)
from jaxdist.network.topologies.star import single_switch_routes


def dragonfly(
    endpoints: int,
    cable: CableSpec,
    *,
    per_router: int | None = None,
    routers: int | None = None,
    global_cables: int | None = None,
    global_bandwidth: float | None = None,
    global_latency: float | None = None,
) -> Fabric:
    """Return a dragonfly with as many groups as the endpoints need.

    Args:
        endpoints: number of them; the last router may have fewer than the others.
        cable: kind of the cables.
        per_router: endpoints of a router, p; without it the least balanced one.
        routers: routers of a group, a; without it 2 p.
        global_cables: cables of a router to other groups, h; without it p.
        global_bandwidth: bytes a second of cables between groups, if other.
        global_latency: seconds of cables between groups, if other.

    Raises:
        BadInput: more endpoints than it has room for.
    """
    # The least p whose balanced dragonfly has room for so many endpoints.
    balanced = 1
    while 2 * balanced**2 * (2 * balanced**2 + 1) < endpoints:
        balanced += 1
    p = balanced if per_router is None else per_router
    check_positive("per_router", p, "a dragonfly")
    a = check_positive("routers", 2 * p if routers is None else routers, "a dragonfly")
    h = p if global_cables is None else global_cables
    check_positive("global_cables", h, "a dragonfly")
    groups = -(-endpoints // (p * a))
    if groups > a * h + 1:
        raise BadInput(
            f"{endpoints:,} endpoints do not fit on a dragonfly",
            rule="there are at most a h + 1 groups, of p a endpoints each",
            values=f"per_router={p}, routers={a}, global_cables={h}: "
            f"{p * a * (a * h + 1):,} endpoints",
            remedy=f"per_router={balanced}",
        )
    # Cables between groups are long, and may be of another kind.
    far = replace(
        cable,
        bandwidth=global_bandwidth or cable.bandwidth,
        latency=cable.latency if global_latency is None else global_latency,
    )
    # Cables of endpoints, of router pairs in a group, of pairs of groups: arrays of all
    # pairs, of which some are not used.
    kinds = zip(
        uniform_cables(endpoints, cable),
        uniform_cables(groups * a * a, cable),
        uniform_cables(groups * groups, far),
    )
    capacity, latency = (np.concatenate(columns) for columns in kinds)

    def walk(sources: IntArray, targets: IntArray) -> IntArray:
        # Minimal routing: to the router that has the cable to the other group, over it,
        # and to the target's router. Cable k of a group, counted over its routers,
        # leads to group k, or k + 1 from its own number on.
        first, last = sources // p, targets // p
        home, goal = first // a, last // a
        crosses = home != goal
        gate = np.where(crosses, home * a + (goal - (goal > home)) // h, last)
        entry = np.where(crosses, goal * a + (home - (home > goal)) // h, last)
        local = []
        for one, other in ((first, gate), (entry, last)):
            low, high = np.minimum(one, other), np.maximum(one, other)
            hop = 2 * (endpoints + low * a + high % a) + (one > other)
            local.append(np.where(one == other, -1, hop))
        low, high = np.minimum(home, goal), np.maximum(home, goal)
        far_cable = endpoints + groups * a * a + low * groups + high
        across = np.where(crosses, 2 * far_cable + (home > goal), -1)
        inner = stack_hops(local[0], across, np.where(crosses, local[1], -1))
        return np.insert(single_switch_routes(sources, targets), [1] * 3, inner, axis=1)

    return Fabric(
        name=f"dragonfly of {groups:,} groups, p={p}, a={a}, h={h}",
        endpoints=endpoints,
        capacity=capacity,
        latency=latency,
        route_fn=walk,
        ports=p + a - 1 + h,
        switches=groups * a,
        injection_bandwidth=cable.bandwidth,
        per_switch=p,
    )
