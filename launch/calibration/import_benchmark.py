"""Reads what nccl-tests or OSU measured into a level of a cluster."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.calibrate.benchmark_outputs.level import (
    LevelFit,
    find_spanned_level,
    fit_level,
    replace_level,
)
from jaxdist.calibrate.benchmark_outputs.read import read_benchmarks
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.cluster import Level
from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_output
from jaxdist.core.text.formatting import format_percent, format_size
from jaxdist.launch.calibration.measure import format_switch
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class ImportQuery:
    """What `jaxdist calibrate read` takes."""

    files: Sequence[Path]
    """What the programs printed."""
    cluster: str | None = None
    """Name or file of the cluster that was measured."""
    level: str | None = None
    """Name of the level; by default the outermost that the ranks span."""
    ranks: int | None = None
    """Ranks, where OSU does not print them."""
    program: str | None = None
    """Name of the program, where the text does not say it or has several."""
    allow_noisy: bool = False
    """Whether timings that spread a lot are taken as well."""
    output: Path = Path("cluster.json")
    """The cluster file to write."""
    force: bool = False
    """Whether a file that is there is overwritten."""


@dataclass(frozen=True, kw_only=True)
class LevelImport:
    """A level that was read, in its cluster."""

    fit: LevelFit
    """The line through its timings."""
    before: Cluster
    """As it was."""
    after: Cluster
    """With the level's alpha and bandwidth replaced."""
    level_index: int
    """Of the level."""
    output_path: Path
    """Where it was written."""

    @property
    def level(self) -> Level:
        """The level as it is now."""
        return self.after.levels[self.level_index]

    def to_dict(self) -> dict[str, Any]:
        """Return it as one object, seconds and bytes."""
        fit = self.fit
        return {
            "level": self.level.name,
            "alpha": self.level.alpha.tree(),
            "bandwidth": self.level.bandwidth.tree(),
            "spread": fit.fit.spread,
            "ranks": fit.ranks,
            "hosts": list(fit.hosts),
            "programs": [table.program for table in fit.tables],
            "timings": [asdict(one) for table in fit.tables for one in table.timings],
            "switches": [asdict(one) for one in fit.switches],
            "notes": import_remarks(self),
            "written": str(self.output_path),
        }


def import_level(query: ImportQuery) -> LevelImport:
    """Fit a level to measurements, and write the cluster.

    Raises:
        BadInput: an option or a file that cannot be, or a noisy measurement.
    """
    if query.cluster is None:
        raise BadInput(
            "nothing says what was measured",
            rule="alpha and bandwidth are of a level of a cluster, whose devices and "
            "other levels stay as they are",
            values="no --cluster",
            remedy="--cluster dgx-h100, or a file; --level pod",
        )
    before = load_cluster(query.cluster)
    tables = read_benchmarks(query.files, ranks=query.ranks, program=query.program)
    # The level is told by ranks and hosts of the benchmark: traffic between hosts is
    # bound by the links between them.
    place = find_spanned_level(before, tables[0].ranks, tables[0].hosts, query.level)
    fit = fit_level(tables, allow_noisy=query.allow_noisy)
    # Of the cluster only this level changes: the rest was not measured.
    after = replace_level(before, place, fit)
    write_output(query.output, after.to_json(), force=query.force)
    return LevelImport(
        fit=fit, before=before, after=after, level_index=place, output_path=query.output
    )


def import_remarks(result: LevelImport) -> list[str]:
    """Return the caveats of the numbers, in words."""
    fit, level, found = result.fit, result.level, []
    # Alpha is the time of one message by itself, and a window hides it.
    if not fit.tables[0].is_serialized:
        found.append("alpha stays: osu_bw keeps a window of messages in flight")
    elif fit.alpha is None:
        found.append("alpha stays: the sizes are too large to tell it")
    unit = result.before.sizes[result.level_index - 1] if result.level_index else 1
    # One device of a host may not fill the link that all of them share.
    if fit.hosts and fit.ranks < unit * len(fit.hosts):
        found.append(
            f"{fit.ranks} ranks on {len(fit.hosts)} hosts: with all its devices a host "
            "may send more"
        )
    # What crosses an outer level goes through the inner ones first: the slowest of
    # them, and not the level that was fitted, may have been what was measured.
    inner = result.after.levels[: result.level_index]
    slow = min(inner, key=lambda one: one.bandwidth.value, default=level)
    if slow.bandwidth.value < fit.fit.bandwidth:
        found.append(
            f"level {slow.name} has {slow.bandwidth.value:.4g} B/s, and so much went "
            "through it: it decides"
        )
    if not all(table.is_verified for table in fit.tables):
        found.append("the results were not looked at")
    return found


def print_level_import(out: "Console", result: LevelImport) -> None:
    """Print the fit beside what the cluster had."""
    fit, level = result.fit, result.level
    programs = ", ".join(dict.fromkeys(one.program for one in fit.tables))
    sizes = sorted({size for one in fit.tables for size in one.sizes})
    hosts = f" on {len(fit.hosts)} host{'s' * (len(fit.hosts) > 1)}" * bool(fit.hosts)
    count = sum(len(one.timings) for one in fit.tables)
    out.print(
        f"{programs}    {fit.ranks} ranks{hosts}, {count} timings of {len(sizes)} "
        f"sizes, {sizes[0]:,} to {sizes[-1]:,} B\n",
        soft_wrap=True,
    )
    # Origins are shown, since a published number may be better than a bad measurement.
    was = result.before.levels[result.level_index]
    heads = ("measured", "before")
    rows = make_table(f"level {level.name}", *heads, "origin before", right=heads)
    alphas = (f"{1e6 * one.alpha.value:,.3g} us" for one in (level, was))
    rates = (format_size(one.bandwidth.value, "B/s") for one in (level, was))
    rows.add_row("alpha, a message", *alphas, was.alpha.origin)
    rows.add_row("bandwidth, a unit", *rates, was.bandwidth.origin)
    print_table(out, rows)
    out.print(f"  spread   {format_percent(fit.fit.spread)} from the line, on average")
    for one in fit.switches:
        out.print(format_switch(one), soft_wrap=True)
    for note in import_remarks(result):
        out.print(f"  note     {note}", soft_wrap=True)
    out.print(f"  written  {result.output_path}\n")
    file = shlex.quote(str(result.output_path))
    print_next_commands(out, f"jaxdist predict resnet50 --cluster {file}")
