"""A fabric: cables between endpoints and switches, before directions become links."""

from dataclasses import dataclass

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.network.routes import FloatArray, IntArray
from jaxdist.network.topology import RouteFn


@dataclass(frozen=True, kw_only=True)
class CableSpec:
    """Bandwidth and latency of a kind of cable."""

    bandwidth: float = 12.5e9
    """Bytes a second, each way."""
    latency: float = 5e-7
    """Seconds."""


# A cable c is 2 c forwards and 2 c + 1 backwards. Whether both are links of their own,
# or share one, is decided when a fabric becomes a topology.
@dataclass(frozen=True, eq=False, kw_only=True)
class Fabric:
    """Cables between endpoints 0 to E-1 and switches."""

    name: str
    """Description in a few words."""
    endpoints: int
    """E."""
    capacity: FloatArray
    """`[C]`, bytes a second of each cable."""
    latency: FloatArray
    """`[C]`, seconds of each cable."""
    route_fn: RouteFn
    """Routes between endpoints, 2 c or 2 c + 1 for each cable c."""
    ports: int
    """Cables at the busiest switch, or at an endpoint where there is none."""
    switches: int
    """Number of switches."""
    injection_bandwidth: float
    """Bytes a second that an endpoint can send while it receives as many."""
    host_injection_bandwidth: float = 0.0
    """The same of a host of several endpoints, over its network cards."""
    per_switch: int = 1
    """Endpoints below one switch, which are neighbours in number."""


def uniform_cables(count: int, cable: CableSpec) -> tuple[FloatArray, FloatArray]:
    """Return bandwidths and latencies of so many cables of one kind."""
    return np.full(count, cable.bandwidth), np.full(count, cable.latency)


def stack_hops(*columns: IntArray) -> IntArray:
    """Return the hops of each message as a row.

    >>> stack_hops(np.array([0, 2]), np.array([1, 3])).tolist()
    [[0, 1], [2, 3]]
    """
    return np.stack(columns, axis=1)


def check_positive(name: str, value: int, owner: str) -> int:
    """Return a number that is at least 1.

    Raises:
        BadInput: it is not.
    """
    if value < 1:
        raise BadInput(
            f"{owner} cannot have {name}={value}",
            rule=f"{name} is at least 1",
            values=f"{name}={value}",
            remedy=f"{name}=1",
        )
    return value
