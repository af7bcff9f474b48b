"""Lower bound: the least time of an all-reduce, for the links of the devices.

A sum needs every rank to send 2 (P-1)/P S bytes, whatever the schedule. A device whose
links take r bytes a second needs 2 (P-1)/P S / r.

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", J. Parallel Distrib. Comput. 69(2).
"""

from jaxdist.network.topology import Topology


def bandwidth_lower_bound(topology: Topology, ranks: int, size: float) -> float:
    """Return the seconds of the bound.

    Args:
        topology: has the links.
        ranks: P, which fill hosts in their order.
        size: bytes S of the array.

    >>> from jaxdist.network.topologies.registry import make_topology
    >>> topology = make_topology("dln", 1024, {})
    >>> round(1e3 * bandwidth_lower_bound(topology, 1024, 2.0**26), 3)
    10.727
    """
    hosts = ranks // topology.per_host
    bounds = [(ranks, topology.injection_bandwidth)]
    # A host of several devices is to the others like one, with the rate of its network
    # cards.
    if topology.host_injection_bandwidth and hosts > 1:
        bounds.append((hosts, topology.host_injection_bandwidth))
    return max(
        2 * (parts - 1) / parts * size / rate if parts > 1 else 0.0
        for parts, rate in bounds
    )
