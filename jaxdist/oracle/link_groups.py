"""The devices of some mesh axes, and the links of a cluster that they share.

Devices stand in the order of the mesh, or of the plan's placement, the innermost axis
side by side, and fill one unit of a level after the other: a host, then the next one.

    stride(axis) = product of the sizes of the axes inside it
    span(axes)   = stride * size of the outermost: devices from the first to the last
    level(axes)  = the innermost level with a unit of at least `span` devices
    rate(axes)   = least over levels up to that one of
                   bandwidth of a unit below / rings that leave it / oversubscription

As many rings leave a unit as the group's devices in it fit times into the unit. Where
links differ between hosts the slowest of those that take part counts:

    rate  = least over the host groups g of the collectives, of rate with the links of
            g, and of bandwidth between two of them / rings that leave a host
    alpha = greatest of the same
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.host_group import HostGroup
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.rank_devices import collective_groups
from jaxdist.oracle.step_description import StepDescription


@dataclass(frozen=True, kw_only=True)
class LinkGroup:
    """The devices of one collective, and the links that they share."""

    size: int
    """Devices of one group."""
    level: str
    """Name of the level whose links the slowest step crosses."""
    alpha: float
    """Latency of a message, seconds."""
    bandwidth: float
    """Bytes a second that one device of the group sends while all groups send."""
    collective_costs: tuple[CollectiveCost, ...] = ()
    """Measured costs of collectives among as many devices, the most alike first."""

    def collective_cost(self, kind: str) -> CollectiveCost | None:
        """Return the measured cost of a kind of collective, placed most alike."""
        return next((line for line in self.collective_costs if line.kind == kind), None)


def link_group(
    cluster: Cluster,
    placed: MeshPlacement,
    axes: Iterable[str],
    pipe_rank: int | None = None,
) -> LinkGroup:
    """Return the group of some axes.

    Args:
        cluster: machines.
        placed: devices along each axis, and their order on the cluster.
        axes: names of axes, or of parts of them.
        pipe_rank: rank of the pipe axis whose links count; None: the slowest of all.

    Raises:
        BadInput: the cluster has fewer devices than the mesh.
    """
    names = tuple(axes)
    places = [placed.place(name) for name in names]
    # Strides count devices in the order of placement, so the group lies within this
    # many neighbouring devices.
    span = max((stride * size for stride, size in places), default=1)
    size = math.prod(size for _, size in places)
    crossed = cluster.levels[: cluster.level_of(span) + 1]

    def devices_inside(unit: int) -> int:
        """Return how many devices of the group share a unit of so many."""
        return math.prod(min(n, max(1, unit // stride)) for stride, n in places)

    def rings(unit: int) -> int:
        """Return how many groups share what leaves a unit of so many devices."""
        # Devices of the group that share a unit: their ring leaves the unit once. The
        # unit's other devices form rings of their own, which compete for the same
        # links at the same time.
        return max(1, min(unit, placed.mesh.devices) // devices_inside(unit))

    units = (1, *cluster.sizes)[: len(crossed)]
    inside = devices_inside(units[-1])
    alphas, rates = [], []
    together: tuple[tuple[HostGroup, ...], ...] = (cluster.groups[:1],)
    # Without uneven links any group stands for all.
    if cluster.has_uneven_links:
        together = collective_groups(cluster, placed, names, pipe_rank)
    for group in {one.name: one for some in together for one in some}.values():
        levels = cluster.levels_of(group)[: len(crossed)]
        alphas.append(levels[-1].alpha.value)
        rates += [
            level.bandwidth.value / rings(unit) / level.oversubscription.value
            for level, unit in zip(levels, units, strict=True)
        ]
    met = [{one.name for one in some} for some in together]
    for link in cluster.inter_group_links:
        if not any({*link.groups} <= some for some in met):
            continue
        if link.alpha is not None:
            alphas.append(link.alpha.value)
        if link.bandwidth is not None:
            rates.append(link.bandwidth.value / rings(cluster.host_devices))
    # A measured cost is of a number of devices. Groups of as many may lie differently
    # over hosts, so the costs are sorted by how alike they lie.
    lines = (line for line in crossed[-1].lines if line.devices == size)
    return LinkGroup(
        size=size,
        level=crossed[-1].name,
        alpha=max(alphas),
        bandwidth=min(rates),
        collective_costs=tuple(sorted(lines, key=lambda line: line.apart(inside))),
    )


def collective_link_groups(
    case: StepDescription, cluster: Cluster
) -> dict[str, LinkGroup]:
    """Return the group of each set of axes along which a step communicates.

    Args:
        case: the step.
        cluster: machines, with as many devices as the plan.

    Returns:
        Groups by the names of their axes, `data x spatial_h`.
    """
    rows = [row for ledger in case.ledgers for row in ledger.rows]
    # An outer loop (local SGD) communicates between replicas beside the step's own
    # rows.
    rows += [
        r for ledger in case.ledgers for sync in ledger.outer_syncs for r in sync.rows
    ]
    placed, axes = case.plan.placed, dict.fromkeys(row.axes for row in rows)
    return {" x ".join(names): link_group(cluster, placed, names) for names in axes}
