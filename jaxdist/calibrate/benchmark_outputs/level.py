"""The level of a cluster whose links a benchmark measured: alpha and bandwidth.

bandwidth = fitted bytes a second of a device x oversubscription
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.calibrate.alpha_beta_fit import (
    AlgorithmSwitch,
    AlphaBetaFit,
    find_algorithm_switch,
    fit_alpha_beta,
)
from jaxdist.calibrate.benchmark_outputs.rows import BenchmarkTable
from jaxdist.calibrate.measure_cluster import MAX_FIT_SPREAD
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput, did_you_mean

# A non-negative fit clamps alpha or 1 / bandwidth to about 0 where the sizes do not
# determine it. Seconds of a message, and bytes a second, beyond which that is so:
_MIN_ALPHA: Final = 1e-9
_MAX_BANDWIDTH: Final = 1e14
_HOST_LEVEL: Final = "host"
"""Name that cluster files give the level of one host's devices."""


@dataclass(frozen=True, kw_only=True)
class LevelFit:
    """An alpha-beta line through the tables of one set of ranks."""

    tables: tuple[BenchmarkTable, ...]
    """Tables that were read."""
    fit: AlphaBetaFit
    """Line through all timings, each with the same relative weight."""
    switches: tuple[AlgorithmSwitch, ...]
    """Programs that two lines fit far better than one."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.tables[0].ranks

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts of the ranks; empty where they are unknown."""
        return self.tables[0].hosts

    @property
    def alpha(self) -> float | None:
        """Seconds of a message; None where the sizes do not tell."""
        # Many messages in flight hide each other's start, so such a program tells no
        # alpha.
        told = self.tables[0].is_serialized and self.fit.alpha > _MIN_ALPHA
        return self.fit.alpha if told else None

    @property
    def provenance(self) -> str:
        """Origin of the numbers of this fit."""
        every = "; ".join(dict.fromkeys(table.provenance for table in self.tables))
        return f"measured: {every}, {self.ranks} ranks, spread {self.fit.spread:.1%}"


def fit_level(
    tables: Sequence[BenchmarkTable], *, allow_noisy: bool = False
) -> LevelFit:
    """Fit an alpha-beta line to tables.

    Args:
        tables: tables of the same ranks.
        allow_noisy: accept the fit, however much the timings spread.

    Raises:
        BadInput: the timings spread too much, or are too small to tell a bandwidth.
    """
    timings = [timing for table in tables for timing in table.timings]
    devices = tables[0].ranks
    # One line through all programs, and one of each, where an algorithm may switch.
    line = fit_alpha_beta(timings, devices)
    switches = []
    for table in tables:
        own_line = fit_alpha_beta(table.timings, devices)
        timed = table.sized_timings
        if found := find_algorithm_switch(table.program, timed, devices, own_line):
            switches.append(found)
    if line.spread > MAX_FIT_SPREAD and not allow_noisy:
        told = "; ".join(switch.text for switch in switches)
        raise BadInput(
            "the timings spread too much to calibrate on",
            rule=f"timings lie within {MAX_FIT_SPREAD:.0%} of a line through them, on "
            "average",
            values=f"{line.spread:.0%}" + f"; {told}" * bool(told),
            remedy=(
                "again on a machine that does nothing else, or with the sizes that a "
                "run will have",
                "--allow-noisy takes it as it is",
            ),
        )
    if line.bandwidth > _MAX_BANDWIDTH:
        largest = max(size for table in tables for size in table.sizes)
        raise BadInput(
            "the sizes are too small to tell a bandwidth",
            rule="the largest size takes longer than the smallest",
            values=f"at most {largest:,} B",
            remedy="all_reduce_perf -b 1K -e 1G -f 2, osu_allreduce -m 1024:67108864",
        )
    return LevelFit(tables=tuple(tables), fit=line, switches=tuple(switches))


