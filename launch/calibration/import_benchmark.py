"""Reading: a cluster with a level as nccl-tests or OSU measured it."""

import shlex
from argparse import Namespace
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
from jaxdist.core.cluster.level import Level
from jaxdist.core.errors import BadInput
from jaxdist.launch.calibration.link_format import (
    format_bandwidth,
    format_microseconds,
    format_switch,
)
from jaxdist.launch.run_folder.folder import write_atomic
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class LevelImport:
    """A level that was read, in its cluster."""

    fit: LevelFit
    """The line."""
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


def import_level(args: Namespace) -> LevelImport:
    """Read, fit, and write the cluster.

    Raises:
        BadInput: something of it cannot be.
    """
    if args.cluster is None:
        raise BadInput(
            "nothing says what was measured",
            rule="alpha and bandwidth are of a level of a cluster, whose devices and "
            "other levels stay as they are",
            values="no --cluster",
            remedy="--cluster dgx-h100, or a file; --level pod",
        )
    if not args.output.parent.is_dir():
        raise BadInput(
            f"no folder {args.output.parent}",
            rule="a cluster is written into a folder that exists",
            values=f"-o {args.output}",
            remedy=f"-o {args.output.name}",
        )
    before = load_cluster(args.cluster)
    tables = read_benchmarks(args.files, ranks=args.ranks, program=args.program)
    place = find_spanned_level(before, tables[0].ranks, tables[0].hosts, args.level)
    fit = fit_level(tables, allow_noisy=args.noisy)
    after = replace_level(before, place, fit)
    write_atomic(args.output, after.to_json())
    return LevelImport(
        fit=fit, before=before, after=after, level_index=place, output_path=args.output
    )


def import_remarks(result: LevelImport) -> list[str]:
    """Return what a person should know of the numbers."""
    fit, level, found = result.fit, result.level, []
    if not fit.tables[0].is_serialized:
        found.append("alpha stays: osu_bw keeps a window of messages in flight")
    elif fit.alpha is None:
        found.append("alpha stays: the sizes are too large to tell it")
    unit = result.before.sizes[result.level_index - 1] if result.level_index else 1
    if fit.hosts and fit.ranks < unit * len(fit.hosts):
        found.append(
            f"{fit.ranks} ranks on {len(fit.hosts)} hosts: with all its devices a host "
            "may send more"
        )
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
    from jaxdist.core.text.formatting import format_percent
    from jaxdist.launch.terminal.console import (
        make_table,
        print_next_commands,
        print_table,
    )

    fit, level = result.fit, result.level
    out.print(f"{_describe_fit(fit)}\n", soft_wrap=True)
    was = result.before.levels[result.level_index]
    heads = ("measured", "before")
    rows = make_table(f"level {level.name}", *heads, "origin before", right=heads)
    alpha = (
        format_microseconds(level.alpha.value),
        format_microseconds(was.alpha.value),
    )
    rates = (
        format_bandwidth(level.bandwidth.value),
        format_bandwidth(was.bandwidth.value),
    )
    rows.add_row("alpha, a message", *alpha, was.alpha.origin)
    rows.add_row("bandwidth, a unit", *rates, was.bandwidth.origin)
    print_table(out, rows)
    out.print(f"  spread   {format_percent(fit.fit.spread)} from the line, on average")
    for one in fit.switches:
        out.print(format_switch(one), soft_wrap=True)
    for note in import_remarks(result):
        out.print(f"  note     {note}", soft_wrap=True)
    out.print(f"  written  {result.output_path}\n")
    file = shlex.quote(str(result.output_path))
    print_next_commands(out, f"jaxdist oracle predict resnet50 --cluster {file}")


def _describe_fit(fit: LevelFit) -> str:
    """Say what was read."""
    programs = ", ".join(dict.fromkeys(one.program for one in fit.tables))
    sizes = sorted({size for one in fit.tables for size in one.sizes})
    on = f" on {len(fit.hosts)} host{'s' * (len(fit.hosts) > 1)}" * bool(fit.hosts)
    count = sum(len(one.timings) for one in fit.tables)
    return (
        f"{programs}    {fit.ranks} ranks{on}, {count} timings of {len(sizes)} sizes, "
        f"{sizes[0]:,} to {sizes[-1]:,} B"
    )
