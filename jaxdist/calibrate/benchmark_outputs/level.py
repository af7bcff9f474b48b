"""A level measured by a benchmark: its alpha and bandwidth, and the cluster with them.

    bandwidth = fitted bytes a second of a device x oversubscription

One ring goes through all ranks, so one ring leaves each unit below, and what a device
sends into it is what the unit sends. The oracle divides by the oversubscription, which
what was measured has in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.calibrate.algorithm_switch import AlgorithmSwitch, find_algorithm_switch
from jaxdist.calibrate.alpha_beta_fit import AlphaBetaFit, fit_alpha_beta
from jaxdist.calibrate.benchmark_outputs.rows import BenchmarkTable
from jaxdist.calibrate.measure_cluster import MAX_FIT_SPREAD
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.level import Level
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput

_MIN_ALPHA: Final = 1e-9
"""Seconds of a message below which the sizes told nothing of it."""
_MAX_BANDWIDTH: Final = 1e14
"""Bytes a second from which on the sizes told nothing of it."""


@dataclass(frozen=True, kw_only=True)
class LevelFit:
    """A line through tables of one set of ranks."""

    tables: tuple[BenchmarkTable, ...]
    """What was read."""
    fit: AlphaBetaFit
    """Through all of them, every timing with the same relative weight."""
    switches: tuple[AlgorithmSwitch, ...]
    """Programs that one line does not do justice to."""

    @property
    def ranks(self) -> int:
        """Devices that took part."""
        return self.tables[0].ranks

    @property
    def hosts(self) -> tuple[str, ...]:
        """On which they were; none where nobody knows."""
        return self.tables[0].hosts

    @property
    def alpha(self) -> float | None:
        """Seconds of a message; none where the sizes do not tell."""
        told = self.tables[0].is_serialized and self.fit.alpha > _MIN_ALPHA
        return self.fit.alpha if told else None

    @property
    def provenance(self) -> str:
        """Where numbers of this fit are from."""
        every = "; ".join(dict.fromkeys(table.provenance for table in self.tables))
        return f"measured: {every}, {self.ranks} ranks, spread {self.fit.spread:.1%}"


def fit_level(
    tables: Sequence[BenchmarkTable], *, allow_noisy: bool = False
) -> LevelFit:
    """Fit a line.

    Args:
        tables: of the same ranks.
        allow_noisy: take it, however much the timings spread.

    Raises:
        BadInput: no line goes through them, or their bytes cost nothing.
    """
    timed = [timing for table in tables for timing in table.timings]
    devices = tables[0].ranks
    line = fit_alpha_beta(timed, devices)
    found = (
        find_algorithm_switch(
            one.program,
            one.sized_timings,
            devices,
            fit_alpha_beta(one.timings, devices),
        )
        for one in tables
    )
    fit = LevelFit(
        tables=tuple(tables), fit=line, switches=tuple(one for one in found if one)
    )
    if line.spread > MAX_FIT_SPREAD and not allow_noisy:
        raise _noise_error(fit)
    if line.bandwidth > _MAX_BANDWIDTH:
        largest = max(size for table in tables for size in table.sizes)
        raise BadInput(
            "the sizes are too small to tell a bandwidth",
            rule="the largest size takes longer than the smallest",
            values=f"at most {largest:,} B",
            remedy="all_reduce_perf -b 1K -e 1G -f 2, osu_allreduce -m 1024:67108864",
        )
    return fit


def replace_level(cluster: Cluster, index: int, fit: LevelFit) -> Cluster:
    """Return the cluster with a level as it was measured.

    Args:
        cluster: as it was.
        index: of the level.
        fit: of ranks that span it.

    Raises:
        BadInput: more than its ports carry.
    """
    level = cluster.levels[index]
    share = level.oversubscription.value
    _check_ports(level, fit, share)
    more = f"; times {share:g}, the oversubscription it has in it" * (share > 1)
    path = f"levels.{level.name}"
    rate = SourcedNumber(fit.fit.bandwidth * share, fit.provenance + more)
    made = cluster.with_number(f"{path}.bandwidth", rate)
    if fit.alpha is not None:
        made = made.with_number(
            f"{path}.alpha", SourcedNumber(fit.alpha, fit.provenance)
        )
    return made


def _check_ports(level: Level, fit: LevelFit, oversubscription: float) -> None:
    """Refuse more than the ports carry, with what may have been the reason."""
    if level.port_bandwidth is None:
        return
    most = level.ports * level.port_bandwidth.value
    if fit.fit.bandwidth * oversubscription <= most:
        return
    reasons = ["--level with the links that were measured"]
    if oversubscription > 1:
        reasons.append("oversubscription: 1 in the file, where few units were sending")
    if any(table.timings[0].kind == "all-reduce" for table in fit.tables):
        reasons.append(
            "all_gather_perf, or NCCL_NVLS_ENABLE=0: switches that sum send less"
        )
    reasons.append("port_bandwidth in the cluster's file")
    raise BadInput(
        f"level {level.name} was measured above its ports",
        rule=f"at most {level.ports} x {level.port_bandwidth.value:g} B/s "
        f"({level.port_bandwidth.origin})",
        values=f"{fit.fit.bandwidth:.4g} B/s a device"
        + f" x {oversubscription:g}, the oversubscription" * (oversubscription > 1),
        remedy=reasons,
    )


def _noise_error(fit: LevelFit) -> BadInput:
    told = "; ".join(one.text for one in fit.switches)
    return BadInput(
        "the timings spread too much to calibrate on",
        rule=f"timings lie within {MAX_FIT_SPREAD:.0%} of a line through them, on "
        "average",
        values=f"{fit.fit.spread:.0%}" + f"; {told}" * bool(told),
        remedy=(
            "again on a machine that does nothing else, or with the sizes that a run "
            "will have",
            "--noisy takes it as it is",
        ),
    )
