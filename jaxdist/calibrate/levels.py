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
    among: DeviceGroup
    """Who sums."""
    timings: tuple[alpha_beta_fit.CollectiveTiming, ...]
    """By size."""
    line: alpha_beta_fit.AlphaBetaFit
    """Through them."""
    switch: AlgorithmSwitch | None
    """Two lines, where one does not do justice to them."""


@dataclass(frozen=True, kw_only=True)
class _LevelSpan:
    """A level before it is measured."""

    name: str
    size: int
    own: DeviceGroup
    """The groups that its own numbers are of."""
    groups: tuple[DeviceGroup, ...]
    """All that cross its links and no others'."""


def timed_groups(hosts: HostTopology) -> tuple[DeviceGroup, ...]:
    """Return all groups that are timed, the innermost first."""
    return tuple(group for span in _level_spans(hosts) for group in span.groups)


def level_all_reduces(
    hosts: HostTopology, chains: Sequence[GroupTimings]
) -> tuple[LevelAllReduce, ...]:
    """Return the sums that levels are measured by; none on one device."""
    return tuple(
        _fit_level(span.name, chain)
        for span in _level_spans(hosts)
        for chain in chains
        if (chain.kind, chain.among) == (_ALL_REDUCE, span.own)
    )


def build_levels(
    hosts: HostTopology, sums: Sequence[LevelAllReduce], origin: str
) -> tuple[Level, ...]:
    """Return the levels, without lines.

    Args:
        hosts: that were measured.
        sums: of these; none on one device.
        origin: of the numbers.
    """
    lines = {each.level: each.line for each in sums}
    return tuple(
        _build_level(span, lines.get(span.name, _NO_LINK), origin)
        for span in _level_spans(hosts)
    )


def add_collective_costs(
    cluster: Cluster, hosts: HostTopology, chains: Sequence[GroupTimings], origin: str
) -> Cluster:
    """Return a cluster whose levels have all that was timed.

    Args:
        cluster: with the levels of these hosts.
        hosts: that were measured.
        chains: of their groups.
        origin: of the numbers.
    """
    found: defaultdict[str, list[CollectiveCost]] = defaultdict(list)
    for chain in chains:
        group = link_group(
            cluster, MeshPlacement(mesh=chain.among.mesh(hosts.whole)), ["data"]
        )
        line = make_collective_cost(chain, group, origin)
        inside = hosts.inside(chain.among)
        found[group.level].append(replace(line, inside=inside))
    levels = (
        replace(level, lines=tuple(found[level.name])) for level in cluster.levels
    )
    return replace(cluster, levels=tuple(levels))


def make_collective_cost(
    chain: GroupTimings, group: LinkGroup, origin: str
) -> CollectiveCost:
    """Return what a kind of collective takes, beside the numbers of its group.

    Args:
        chain: its timings.
        group: with the level's alpha, and its part of the links.
        origin: of the numbers.
    """
    found = alpha_beta_fit.fit_alpha_beta(chain.timings, chain.devices)
    straight = alpha_beta_fit.predict_seconds(found, chain.timings, chain.devices)
    sent = alpha_beta_fit.sent_bytes(chain.timings, chain.devices)
    took = alpha_beta_fit.smooth_latency([timing.seconds for timing in chain.timings])
    started = found.alpha * message_count(chain.kind, chain.devices)
    said = f"{origin}, spread {found.spread:.0%}"
    return CollectiveCost(
        kind=chain.kind,
        devices=chain.devices,
        messages=SourcedNumber(started / group.alpha, said),
        share=SourcedNumber(group.rate / found.bandwidth, said),
        bend=tuple(
            (float(size), seconds / float(line))
            for size, seconds, line in zip(sent, took, straight, strict=True)
        ),
        skew=SourcedNumber(chain.skew, origin),
    )


def _level_spans(hosts: HostTopology) -> tuple[_LevelSpan, ...]:
    """Return the levels: one, or those of a host and between hosts."""
    whole = DeviceGroup(devices=hosts.devices)
    if hosts.count == 1:
        size = hosts.devices
        return (_LevelSpan(name="data", size=size, own=whole, groups=hosts.within),)
    apart = DeviceGroup(devices=hosts.count, stride=hosts.devices)
    return (
        _LevelSpan(name="host", size=hosts.devices, own=whole, groups=hosts.within),
        _LevelSpan(name="net", size=hosts.count, own=apart, groups=hosts.between),
    )


def _fit_level(level: str, chain: GroupTimings) -> LevelAllReduce:
    line = alpha_beta_fit.fit_alpha_beta(chain.timings, chain.devices)
    sized = [(timing.payload, timing) for timing in chain.timings]
    return LevelAllReduce(
        level=level,
        among=chain.among,
        timings=chain.timings,
        line=line,
        switch=find_algorithm_switch(_ALL_REDUCE, sized, chain.devices, line),
    )


def _build_level(
    span: _LevelSpan, line: alpha_beta_fit.AlphaBetaFit, origin: str
) -> Level:
    """Return a level without its lines."""
    said, rings = f"{origin}, spread {line.spread:.0%}", span.own.stride
    times = f"; times {rings} devices of a host that sent at once" if rings > 1 else ""
    return Level(
        name=span.name,
        size=span.size,
        alpha=SourcedNumber(max(line.alpha, _MIN_ALPHA), said),
        bandwidth=SourcedNumber(
            min(rings * line.bandwidth, _MAX_BANDWIDTH), said + times
        ),
    )
