"""Levels of a measured cluster: what connects devices and hosts, by timed collectives.

alpha      of a message of an all-reduce
bandwidth  of the level = fitted bytes a second of a device x devices of a host
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.calibrate import alpha_beta_fit
from jaxdist.calibrate.alpha_beta_fit import AlgorithmSwitch, find_algorithm_switch
from jaxdist.calibrate.collective_timings import GroupTimings
from jaxdist.calibrate.hosts import DeviceGroup, HostTopology
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.cluster import Level
from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.collective_times import message_count
from jaxdist.oracle.link_groups import LinkGroup, link_group

# Stand-ins where nothing was measured: a message too short to tell, and the bytes a
# second of what connects a device with itself.
_MIN_ALPHA: Final = 1e-9
_MAX_BANDWIDTH: Final = 1e15
_NO_LINK: Final = alpha_beta_fit.AlphaBetaFit(
    alpha=_MIN_ALPHA, bandwidth=_MAX_BANDWIDTH, spread=0.0
)
# The collective whose fit gives a level's own alpha and bandwidth.
_ALL_REDUCE: Final = "all-reduce"


@dataclass(frozen=True, kw_only=True)
class LevelAllReduce:
    """The all-reduces that give a level its alpha and bandwidth."""

    level: str
    """Name of the level."""
    group: DeviceGroup
    """Groups that were timed."""
    timings: tuple[alpha_beta_fit.CollectiveTiming, ...]
    """Timings by size."""
    fit: alpha_beta_fit.AlphaBetaFit
    """Line through the timings."""
    switch: AlgorithmSwitch | None
    """Two lines, where they fit far better than one."""


@dataclass(frozen=True, kw_only=True)
class _LevelSpan:
    """A level before it is measured."""

    name: str
    size: int
    primary_group: DeviceGroup
    """Groups whose all-reduces give the level's own numbers."""
    groups: tuple[DeviceGroup, ...]
    """All groups that cross the level's links and no others."""


def timed_groups(
    topology: HostTopology, *, whole: bool = False
) -> tuple[DeviceGroup, ...]:
    """Return the groups that are timed, the innermost first.

    Args:
        topology: hosts that are measured.
        whole: whether only the group that gives each level its numbers is.
    """
    spans = _level_spans(topology)
    if whole:
        return tuple(span.primary_group for span in spans if span.groups)
    return tuple(group for span in spans for group in span.groups)


def level_all_reduces(
    topology: HostTopology, timings: Sequence[GroupTimings]
) -> tuple[LevelAllReduce, ...]:
    """Fit the all-reduces that give levels their numbers; none on one device."""
    found = []
    for span in _level_spans(topology):
        # Only all-reduces of the group that stands for the level: others have a cost
        # each.
        for chain in timings:
            if (chain.kind, chain.group) != (_ALL_REDUCE, span.primary_group):
                continue
            devices = chain.group_size
            line = alpha_beta_fit.fit_alpha_beta(chain.timings, devices)
            sized = [(timing.payload, timing) for timing in chain.timings]
            found.append(
                LevelAllReduce(
                    level=span.name,
                    group=chain.group,
                    timings=chain.timings,
                    fit=line,
                    switch=find_algorithm_switch(_ALL_REDUCE, sized, devices, line),
                )
            )
    return tuple(found)


def build_levels(
    topology: HostTopology, all_reduces: Sequence[LevelAllReduce], provenance: str
) -> tuple[Level, ...]:
    """Return the levels, without costs of single collectives.

    Args:
        topology: hosts that were measured.
        all_reduces: fits of their levels; none on one device.
        provenance: origin of the numbers.
    """
    lines = {each.level: each.fit for each in all_reduces}
    levels = []
    for span in _level_spans(topology):
        fit = lines.get(span.name, _NO_LINK)
        # The spread is part of the origin, so that readers of a cluster file see it.
        origin = f"{provenance}, spread {fit.spread:.0%}"
        # Between hosts one device of each is in a ring, and the rings of all devices
        # were timed at once: so many rings leave a host together.
        rings = span.primary_group.stride
        times = f"; times {rings} devices of a host that sent at once" * (rings > 1)
        bandwidth = min(rings * fit.bandwidth, _MAX_BANDWIDTH)
        levels.append(
            Level(
                name=span.name,
                size=span.size,
                alpha=SourcedNumber(max(fit.alpha, _MIN_ALPHA), origin),
                bandwidth=SourcedNumber(bandwidth, origin + times),
            )
        )
    return tuple(levels)


def add_collective_costs(
    cluster: Cluster,
    topology: HostTopology,
    timings: Sequence[GroupTimings],
    provenance: str,
) -> Cluster:
    """Return a cluster with the costs of every collective that was timed.

    Args:
        cluster: cluster with the levels of these hosts.
        topology: hosts that were measured.
        timings: timings of their groups.
        provenance: origin of the numbers.
    """
    found: defaultdict[str, list[CollectiveCost]] = defaultdict(list)
    for chain in timings:
        mesh = chain.group.mesh_shape(topology.num_devices)
        group = link_group(cluster, MeshPlacement(mesh=mesh), ["data"])
        cost = make_collective_cost(chain, group, provenance)
        inside = topology.group_devices_per_host(chain.group)
        found[group.level].append(replace(cost, inside=inside))
    levels = (
        replace(level, lines=tuple(found[level.name])) for level in cluster.levels
    )
    return replace(cluster, levels=tuple(levels))


def make_collective_cost(
    timings: GroupTimings, group: LinkGroup, provenance: str
) -> CollectiveCost:
    """Return the cost of a kind of collective, relative to the numbers of its group.

    Args:
        timings: timings of the collective.
        group: alpha of the level, and the group's part of the links.
        provenance: origin of the numbers.
    """
    # Messages and share are ratios to what the oracle would price such a group at, and
    # the bend is the ratio of each timing to the line: the oracle multiplies all of
    # them back, so that what was measured is what is predicted.
    timed, devices = timings.timings, timings.group_size
    fit = alpha_beta_fit.fit_alpha_beta(timed, devices)
    line = alpha_beta_fit.predict_seconds(fit, timed, devices)
    sent = alpha_beta_fit.sent_bytes(timed, devices)
    took = alpha_beta_fit.smooth_latency([timing.seconds for timing in timed])
    started = fit.alpha * message_count(timings.kind, devices)
    origin = f"{provenance}, spread {fit.spread:.0%}"
    return CollectiveCost(
        kind=timings.kind,
        devices=devices,
        messages=SourcedNumber(started / group.alpha, origin),
        share=SourcedNumber(group.bandwidth / fit.bandwidth, origin),
        bend=tuple(
            (float(size), seconds / float(predicted))
            for size, seconds, predicted in zip(sent, took, line, strict=True)
        ),
        skew=SourcedNumber(timings.skew, provenance),
    )


def _level_spans(topology: HostTopology) -> tuple[_LevelSpan, ...]:
    """Return the levels: one, or those of a host and between hosts."""
    inner = _LevelSpan(
        name="data" if topology.num_hosts == 1 else "host",
        size=topology.devices_per_host,
        primary_group=DeviceGroup(size=topology.devices_per_host),
        groups=topology.intra_host_groups,
    )
    if topology.num_hosts == 1:
        return (inner,)
    # One device of each host: nothing of such a ring stays inside a host.
    across = DeviceGroup(size=topology.num_hosts, stride=topology.devices_per_host)
    outer = _LevelSpan(
        name="net",
        size=topology.num_hosts,
        primary_group=across,
        groups=topology.inter_host_groups,
    )
    return inner, outer
