"""Why a step takes longer than before: its drift, and what has changed in the cluster.

    steps   1 ... 5      6 ... 20      21 ... 40     41 ... 48
            left out     their median  as before     each of 8 in a row takes 1.3 times
                         is the                      the baseline or more: a drift
                         baseline

Steps are compared with those of the same attempt, not with a prediction: one that is
wrong by a factor is wrong all the time, and says nothing of what has changed. After a
drift links and devices are measured, and compared with how they were at the start.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.text.formatting import format_size
from jaxdist.launch.training.adapt.link_probe import LinkMeasurement

DRIFT_WARMUP_STEPS: Final = 5
"""First steps that are left out: they set up links, and caches are cold."""
BASELINE_STEPS: Final = 15
"""Steps whose median is the baseline."""
DRIFT_RATIO: Final = 1.3
"""Times as long as the baseline, or one over that, takes a step that drifts."""
DRIFT_WINDOW: Final = 8
"""Steps in a row that must do so."""
_MAX_WINDOW: Final = 128
_LINK_CHANGE_RATIO: Final = 0.6
"""Part of what a link carried, or one over that, at which it has changed."""
_SIMILAR_CHANGE_RATIO: Final = 0.3
"""Part of the largest change, or one over that, at which another one is like it: of
the pairs on a slow link one may have waited for a packet that was sent again."""
_DEVICE_CHANGE_RATIO: Final = 0.33
"""The same of devices, whose times spread more where processes share a machine."""


@dataclass(frozen=True, kw_only=True)
class StepTimeDrift:
    """Steps that take longer than those before, or shorter."""

    since: int
    """First of them, counted from 1."""
    step: int
    """Last of them that was seen."""
    seconds: float
    """Their median."""
    before: float
    """The baseline."""

    @property
    def times(self) -> float:
        """Times as long as before."""
        return self.seconds / self.before

    @property
    def text(self) -> str:
        """The same for a person."""
        how = f"{self.times:.1f} times" if self.times > 1 else f"{self.times:.2f} of"
        return (
            f"a step takes {1e3 * self.seconds:,.0f} ms since step {self.since:,}, "
            f"{how} the {1e3 * self.before:,.0f} ms before"
        )


class DriftDetector:
    """Finds drifts in the seconds of one step after the other.

    >>> pace = DriftDetector()
    >>> seen = [pace.seen(n, 0.1 if n < 41 else 0.4) for n in range(1, 60)]
    >>> [drift.text for drift in seen if drift]
    ['a step takes 400 ms since step 41, 4.0 times the 100 ms before']
    """

    def __init__(self) -> None:
        self.base: float | None = None
        self._row = DRIFT_WINDOW
        self.again()

    def again(self) -> None:
        """Begin anew: the median of the next steps is the baseline."""
        self.base = None
        self._left, self._first = DRIFT_WARMUP_STEPS, list[float]()
        self._last = deque[float](maxlen=self._row)

    def doubts(self) -> None:
        """Begin anew, and believe a drift only after twice as many steps."""
        # A drift that nothing explains was noise that lasted as long as the window.
        self._row = min(2 * self._row, _MAX_WINDOW)
        self.again()

    def seen(self, step: int, step_s: float) -> StepTimeDrift | None:
        """Look at a step; a drift is returned once.

        Args:
            step: counted from 1.
            step_s: that it took.
        """
        # The first steps set up links and fill caches: they are slow for once.
        if self._left:
            self._left -= 1
            return None
        if self.base is None:
            self._first.append(step_s)
            if len(self._first) == BASELINE_STEPS:
                self.base = median(self._first)
            return None
        self._last.append(step_s)
        # Every step of the window must drift, not their mean: one step that waited for
        # a disk or a neighbour's job is no change for good.
        longer = all(took >= DRIFT_RATIO * self.base for took in self._last)
        shorter = all(took <= self.base / DRIFT_RATIO for took in self._last)
        if len(self._last) < self._row or not (longer or shorter):
            return None
        # After a drift the new pace is the baseline: a drift is told once.
        took, base = median(self._last), self.base
        self.again()
        return StepTimeDrift(
            since=step - self._row + 1, step=step, seconds=took, before=base
        )


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
        """Return the cluster with its numbers as they are now."""
        for path, factor in self.changes.items():
            old = dict(cluster.numbers())[path]
            new = SourcedNumber(factor * old.value, f"measured: {self.text}; was {old}")
            cluster = cluster.with_number(path, new)
        # A port's own bandwidth would hide the number of its level, which has changed.
        changed = {p.split(".")[1] for p in self.changes if p.startswith("levels.")}
        levels = tuple(
            replace(level, port_bandwidth=None) if level.name in changed else level
            for level in cluster.levels
        )
        return replace(cluster, levels=levels)

    def words(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the changes as `--what-if` reads them: `levels.x.bandwidth=2GB/s`."""
        now, words = dict(self.applied(cluster).numbers()), []
        for path in self.changes:
            rate = format_size(now[path].value, "FLOP" if ".flops." in path else "B")
            words.append(f"{path}={rate}/s".replace(" ", ""))
        return tuple(words)


def diagnose(
    baseline: LinkMeasurement,
    current: LinkMeasurement,
    cluster: Cluster,
    devices_per_process: int,
) -> Diagnosis | None:
    """Return what has changed between two measurements; None where nothing has.

    Args:
        baseline: as the attempt began.
        current: after the step has drifted.
        cluster: the numbers of before.
        devices_per_process: devices of a process.
    """
    texts: list[str] = []
    changes: dict[str, float] = {}
    # Two processes talk over the innermost level that has devices of both in one unit.
    levels: dict[str, list[tuple[int, int]]] = {}
    for one, two in current.rates:
        common = cluster.levels[-1].name
        for level, unit in zip(cluster.levels, cluster.sizes, strict=True):
            if one * devices_per_process // unit == two * devices_per_process // unit:
                common = level.name
                break
        levels.setdefault(common, []).append((one, two))
    # A collective is as fast as the slowest pair of its level, so that is the number of
    # the level that has changed.
    for name, pairs in levels.items():
        was, now = (min(of.rates[p] for p in pairs) for of in (baseline, current))
        if _is_changed(now / was, _LINK_CHANGE_RATIO):
            who = _describe_links(baseline, current, pairs)
            rates = f"{format_size(round(now))}/s, {format_size(round(was))}/s"
            texts.append(f"{who} {rates} at the start")
            changes[f"levels.{name}.bandwidth"] = now / was

    # In a synchronous step all devices are as fast as the slowest one.
    factor = max(baseline.products) / max(current.products)
    if _is_changed(factor, _DEVICE_CHANGE_RATIO):
        ranks = range(len(current.products))
        slow = _rank_label(max(ranks, key=current.products.__getitem__), current.hosts)
        texts.append(f"{slow} computes {factor:.2g} times as fast as at the start")
        paths = [f"device.flops.{dtype}" for dtype in cluster.device.flops]
        changes |= dict.fromkeys((*paths, "device.memory_bandwidth"), factor)
    return Diagnosis(texts=tuple(texts), changes=changes) if texts else None


def _is_changed(factor: float, part: float) -> bool:
    return not part <= factor <= 1 / part


def _describe_links(
    before: LinkMeasurement, now: LinkMeasurement, pairs: Sequence[tuple[int, int]]
) -> str:
    """Name the links that have changed most: of a process, between two, or all."""
    hosts = now.hosts
    # Only pairs that changed about as much as the worst one count: the others may have
    # been slowed down by it.
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
