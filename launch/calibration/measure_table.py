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

    machine: "CalibrationResult"
    """What was found."""
    dtype: str
    """Of the numbers that were computed with."""
    path: Path
    """The cluster file."""
    leads: bool
    """Whether this process tells about it."""
    of: str = "digits"
    """The experiment whose layers were timed, or another."""

    def tree(self) -> dict[str, Any]:
        """Return it as one object, seconds and bytes."""
        found = self.machine
        return {
            "cluster": json.loads(found.cluster.to_json()),
            "kernels": [asdict(kernel) for kernel in found.kernels],
            "blocks": [asdict(block) for block in found.blocks],
            "sums": [
                {"level": sums.level, "devices": sums.among.devices, **asdict(each)}
                for sums in found.sums
                for each in sums.timings
            ],
            "spread": max((sums.line.spread for sums in found.sums), default=0.0),
            "switches": [
                {"level": sums.level, **asdict(sums.switch)}
                for sums in found.sums
                if sums.switch
            ],
            "written": str(self.path),
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


def print_calibration(out: "Console", made: CalibrationReport) -> None:
    """Say what was measured, and where it is."""
    from jaxdist.core.text.formatting import format_percent, format_size
    from jaxdist.launch.terminal.console import (
        make_table,
        print_next_commands,
        print_table,
    )

    cluster = made.machine.cluster
    device = cluster.device
    out.print(f"{cluster.name}    {device.name}, all measured together\n")
    heads = ("FLOPs", "forward", "of peak", "backward", "of peak ")
    rows = make_table("kernel", *heads, right=heads)
    peak = device.peak(made.dtype).value
    for kernel in made.machine.kernels:
        flops = kernel.shape.flops
        told = [kernel.shape.text, format_size(flops, "")]
        for took, work in ((kernel.forward_s, 1), (kernel.backward_s, 2)):
            told += [
                f"{1e6 * took:,.0f} us",
                format_percent(work * flops / took / peak, 0),
            ]
        rows.add_row(*told)
    print_table(out, rows)
    if made.machine.blocks:
        print_table(out, _block_table(made.machine.blocks))
    out.print(f"  computes {format_size(peak, 'FLOP/s')} in {made.dtype} at most")
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
        out.print(f"  input    {rate}{host} of {made.of}")
    out.print(f"  kernel   {1e6 * device.launch.value:.1f} us at least")
    if cluster.devices > 1:
        out.print(f"  company  {device.crowd.value:.2g} times as long as alone")
    levels = {level.name: level for level in cluster.levels}
    for sums in made.machine.sums:
        _print_level(out, sums, levels[sums.level], alone=len(levels) == 1)
    out.print(f"  written  {made.path}\n")
    print_next_commands(out, f"jaxdist oracle predict {made.of} --cluster {made.path}")


def _print_level(
    out: "Console", sums: "LevelAllReduce", level: "Level", *, alone: bool
) -> None:
    """Say what sums of a level take, and where their algorithm changes."""
    from jaxdist.core.text.formatting import (
        format_duration,
        format_percent,
        format_size,
    )
    from jaxdist.launch.calibration.link_format import format_switch

    first, last = sums.timings[0], sums.timings[-1]
    who = "a host" if sums.among.stride > 1 else "a device"
    between = f"{level.size} {'hosts' if sums.among.stride > 1 else 'devices'}: "
    out.print(
        f"  {'sums' if alone else level.name:8} {'' if alone else between}"
        f"{1e6 * level.alpha.value:,.0f} us a message, "
        f"{format_size(level.bandwidth.value, 'B/s')} {who}; "
        f"{format_percent(sums.line.spread)} from that on average, over "
        f"{format_size(first.payload)} to {format_size(last.payload)}, the largest in "
        f"{format_duration(last.seconds)}"
    )
    if sums.switch:
        out.print(format_switch(sums.switch), soft_wrap=True)