def replace_level(cluster: Cluster, index: int, fit: LevelFit) -> Cluster:
    """Return a cluster with one level's alpha and bandwidth as measured.

    Args:
        cluster: the cluster before.
        index: index of the level.
        fit: fit of ranks that span the level.

    Raises:
        BadInput: the bandwidth is above that of the level's ports.
    """
    level = cluster.levels[index]
    # One ring goes through all ranks, so one ring leaves each unit below, and what a
    # device sends into it is what the unit sends. The oracle divides a level's
    # bandwidth by its oversubscription, which the measured rate already contains.
    share = level.oversubscription.value
    bandwidth = fit.fit.bandwidth * share
    ports = level.port_bandwidth
    if ports is not None and bandwidth > level.ports * ports.value:
        reasons = ["--level with the links that were measured"]
        if share > 1:
            reasons.append(
                "oversubscription: 1 in the file, where few units were sending"
            )
        if any(table.timings[0].kind == "all-reduce" for table in fit.tables):
            # NVLS and SHARP reduce inside the switch: a device sends its bytes once,
            # and the ring formula overstates the rate.
            reasons.append(
                "all_gather_perf, or NCCL_NVLS_ENABLE=0: switches that sum send less"
            )
        reasons.append("port_bandwidth in the cluster's file")
        raise BadInput(
            f"level {level.name} was measured above its ports",
            rule=f"at most {level.ports} x {ports.value:g} B/s ({ports.origin})",
            values=f"{fit.fit.bandwidth:.4g} B/s a device"
            + f" x {share:g}, the oversubscription" * (share > 1),
            remedy=reasons,
        )

    path = f"levels.{level.name}"
    more = f"; times {share:g}, the oversubscription it has in it" * (share > 1)
    rate = SourcedNumber(bandwidth, fit.provenance + more)
    made = cluster.with_number(f"{path}.bandwidth", rate)
    if fit.alpha is None:
        return made
    return made.with_number(f"{path}.alpha", SourcedNumber(fit.alpha, fit.provenance))


def find_spanned_level(
    cluster: Cluster, ranks: int, hosts: Sequence[str], name: str | None
) -> int:
    """Return the index of the level whose links the slowest step of a ring crosses.

    Args:
        cluster: cluster of the ranks.
        ranks: number of ranks, one device each.
        hosts: hosts of the ranks; empty where they are unknown.
        name: name of the level, where it was given.

    Raises:
        BadInput: the ranks cannot have measured the level, or do not determine it.
    """
    if ranks > cluster.devices:
        raise BadInput(
            f"{cluster.name} has too few devices",
            rule=f"{cluster.name} has {cluster.devices:,} devices",
            values=f"{ranks:,} ranks",
            remedy="--cluster with the machine that was measured",
        )
    names = [level.name for level in cluster.levels]
    if name and name not in names:
        near = did_you_mean(name, names)
        raise BadInput(
            f"{cluster.name} has no level {name}",
            rule=f"its levels are {', '.join(names)}",
            values=f"--level {name}",
            remedy=f"did you mean {near}?" if near else f"--level {names[-1]}",
        )
    if name:
        index = names.index(name)
    else:
        index = cluster.level_of(ranks)
        outer = index < len(names) - 1
        if outer and not hosts:
            raise BadInput(
                "nothing says which links were measured",
                rule="OSU does not print hosts, and so many ranks are in one unit or "
                "in several",
                values=f"{ranks} ranks: {' or '.join(names[index:])} of {cluster.name}",
                remedy=[f"--level {name}" for name in names[index:]],
            )
        # Few enough ranks for one host, and yet on several: they cross the next level.
        if outer and len(hosts) > 1 and names[index] == _HOST_LEVEL:
            index += 1

    level = cluster.levels[index]
    if ranks > cluster.sizes[index]:
        raise BadInput(
            f"{ranks} ranks are not within one {level.name}",
            rule=f"a {level.name} of {cluster.name} has {cluster.sizes[index]} devices",
            values=f"{ranks} ranks, --level {level.name}",
            remedy=f"--level {cluster.levels[cluster.level_of(ranks)].name}",
        )
    if len(hosts) == 1 and _HOST_LEVEL in names[:index]:
        raise BadInput(
            f"ranks of one host measure no links of a {level.name}",
            rule=f"links of a {level.name} are between hosts",
            values=f"{ranks} ranks on {hosts[0]}, --level {level.name}",
            remedy=f"--level {_HOST_LEVEL}",
        )
    if len(hosts) > 1 and level.name == _HOST_LEVEL:
        raise BadInput(
            "ranks of several hosts measure no links of a host",
            rule="links of a host are between its own devices",
            values=f"{ranks} ranks on {len(hosts)} hosts, --level {level.name}",
            remedy="--level of what connects hosts, or a cluster that has it",
        )
    return index
