"""The host groups of a cluster that ranks of the pipe axis, and collectives, are on.

A device at place p of the placement's order has the coordinate

    (p // stride(axis)) mod size(axis)

along an axis. Groups are ranges of places, so those of a rank of the pipe axis are the
ranges with a place of that coordinate. The devices of one collective have all other
coordinates in common: subtracting its own leaves a place that tells them from others.
"""

from typing import Final

import numpy as np

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.cluster.host_group import HostGroup, distinct_devices
from jaxdist.core.plan.placement import MeshPlacement

_PIPE: Final = "pipe"


def rank_groups(
    cluster: Cluster, placed: MeshPlacement, pipe_rank: int | None = None
) -> tuple[HostGroup, ...]:
    """Return the groups that the devices of a rank of the pipe axis are of.

    Args:
        cluster: the machines, with as many devices as the mesh.
        placed: the mesh on devices.
        pipe_rank: the rank; None: the devices of all ranks.

    Raises:
        BadInput: the placement names a group that the cluster has not.
    """
    if len(cluster.groups) == 1 and not placed.host_order:
        return cluster.groups
    stride, size = placed.place(_PIPE)
    found = []
    for group, places in cluster.group_ranges(placed.host_order):
        used = range(places.start, min(places.stop, placed.mesh.devices))
        if not used:
            continue
        # After `size` strides every rank has come by.
        first, last = used[0] // stride, used[-1] // stride
        ranks = {block % size for block in range(first, min(last, first + size) + 1)}
        if pipe_rank is None or pipe_rank in ranks:
            found.append(group)
    return tuple(found)


def rank_devices(
    cluster: Cluster, placed: MeshPlacement, pipe_rank: int | None = None
) -> tuple[Device, ...]:
    """Return the kinds of devices of a rank, each once, as `rank_groups`."""
    groups = rank_groups(cluster, placed, pipe_rank)
    return distinct_devices(map(cluster.device_of, groups))


def collective_groups(
    cluster: Cluster,
    placed: MeshPlacement,
    axes: tuple[str, ...],
    pipe_rank: int | None = None,
) -> tuple[tuple[HostGroup, ...], ...]:
    """Return the sets of groups that collectives along some axes have devices of.

    Args:
        cluster: as of `rank_groups`.
        placed: as of `rank_groups`.
        axes: along which they communicate, or parts of axes.
        pipe_rank: rank of the pipe axis whose collectives are meant; of those along the
            pipe axis all are.
    """
    places = np.arange(placed.mesh.devices)
    ranges = cluster.group_ranges(placed.host_order)
    own = np.searchsorted([own.stop for _, own in ranges], places, side="right")
    root = places.copy()
    for stride, size in map(placed.place, axes):
        root -= places // stride % size * stride
    # A set of groups is a number with a bit for each of them.
    sets = np.zeros(len(places), int)
    np.bitwise_or.at(sets, root, 1 << own)
    if pipe_rank is not None and all(not axis.startswith(_PIPE) for axis in axes):
        stride, size = placed.place(_PIPE)
        sets = sets[places // stride % size == pipe_rank]
    return tuple(
        tuple(group for i, (group, _) in enumerate(ranges) if bits >> i & 1)
        for bits in np.unique(sets)
        if bits
    )
