"""Calibrated: a machine that was measured, as a person and as a program read it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from jaxdist.calibrate.machine import Machine
    from jaxdist.core.timed_block import TimedBlock


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A machine that was measured, and where it was written."""

    machine: "Machine"
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
            "sums": [asdict(each) for each in found.timings],
            "spread": found.spread,
            "written": str(self.path),
        }


def _block_rows(blocks: "Sequence[TimedBlock]") -> "Table":
    """Return what blocks take, in the order of the network."""
    from jaxdist.core.units import duration, size
    from jaxdist.launch.console import table

    heads = ("samples", "forward", "backward", "kept ")
    rows = table("block", *heads, right=heads)
    for one in blocks:
        took = duration(one.forward_s), duration(one.backward_s)
        rows.add_row(one.key, f"{one.samples:,.0f}", *took, size(one.kept))
    return rows


def print_calibrated(out: "Console", made: Calibrated) -> None:
    """Say what was measured, and where it is."""
    from jaxdist.core.units import duration, percent, size
    from jaxdist.launch.console import print_next, print_table, table

    cluster = made.machine.cluster
    device, level = cluster.device, cluster.levels[0]
    out.print(f"{cluster.name}    {device.name}, all measured together\n")
    heads = ("FLOPs", "forward", "of peak", "backward", "of peak ")
    rows = table("kernel", *heads, right=heads)
    peak = device.peak(made.dtype).value
    for kernel in made.machine.kernels:
        flops = kernel.shape.flops
        told = [kernel.shape.text, size(flops, "")]
        for took, work in ((kernel.forward_s, 1), (kernel.backward_s, 2)):
            told += [f"{1e6 * took:,.0f} us", percent(work * flops / took / peak, 0)]
        rows.add_row(*told)
    print_table(out, rows)
    if made.machine.blocks:
        print_table(out, _block_rows(made.machine.blocks))
    out.print(f"  computes {size(peak, 'FLOP/s')} in {made.dtype} at most")
    out.print(f"  memory   {size(device.memory_bandwidth.value, 'B/s')} a device")
    if cluster.host_link is not None:
        out.print(f"  copies   {size(cluster.host_link.value, 'B/s')} to a device")
    if cluster.input_rate is not None:
        out.print(f"  input    {size(cluster.input_rate.value, 'B/s')} of {made.of}")
    out.print(f"  kernel   {1e6 * device.launch.value:.1f} us at least")
    if cluster.devices > 1:
        out.print(f"  company  {device.crowd.value:.2g} times as long as alone")
    if made.machine.timings:
        out.print(
            f"  sums     {1e6 * level.alpha.value:,.0f} us a message, "
            f"{size(level.bandwidth.value, 'B/s')} a device; "
            f"{percent(made.machine.spread)} from that on average, over "
            f"{size(made.machine.timings[0].payload)} to "
            f"{size(made.machine.timings[-1].payload)}, the largest in "
            f"{duration(made.machine.timings[-1].seconds)}"
        )
    out.print(f"  written  {made.path}\n")
    print_next(out, f"jaxdist oracle predict {made.of} --cluster {made.path}")
