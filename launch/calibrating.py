"""Calibrating: this machine, or the processes of a launcher, measured as a cluster."""

import os
from argparse import Namespace
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.company import company
from jaxdist.launch.devices import Prepared, prepare_devices
from jaxdist.launch.joined import WATCHED_S, join
from jaxdist.launch.placed import was_placed
from jaxdist.launch.runs import write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.calibrate.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A machine that was measured, and where it was written."""

    machine: "Machine"
    """What was found."""
    path: Path
    """The cluster file."""
    leads: bool
    """Whether this process tells about it."""

    def tree(self) -> dict[str, Any]:
        """Return it as one object, seconds and bytes."""
        import json
        from dataclasses import asdict

        found = self.machine
        return {
            "cluster": json.loads(found.cluster.to_json()),
            "kernels": [asdict(point) for point in found.points],
            "sums": [asdict(each) for each in found.timings],
            "spread": found.spread,
            "written": str(self.path),
        }


def calibrate(args: Namespace) -> Calibrated:
    """Measure, and write the cluster file.

    Raises:
        BadInput: fewer devices than were asked for, or a machine that is too busy.
    """
    if was_placed(os.environ):
        join(WATCHED_S)
    mine = company()
    devices = args.devices or max(mine.count, 1)
    if devices < 1 or devices % mine.count:
        raise BadInput(
            "the devices do not divide over the processes",
            rule="--devices is a multiple of the processes",
            values=f"--devices {devices}, {mine.count} processes",
            remedy=f"--devices {mine.count * max(1, devices // mine.count)}",
        )
    prepared = prepare_devices(Plan(mesh=MeshShape(data=devices)), explicit=True)

    # From here on jax is imported: it sees the devices that were just prepared.
    from jaxdist.calibrate.machine import measured
    from jaxdist.meshes.build import build_mesh

    machine = measured(
        build_mesh(prepared.plan),
        name=args.output.stem,
        dtype=args.dtype,
        memory=_memory(prepared, devices),
        when=date.today().isoformat(),
        noisy=args.noisy,
    )
    if mine.leads:
        write_whole(args.output, machine.cluster.to_json())
    return Calibrated(machine=machine, path=args.output, leads=mine.leads)


def _memory(prepared: Prepared, devices: int) -> int:
    """Return the bytes of a device: of the accelerator, or its part of the host's."""
    import jax
    import psutil

    if prepared.platform != "cpu":
        told: Any = jax.local_devices()[0].memory_stats() or {}
        if "bytes_limit" in told:
            return int(told["bytes_limit"])
    return int(psutil.virtual_memory().total) // devices


def print_calibrated(out: "Console", made: Calibrated) -> None:
    """Say what was measured, and where it is."""
    from jaxdist.core.units import duration, percent, size
    from jaxdist.launch.console import print_next, print_table, table

    cluster = made.machine.cluster
    device, level = cluster.device, cluster.levels[0]
    (dtype,) = device.flops
    out.print(f"{cluster.name}    {device.name}, all measured together\n")
    heads = ("a kernel", "share of peak")
    rows = table("kernel", "FLOPs", *heads, right=("FLOPs", *heads))
    peak = device.flops[dtype].value
    for point in made.machine.points:
        share = point.flops / point.seconds / peak
        took = f"{1e6 * point.seconds:,.0f} us"
        rows.add_row(point.what, size(point.flops, ""), took, percent(share, 0))
    print_table(out, rows)
    out.print(f"  computes {size(peak, 'FLOP/s')} in {dtype} at most")
    out.print(f"  memory   {size(device.memory_bandwidth.value, 'B/s')} a device")
    out.print(f"  kernel   {1e6 * device.launch.value:.1f} us at least")
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
    print_next(out, f"jaxdist oracle predict digits --cluster {made.path}")
