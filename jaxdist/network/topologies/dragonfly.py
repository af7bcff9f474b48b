"""Dragonfly: groups of routers, all joined within a group, and groups joined once.

p endpoints a router, a routers a group, h cables from each router to other groups; up
to a h + 1 groups, each joined to each. Cable k of a group, counted over its routers,
leads to group k, or k + 1 from its own number on. A message goes the least way: to the
router that has the cable, over it, and to the target's router.

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
    p = _positive_or_default("per_router", per_router, _balanced_p(endpoints))
    a = _positive_or_default("routers", routers, 2 * p)
    h = _positive_or_default("global_cables", global_cables, p)
    groups = -(-endpoints // (p * a))
    if groups > a * h + 1:
        raise BadInput(
            f"{endpoints:,} endpoints do not fit on a dragonfly",
            rule="there are at most a h + 1 groups, of p a endpoints each",
            values=f"per_router={p}, routers={a}, global_cables={h}: "
            f"{p * a * (a * h + 1):,} endpoints",
            remedy=f"per_router={_balanced_p(endpoints)}",
        )
    far = replace(
        cable,
        bandwidth=global_bandwidth or cable.bandwidth,
        latency=cable.latency if global_latency is None else global_latency,
    )
    kinds = zip(
        uniform_cables(endpoints, cable),
        uniform_cables(groups * a * a, cable),
        uniform_cables(groups * groups, far),
    )
    capacity, latency = (np.concatenate(columns) for columns in kinds)

    def walk(sources: IntArray, targets: IntArray) -> IntArray:
        first, last = sources // p, targets // p
        home, goal = first // a, last // a
        crosses = home != goal
        gate = np.where(crosses, home * a + _gateway_router(home, goal, h), last)
        entry = np.where(crosses, goal * a + _gateway_router(goal, home, h), last)
        inner = (
            _local_cable(first, gate, a, endpoints),
            np.where(
                crosses,
                _global_cable(home, goal, groups, endpoints + groups * a * a),
                -1,
            ),
            np.where(crosses, _local_cable(entry, last, a, endpoints), -1),
        )
        ends = single_switch_routes(sources, targets)
        return np.insert(ends, [1, 1, 1], np.stack(inner, axis=1), axis=1)

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


def _positive_or_default(name: str, value: int | None, default: int) -> int:
    return check_positive(name, default if value is None else value, "a dragonfly")


def _gateway_router(home: IntArray, goal: IntArray, h: int) -> IntArray:
    """Return the router of a group that has the cable to another group."""
    return (goal - (goal > home)) // h


def _local_cable(one: IntArray, other: IntArray, a: int, before: int) -> IntArray:
    """Return the cable between two routers of a group, -1 from one to itself."""
    low, high = np.minimum(one, other), np.maximum(one, other)
    cable = before + low * a + high % a
    return np.where(one == other, -1, 2 * cable + (one > other))


def _global_cable(home: IntArray, goal: IntArray, groups: int, before: int) -> IntArray:
    low, high = np.minimum(home, goal), np.maximum(home, goal)
    return 2 * (before + low * groups + high) + (home > goal)


def _balanced_p(endpoints: int) -> int:
    """Return the least p whose balanced dragonfly has room for so many endpoints."""
    p = 1
    while 2 * p * p * (2 * p * p + 1) < endpoints:
        p += 1
    return p
