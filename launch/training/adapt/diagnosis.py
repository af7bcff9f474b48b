"""Reasons: why a step takes longer than before, in numbers of the cluster.

Two soundings are held against each other: the first one of a sitting, and one after the
step has drifted. A level is as fast as the slowest two processes that it connects, so
that is what its number is multiplied with; and devices are as fast as the slowest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.text.formatting import format_size
from jaxdist.launch.training.adapt.link_probe import LinkMeasurement

_LINK_CHANGE_RATIO: Final = 0.6
"""Part of what a link carried, or one over that, at which it has changed."""
_SIMILAR_CHANGE_RATIO: Final = 0.3
"""Part of the largest change, or one over that, at which another one is like it: of
the pairs on a slow link one may have waited for a packet that was sent again."""
_DEVICE_CHANGE_RATIO: Final = 0.33
"""The same of devices, whose times spread more where processes share a machine."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What has changed, and the cluster since then."""

    texts: tuple[str, ...]
    """Each change, for a person."""
    changes: Mapping[str, float]
    """Factors of numbers of the cluster, by their path."""

    @property
    def text(self) -> str:
        """All changes in a line."""
        return "; ".join(self.texts)

    def applied(self, cluster: Cluster) -> Cluster:
        """Return the cluster with the numbers of now."""
        for path, factor in self.changes.items():
            old = dict(cluster.numbers())[path]
            new = SourcedNumber(factor * old.value, f"measured: {self.text}; was {old}")
            cluster = cluster.with_number(path, new)
        return _clear_port_bandwidths(cluster, self.changes)

    def words(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the same for `--what-if`."""
        now = dict(self.applied(cluster).numbers())
        return tuple(f"{path}={_format_rate(path, now[path])}" for path in self.changes)


def diagnose(
    baseline: LinkMeasurement,
    current: LinkMeasurement,
    cluster: Cluster,
    devices_per_process: int,
) -> Diagnosis | None:
    """Return what has changed between two soundings; None where nothing has.

    Args:
        baseline: as the sitting began.
        current: after the step has drifted.
        cluster: the numbers of before.
        devices_per_process: devices of a process.
    """
    links = _link_changes(baseline, current, cluster, devices_per_process)
    devices = _device_changes(baseline, current, cluster)
    texts = [text for text, _ in (*links, *devices)]
    if not texts:
        return None
    changes = {path: f for _, factors in (*links, *devices) for path, f in factors}
    return Diagnosis(texts=tuple(texts), changes=changes)


_Change = tuple[str, tuple[tuple[str, float], ...]]


def _link_changes(
    before: LinkMeasurement, now: LinkMeasurement, cluster: Cluster, each: int
) -> list[_Change]:
    """Return the levels that are slower than before, or faster."""
    levels: dict[str, list[tuple[int, int]]] = {}
    for pair in now.rates:
        levels.setdefault(_common_level(cluster, pair, each), []).append(pair)
    found: list[_Change] = []
    for name, pairs in levels.items():
        was, is_ = (min(of.rates[p] for p in pairs) for of in (before, now))
        if _is_changed(is_ / was, _LINK_CHANGE_RATIO):
            who = _describe_links(before, now, pairs)
            text = (
                f"{who} {format_size(round(is_))}/s, {format_size(round(was))}/s "
                "at the start"
            )
            found.append((text, ((f"levels.{name}.bandwidth", is_ / was),)))
    return found


def _device_changes(
    before: LinkMeasurement, now: LinkMeasurement, cluster: Cluster
) -> list[_Change]:
    """Return how much slower the slowest device is than before, or faster."""
    factor = max(before.products) / max(now.products)
    if not _is_changed(factor, _DEVICE_CHANGE_RATIO):
        return []
    slow = max(range(len(now.products)), key=now.products.__getitem__)
    text = (
        f"{_rank_label(slow, now.hosts)} computes {factor:.2g} times as fast as at "
        "the start"
    )
    paths = [f"device.flops.{dtype}" for dtype in cluster.device.flops]
    return [(text, tuple((p, factor) for p in (*paths, "device.memory_bandwidth")))]


def _is_changed(factor: float, part: float) -> bool:
    return not part <= factor <= 1 / part


def _common_level(
    cluster: Cluster, pair: tuple[int, int], devices_per_process: int
) -> str:
    """Return the innermost level that has the devices of two processes in one unit."""
    for level, unit in zip(cluster.levels, cluster.sizes, strict=True):
        if (
            pair[0] * devices_per_process // unit
            == pair[1] * devices_per_process // unit
        ):
            return level.name
    return cluster.levels[-1].name


def _describe_links(
    before: LinkMeasurement, now: LinkMeasurement, pairs: Sequence[tuple[int, int]]
) -> str:
    """Name the links that have changed most: of a process, between two, or all."""
    hosts = now.hosts
    factors = {pair: now.rates[pair] / before.rates[pair] for pair in pairs}
    most = max(factors.values(), key=lambda factor: abs(math.log(factor)))
    changed = [p for p in pairs if _is_changed(factors[p], _LINK_CHANGE_RATIO)]
    other = [
        p
        for p in changed
        if _SIMILAR_CHANGE_RATIO <= factors[p] / most <= 1 / _SIMILAR_CHANGE_RATIO
    ]
    common = set.intersection(*map(set, other))
    if len(other) == 1 and (len(pairs) > 1 or len(hosts) == 2):
        one, two = (_rank_label(rank, hosts) for rank in other[0])
        return f"the link between {one} and {two} carries"
    if len(common) == 1:
        return f"the link of {_rank_label(common.pop(), hosts)} carries"
    if len(other) == len(pairs):
        return "all links carry"
    return f"{len(other)} of {len(pairs)} links carry"


def _rank_label(rank: int, hosts: Sequence[str]) -> str:
    return f"rank {rank} ({hosts[rank]})" if len({*hosts}) > 1 else f"rank {rank}"


def _format_rate(path: str, number: SourcedNumber) -> str:
    """Write a rate as `--what-if` reads it."""
    unit = "FLOP" if ".flops." in path else "B"
    return f"{format_size(number.value, unit)}/s".replace(" ", "")


def _clear_port_bandwidths(cluster: Cluster, paths: Mapping[str, float]) -> Cluster:
    """Leave out what a port has, where the number of all of them is another one."""
    changed = {path.split(".")[1] for path in paths if path.startswith("levels.")}
    levels = tuple(
        replace(level, port_bandwidth=None) if level.name in changed else level
        for level in cluster.levels
    )
    return replace(cluster, levels=levels)
