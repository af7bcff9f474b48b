"""Levels: what connects devices and hosts, as timed collectives say it.

    alpha      of a message of an all-reduce
    bandwidth  of the level = fitted bytes a second of a device x devices of a host

of all devices of a host, and between hosts of one device of each, all at once: so many
rings leave a host together, and nothing of them stays inside. Every kind, size and lie
of a group is a line beside these numbers, over the rate that the oracle gives such a
group, so that what was measured is what is predicted.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.calibrate import alpha_beta_fit
from jaxdist.calibrate.algorithm_switch import AlgorithmSwitch, find_algorithm_switch
from jaxdist.calibrate.collective_timings import GroupTimings
from jaxdist.calibrate.hosts import DeviceGroup, HostTopology
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.level import Level
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.collective_times import message_count
from jaxdist.oracle.link_groups import LinkGroup, link_group

_MIN_ALPHA: Final = 1e-9
"""Seconds of a message that is too short to be told."""
_MAX_BANDWIDTH: Final = 1e15
"""Bytes a second of what connects a device with itself."""
_NO_LINK: Final = alpha_beta_fit.AlphaBetaFit(
    alpha=_MIN_ALPHA, bandwidth=_MAX_BANDWIDTH, spread=0.0
)
_ALL_REDUCE: Final = "all-reduce"
"""The collective that a level's own numbers are of."""


@dataclass(frozen=True, kw_only=True)
class LevelAllReduce:
    """The sums that a level's own numbers are of."""

    level: str
    """Its name."""
    group: DeviceGroup
    """Who sums."""
    timings: tuple[alpha_beta_fit.CollectiveTiming, ...]
    """By size."""
    fit: alpha_beta_fit.AlphaBetaFit
    """Through them."""
    switch: AlgorithmSwitch | None
    """Two lines, where one does not do justice to them."""


@dataclass(frozen=True, kw_only=True)
class _LevelSpan:
    """A level before it is measured."""

    name: str
    size: int
    primary_group: DeviceGroup
    """The groups that its own numbers are of."""
    groups: tuple[DeviceGroup, ...]
    """All that cross its links and no others'."""


def timed_groups(topology: HostTopology) -> tuple[DeviceGroup, ...]:
    """Return all groups that are timed, the innermost first."""
    return tuple(group for span in _level_spans(topology) for group in span.groups)


def level_all_reduces(
    topology: HostTopology, timings: Sequence[GroupTimings]
) -> tuple[LevelAllReduce, ...]:
    """Return the sums that levels are measured by; none on one device."""
    return tuple(
        _fit_level(span.name, chain)
        for span in _level_spans(topology)
        for chain in timings
        if (chain.kind, chain.group) == (_ALL_REDUCE, span.primary_group)
    )


def build_levels(
    topology: HostTopology, all_reduces: Sequence[LevelAllReduce], provenance: str
) -> tuple[Level, ...]:
    """Return the levels, without lines.

    Args:
        topology: that were measured.
        all_reduces: of these; none on one device.
        provenance: of the numbers.
    """
    lines = {each.level: each.fit for each in all_reduces}
    return tuple(
        _build_level(span, lines.get(span.name, _NO_LINK), provenance)
        for span in _level_spans(topology)
    )


def add_collective_costs(
    cluster: Cluster,
    topology: HostTopology,
    timings: Sequence[GroupTimings],
    provenance: str,
) -> Cluster:
    """Return a cluster whose levels have all that was timed.

    Args:
        cluster: with the levels of these hosts.
        topology: that were measured.
        timings: of their groups.
        provenance: of the numbers.
    """
    found: defaultdict[str, list[CollectiveCost]] = defaultdict(list)
    for chain in timings:
        group = link_group(
            cluster,
            MeshPlacement(mesh=chain.group.mesh_shape(topology.num_devices)),
            ["data"],
        )
        line = make_collective_cost(chain, group, provenance)
        inside = topology.group_devices_per_host(chain.group)
        found[group.level].append(replace(line, inside=inside))
    levels = (
        replace(level, lines=tuple(found[level.name])) for level in cluster.levels
    )
    return replace(cluster, levels=tuple(levels))


def make_collective_cost(
    timings: GroupTimings, group: LinkGroup, provenance: str
) -> CollectiveCost:
    """Return what a kind of collective takes, beside the numbers of its group.

    Args:
        timings: its timings.
        group: with the level's alpha, and its part of the links.
        provenance: of the numbers.
    """
    found = alpha_beta_fit.fit_alpha_beta(timings.timings, timings.group_size)
    straight = alpha_beta_fit.predict_seconds(
        found, timings.timings, timings.group_size
    )
    sent = alpha_beta_fit.sent_bytes(timings.timings, timings.group_size)
    took = alpha_beta_fit.smooth_latency([timing.seconds for timing in timings.timings])
    started = found.alpha * message_count(timings.kind, timings.group_size)
    said = f"{provenance}, spread {found.spread:.0%}"
    return CollectiveCost(
        kind=timings.kind,
        devices=timings.group_size,
        messages=SourcedNumber(started / group.alpha, said),
        share=SourcedNumber(group.bandwidth / found.bandwidth, said),
        bend=tuple(
            (float(size), seconds / float(line))
            for size, seconds, line in zip(sent, took, straight, strict=True)
        ),
        skew=SourcedNumber(timings.skew, provenance),
    )


def _level_spans(topology: HostTopology) -> tuple[_LevelSpan, ...]:
    """Return the levels: one, or those of a host and between hosts."""
    whole = DeviceGroup(size=topology.devices_per_host)
    if topology.num_hosts == 1:
        size = topology.devices_per_host
        return (
            _LevelSpan(
                name="data",
                size=size,
                primary_group=whole,
                groups=topology.intra_host_groups,
            ),
        )
    apart = DeviceGroup(size=topology.num_hosts, stride=topology.devices_per_host)
    return (
        _LevelSpan(
            name="host",
            size=topology.devices_per_host,
            primary_group=whole,
            groups=topology.intra_host_groups,
        ),
        _LevelSpan(
            name="net",
            size=topology.num_hosts,
            primary_group=apart,
            groups=topology.inter_host_groups,
        ),
    )


def _fit_level(level: str, timings: GroupTimings) -> LevelAllReduce:
    line = alpha_beta_fit.fit_alpha_beta(timings.timings, timings.group_size)
    sized = [(timing.payload, timing) for timing in timings.timings]
    return LevelAllReduce(
        level=level,
        group=timings.group,
        timings=timings.timings,
        fit=line,
        switch=find_algorithm_switch(_ALL_REDUCE, sized, timings.group_size, line),
    )


def _build_level(
    span: _LevelSpan, fit: alpha_beta_fit.AlphaBetaFit, provenance: str
) -> Level:
    """Return a level without its lines."""
    said, rings = f"{provenance}, spread {fit.spread:.0%}", span.primary_group.stride
    times = f"; times {rings} devices of a host that sent at once" if rings > 1 else ""
    return Level(
        name=span.name,
        size=span.size,
        alpha=SourcedNumber(max(fit.alpha, _MIN_ALPHA), said),
        bandwidth=SourcedNumber(
            min(rings * fit.bandwidth, _MAX_BANDWIDTH), said + times
        ),
    )
