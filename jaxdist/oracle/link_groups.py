"""Groups: the devices of some mesh axes, and the links of a cluster they share.

Devices stand in the order of the mesh, or of the plan's placement, the innermost axis
side by side, and fill one unit of a level after the other: a host, then the next one.

    stride(axis) = product of the sizes of the axes inside it
    span(axes)   = stride * size of the outermost: devices from the first to the last
    level(axes)  = the innermost level with a unit of at least `span` devices
    rate(axes)   = least over levels up to that one of
                   bandwidth of a unit below / rings that leave it / oversubscription

As many rings leave a unit as the group's devices in it fit times into the unit. Lines
of that level are of groups with as many devices; those come first that lie most alike,
with as many of them in a unit below.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.level import Level
from jaxdist.core.plan.placement import MeshPlacement


@dataclass(frozen=True, kw_only=True)
class LinkGroup:
    """Devices that take part in a collective together, and what they have for it."""

    size: int
    """Devices of one group."""
    level: str
    """Name of the level whose links the slowest step crosses."""
    alpha: float
    """Seconds that a message takes without its bytes."""
    bandwidth: float
    """Bytes a second that one device of the group sends, all groups at once."""
    collective_costs: tuple[CollectiveCost, ...] = ()
    """What was measured of collectives among as many devices, the most alike first."""

    def collective_cost(self, kind: str) -> CollectiveCost | None:
        """Return what was measured of a kind of collective, lying most alike."""
        return next((line for line in self.collective_costs if line.kind == kind), None)


def link_group(
    cluster: Cluster, placed: MeshPlacement, axes: Iterable[str]
) -> LinkGroup:
    """Return the group of some axes.

    Args:
        cluster: machines.
        placed: devices along each axis, and how these lie.
        axes: names of axes, or of parts of them.

    Raises:
        BadInput: the cluster has fewer devices than the mesh.
    """
    places = [placed.place(name) for name in axes]
    span = max((stride * size for stride, size in places), default=1)
    size = math.prod(size for _, size in places)
    crossed = cluster.levels[: cluster.level_of(span) + 1]
    units = (1, *cluster.sizes)
    rates = (
        _ring_bandwidth(level, unit, min(unit, placed.mesh.devices), places)
        for level, unit in zip(crossed, units, strict=False)
    )
    inside = math.prod(
        _devices_in_unit(units[len(crossed) - 1], *place) for place in places
    )
    lines = (line for line in crossed[-1].lines if line.devices == size)
    return LinkGroup(
        size=size,
        level=crossed[-1].name,
        alpha=crossed[-1].alpha.value,
        bandwidth=min(rates),
        collective_costs=tuple(sorted(lines, key=lambda line: line.apart(inside))),
    )


def _ring_bandwidth(
    level: Level, unit: int, devices: int, places: Sequence[tuple[int, int]]
) -> float:
    """Return the bytes a second that one ring has of a level's links.

    Args:
        level: whose links.
        unit: devices in a unit below it.
        devices: those of them that the mesh uses.
        places: stride and size of the ring's axes.
    """
    inside = math.prod(_devices_in_unit(unit, *place) for place in places)
    rings = max(1, devices // inside)
    return level.bandwidth.value / rings / level.oversubscription.value


def _devices_in_unit(unit: int, stride: int, size: int) -> int:
    """Return the devices of an axis that lie in the same unit."""
    return min(size, max(1, unit // stride))
