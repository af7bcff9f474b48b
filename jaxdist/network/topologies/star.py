"""Star: every endpoint on one switch that carries everything at once."""

from jaxdist.network.routes import IntArray
from jaxdist.network.topologies.fabric import (
    CableSpec,
    Fabric,
    stack_hops,
    uniform_cables,
)


def star(endpoints: int, cable: CableSpec) -> Fabric:
    """Return a star.

    Args:
        endpoints: number of them, a cable each.
        cable: kind of the cables.

    >>> import numpy as np
    >>> star(4, CableSpec()).route_fn(np.array([0]), np.array([3])).tolist()
    [[0, 7]]
    """
    capacity, latency = uniform_cables(endpoints, cable)
    return Fabric(
        name="star",
        endpoints=endpoints,
        capacity=capacity,
        latency=latency,
        route_fn=single_switch_routes,
        ports=endpoints,
        switches=1,
        injection_bandwidth=cable.bandwidth,
        per_switch=endpoints,
    )


def single_switch_routes(sources: IntArray, targets: IntArray) -> IntArray:
    """Return routes over one switch: up the source's cable, down the target's."""
    return stack_hops(2 * sources, 2 * targets + 1)
