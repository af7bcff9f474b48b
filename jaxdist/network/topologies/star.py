"""Star: every endpoint on one switch that carries everything at once."""

from jaxdist.network.routes import IntArray
from jaxdist.network.topologies.fabric import CableSpec, Fabric, beside, same


def star(endpoints: int, cable: CableSpec) -> Fabric:
    """Return a star.

    Args:
        endpoints: number of them, a cable each.
        cable: kind of the cables.

    >>> import numpy as np
    >>> star(4, CableSpec()).walk(np.array([0]), np.array([3])).tolist()
    [[0, 7]]
    """
    capacity, latency = same(endpoints, cable)
    return Fabric(
        name="star",
        endpoints=endpoints,
        capacity=capacity,
        latency=latency,
        walk=up_and_down,
        ports=endpoints,
        switches=1,
        injection=cable.bandwidth,
        per_switch=endpoints,
    )


def up_and_down(sources: IntArray, targets: IntArray) -> IntArray:
    """Return the ways over one switch: up the source's cable, down the target's."""
    return beside(2 * sources, 2 * targets + 1)
