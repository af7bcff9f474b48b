"""Calibrated: a machine that was measured, as a person and as a program read it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from jaxdist.calibrate.levels import LevelAllReduce
    from jaxdist.calibrate.measure_cluster import CalibrationResult
    from jaxdist.core.cluster.block_timings import BlockTiming
    from jaxdist.core.cluster.level import Level


@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """A machine that was measured, and where it was written."""

    result: "CalibrationResult"
    """What was found."""
    dtype: str
    """Of the numbers that were computed with."""
    output_path: Path
    """The cluster file."""
    is_primary: bool
    """Whether this process tells about it."""
    experiment: str = "digits"
    """The experiment whose layers were timed, or another."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as one object, seconds and bytes."""
        found = self.result
        return {
            "cluster": json.loads(found.cluster.to_json()),
            "kernels": [asdict(kernel) for kernel in found.kernel_timings],
            "blocks": [asdict(block) for block in found.block_timings],
            "sums": [
                {"level": sums.level, "devices": sums.group.size, **asdict(each)}
                for sums in found.all_reduces
                for each in sums.timings
            ],
            "spread": max((sums.fit.spread for sums in found.all_reduces), default=0.0),
            "switches": [
                {"level": sums.level, **asdict(sums.switch)}
                for sums in found.all_reduces
                if sums.switch
            ],
            "written": str(self.output_path),
        }


def _block_table(blocks: "Sequence[BlockTiming]") -> "Table":
    """Return what blocks take, in the order of the network."""
    from jaxdist.core.text.formatting import format_duration, format_size
    from jaxdist.launch.terminal.console import make_table

    heads = ("samples", "forward", "backward", "kept ")
    rows = make_table("block", *heads, right=heads)
    for one in blocks:
        took = format_duration(one.forward_s), format_duration(one.backward_s)
        rows.add_row(one.key, f"{one.samples:,.0f}", *took, format_size(one.kept))
    return rows


def print_calibration(out: "Console", report: CalibrationReport) -> None:
    """Say what was measured, and where it is."""
    from jaxdist.core.text.formatting import format_percent, format_size
    from jaxdist.launch.terminal.console import (
        make_table,
        print_next_commands,
        print_table,
    )

    cluster = report.result.cluster
    device = cluster.device
    out.print(f"{cluster.name}    {device.name}, all measured together\n")
    heads = ("FLOPs", "forward", "of peak", "backward", "of peak ")
    rows = make_table("kernel", *heads, right=heads)
    peak = device.peak(report.dtype).value
    for kernel in report.result.kernel_timings:
        flops = kernel.shape.flops
        told = [kernel.shape.text, format_size(flops, "")]
        for took, work in ((kernel.forward_s, 1), (kernel.backward_s, 2)):
            told += [
                f"{1e6 * took:,.0f} us",
                format_percent(work * flops / took / peak, 0),
            ]
        rows.add_row(*told)
    print_table(out, rows)
    if report.result.block_timings:
        print_table(out, _block_table(report.result.block_timings))
    out.print(f"  computes {format_size(peak, 'FLOP/s')} in {report.dtype} at most")
    out.print(
        f"  memory   {format_size(device.memory_bandwidth.value, 'B/s')} a device"
    )
    if cluster.host_link is not None:
        out.print(
            f"  copies   {format_size(cluster.host_link.value, 'B/s')} to a device"
        )
    if cluster.input_rate is not None:
        host = " a host" * (len(cluster.levels) > 1)
        rate = format_size(cluster.input_rate.value, "B/s")
        out.print(f"  input    {rate}{host} of {report.experiment}")
    out.print(f"  kernel   {1e6 * device.launch.value:.1f} us at least")
    if cluster.devices > 1:
        out.print(f"  company  {device.crowd.value:.2g} times as long as alone")
    levels = {level.name: level for level in cluster.levels}
    for sums in report.result.all_reduces:
        _print_level(out, sums, levels[sums.level], is_only_level=len(levels) == 1)
    out.print(f"  written  {report.output_path}\n")
    print_next_commands(
        out,
        f"jaxdist oracle predict {report.experiment} --cluster {report.output_path}",
    )


def _print_level(
    out: "Console", all_reduce: "LevelAllReduce", level: "Level", *, is_only_level: bool
) -> None:
    """Say what sums of a level take, and where their algorithm changes."""
    from jaxdist.core.text.formatting import (
        format_duration,
        format_percent,
        format_size,
    )
    from jaxdist.launch.calibration.link_format import format_switch

    first, last = all_reduce.timings[0], all_reduce.timings[-1]
    who = "a host" if all_reduce.group.stride > 1 else "a device"
    between = f"{level.size} {'hosts' if all_reduce.group.stride > 1 else 'devices'}: "
    out.print(
        f"  {'sums' if is_only_level else level.name:8} "
        f"{'' if is_only_level else between}"
        f"{1e6 * level.alpha.value:,.0f} us a message, "
        f"{format_size(level.bandwidth.value, 'B/s')} {who}; "
        f"{format_percent(all_reduce.fit.spread)} from that on average, over "
        f"{format_size(first.payload)} to {format_size(last.payload)}, the largest in "
        f"{format_duration(last.seconds)}"
    )
    if all_reduce.switch:
        out.print(format_switch(all_reduce.switch), soft_wrap=True)
