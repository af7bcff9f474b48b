"""Fat tree of two levels: endpoints on leaves, every leaf on every spine.

With h endpoints and u uplinks a leaf it is oversubscribed by h / u.

Source: Leiserson 1985, "Fat-trees: universal networks for hardware-efficient
supercomputing", IEEE Trans. Comput. 34(10); Zahavi 2012, "Fat-tree routing and node
ordering providing contention free traffic for MPI global collectives", J. Parallel
Distrib. Comput. 72(11) (D-mod-k).
"""

from dataclasses import replace

import numpy as np

from jaxdist.core.errors import unknown_name_error
from jaxdist.network.routes import IntArray
from jaxdist.network.topologies.fabric import (
    CableSpec,
    Fabric,
    check_positive,
    stack_hops,
    uniform_cables,
)
from jaxdist.network.topologies.star import single_switch_routes

ROUTINGS = ("dmodk", "ecmp")


def fat_tree(
    endpoints: int,
    cable: CableSpec,
    *,
    per_leaf: int | None = None,
    uplinks: int | None = None,
    oversubscription: int = 1,
    routing: str = "dmodk",
    seed: int = 0,
    uplink_bandwidth: float | None = None,
) -> Fabric:
    """Return a fat tree.

    Args:
        endpoints: number of them; the last leaf may have fewer than the others.
        cable: kind of the cables.
        per_leaf: endpoints of a leaf, h; without it the largest power of two that is
            not above √E.
        uplinks: cables from a leaf to the spines, u, one to each; without it
            h / oversubscription.
        oversubscription: h / u.
        routing: `dmodk` or `ecmp`.
        seed: of the hash, under `ecmp`.
        uplink_bandwidth: bytes a second of the cables to the spines, if other.

    Raises:
        BadInput: no such routing, or numbers that make no tree.
    """
    if routing not in ROUTINGS:
        raise unknown_name_error("routing", routing, ROUTINGS, "routing=dmodk")
    # The largest power of two up to the square root: about as many leaves as endpoints
    # of a leaf.
    square = 1 << ((endpoints.bit_length() - 1) // 2)
    wide = square if per_leaf is None else per_leaf
    fewer = check_positive("oversubscription", oversubscription, "a fat tree")
    spines = check_positive("per_leaf", wide, "a fat tree") // fewer
    spines = check_positive(
        "uplinks", spines if uplinks is None else uplinks, "a fat tree"
    )
    leaves = -(-endpoints // wide)
    up = replace(cable, bandwidth=uplink_bandwidth or cable.bandwidth)
    kinds = zip(uniform_cables(endpoints, cable), uniform_cables(leaves * spines, up))
    capacity, latency = (np.concatenate(columns) for columns in kinds)

    def walk(sources: IntArray, targets: IntArray) -> IntArray:
        # Which spine carries a message: by D-mod-k, so that the messages of different
        # targets part; or by ECMP, a hash of both ends, which does not know of others.
        if routing == "dmodk":
            spine = targets % spines
        else:
            keys = sources * np.int64(1 << 32) + targets + np.int64(seed) * 7919
            spine = splitmix64(keys) % spines
        first, last = sources // wide, targets // wide
        ends = single_switch_routes(sources, targets)
        # Up the leaf of the source to the spine, down from it to the leaf of the
        # target; endpoints of one leaf do not leave it.
        rise = 2 * (endpoints + first * spines + spine)
        fall = 2 * (endpoints + last * spines + spine) + 1
        inner = np.where((first == last)[:, None], -1, stack_hops(rise, fall))
        return np.insert(ends, [1, 1], inner, axis=1)

    return Fabric(
        name=f"fat tree {wide}:{spines}, {routing}",
        endpoints=endpoints,
        capacity=capacity,
        latency=latency,
        route_fn=walk,
        # A leaf has its endpoints and its uplinks, a spine a cable to each leaf.
        ports=max(wide + spines, leaves),
        switches=leaves + spines,
        injection_bandwidth=cable.bandwidth,
        per_switch=wide,
    )


def splitmix64(keys: IntArray) -> IntArray:
    """Hash each key (SplitMix64) to an integer that is not negative."""
    bits = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return ((bits ^ (bits >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
