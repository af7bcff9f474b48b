"""Measures this machine, or the processes of a launcher, as a cluster."""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_output
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.text import parsing
from jaxdist.core.text.formatting import format_duration, format_percent, format_size
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.devices.jax_environment import requested_virtual_devices
from jaxdist.launch.devices.prepare import (
    PreparedDevices,
    find_platform,
    prepare_devices,
)
from jaxdist.launch.distributed.environment import is_multi_process
from jaxdist.launch.distributed.jax_processes import (
    WATCHED_HEARTBEAT_TIMEOUT_S,
    initialize,
)
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.launch.terminal.progress_bar import TaskProgress
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.calibrate.alpha_beta_fit import AlgorithmSwitch
    from jaxdist.calibrate.measure_cluster import CalibrationResult
    from jaxdist.launch.config import Experiment

_MIN_MESSAGE_BYTES: Final = 1e6
_MAX_MESSAGE_BYTES: Final = 2.0**32
"""Bytes of `--max-size`."""


@dataclass(frozen=True, kw_only=True)
class CalibrationQuery:
    """What `jaxdist calibrate machine` and `layers` take."""

    experiment: str | None = None
    """Name or file of an experiment whose layers are timed too."""
    overrides: Sequence[str] = ()
    """`key=value` of the experiment."""
    devices: int | None = None
    """Devices that are measured together, of all processes."""
    max_size: str | None = None
    """Bytes up to which collectives are timed, with their unit."""
    dtype: str = "float32"
    """Of the numbers that kernels compute with."""
    cluster: str | None = None
    """File of a measured cluster that the layers are added to."""
    quick: bool = False
    """Whether a few kernels and sizes of messages stand for all."""
    allow_noisy: bool = False
    """Whether timings that spread a lot are taken as well."""
    output: Path = Path("cluster.json")
    """The cluster file to write."""
    force: bool = False
    """Whether a file that is there is overwritten."""


@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """A machine that was measured, and where it was written."""

    result: "CalibrationResult"
    """What was found."""
    dtype: str
    """Of the numbers that kernels computed with."""
    output_path: Path
    """The cluster file."""
    is_primary: bool
    """Whether this process writes and prints it."""
    experiment: str = "digits"
    """The experiment whose layers were timed, or one to predict next."""
    quick: bool = False
    """Whether a few kernels and sizes of messages stood for all."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, in seconds and bytes."""
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


def calibrate(query: CalibrationQuery) -> CalibrationReport:
    """Measure this machine, and write the cluster file.

    Raises:
        BadInput: fewer devices than were asked for, or a machine that is too busy.
    """
    config = cluster = largest = None
    words = [query.experiment, *query.overrides] if query.experiment else []
    if query.experiment:
        config = resolve_config(query.experiment, query.overrides).config
    if query.cluster is not None:
        cluster = load_cluster(query.cluster)
        cluster.only_device("jaxdist calibrate layers")
        if config is None or cluster.device.kernels is None:
            raise BadInput(
                "no cluster that layers can be added to",
                rule="--cluster is a file that calibrate wrote on these devices, and "
                "an experiment says which layers",
                values=f"calibrate {' '.join(words)} --cluster {query.cluster}",
                remedy="jaxdist calibrate layers vgg16 --cluster mine.json -o own.json",
            )
    # The number of processes is known when they have found each other.
    if is_multi_process(os.environ):
        initialize(WATCHED_HEARTBEAT_TIMEOUT_S)
    mine = process_group()
    devices = _resolve_device_count(query, cluster, mine.size)

    if query.quick and cluster is not None:
        raise BadInput(
            "no machine is measured that could be measured quickly",
            rule="--quick is for a machine; with --cluster layers alone are timed",
            values=f"--quick, --cluster {query.cluster}",
            remedy=f"jaxdist calibrate layers {' '.join(words)} "
            f"--cluster {query.cluster}",
        )
    if query.max_size is not None:
        if cluster is not None or devices == 1:
            given = "1 device" if cluster is None else f"--cluster {query.cluster}"
            raise BadInput(
                "no collectives are timed that could be larger",
                rule="--max-size is for several devices, whose links are measured; "
                "with --cluster they stay as they are",
                values=f"--max-size {query.max_size}, {given}",
                remedy=f"jaxdist calibrate --devices {max(2, devices)} "
                f"--max-size {query.max_size}",
            )
        # What is no size at all, and not only too small a one, has the same remedy.
        try:
            largest = parsing.parse_bytes(query.max_size, "--max-size")
        except BadInput:
            largest = 0.0
        if not _MIN_MESSAGE_BYTES <= largest <= _MAX_MESSAGE_BYTES:
            raise BadInput(
                f"--max-size {query.max_size} is no size of a sum that is worth timing",
                rule="a number and its unit, from 1 MB, below which bytes are lost "
                "among messages, to 4 GiB",
                values=f"--max-size {query.max_size}",
                remedy=("--max-size 64MB", "without it: 8 MB"),
            )
    # Exactly these devices, or an error: fewer would be another machine.
    prepared = prepare_devices(Plan(mesh=MeshShape(data=devices)), explicit=True)
    max_bytes = None if largest is None else int(largest)
    machine = _measure(query, prepared, config, cluster, max_bytes)
    # All processes hold the same result; a shared folder is written once.
    if mine.is_primary:
        write_output(query.output, machine.cluster.to_json(), force=query.force)
    return CalibrationReport(
        result=machine,
        dtype=query.dtype,
        output_path=query.output,
        is_primary=mine.is_primary,
        experiment=query.experiment or CalibrationReport.experiment,
        quick=query.quick,
    )


def _resolve_device_count(
    query: CalibrationQuery, cluster: Cluster | None, processes: int
) -> int:
    """Return how many devices are measured: those of a cluster that is added to.

    Raises:
        BadInput: other ones were asked for, or they do not divide over the processes.
    """
    if cluster is not None:
        there = cluster.devices
    elif processes == 1:
        there = 1
    elif find_platform(os.environ).name == "cpu":
        # All that the processes have, since they take part anyway. jax cannot be asked
        # for fake devices before they are prepared.
        there = processes * (requested_virtual_devices(os.environ) or 1)
    else:
        import jax

        there = jax.device_count()
    devices = there if query.devices is None else query.devices
    if cluster is not None and devices != there:
        raise BadInput(
            "layers are added to a cluster of other devices",
            rule="all devices of the cluster are timed at once, as they were before",
            values=f"--devices {devices}, {query.cluster} has {there}",
            remedy=f"--devices {there}",
        )
    if devices < 1 or devices % processes:
        raise BadInput(
            "the devices do not divide over the processes",
            rule="--devices is a multiple of the processes",
            values=f"--devices {devices}, {processes} processes",
            remedy=f"--devices {processes * max(1, devices // processes)}",
        )
    return devices


def _measure(
    query: CalibrationQuery,
    prepared: PreparedDevices,
    config: "Experiment | None",
    cluster: Cluster | None,
    max_bytes: int | None,
) -> "CalibrationResult":
    """Measure the machine, unless it is `cluster`, and the layers of an experiment."""
    # From here on jax is imported: it sees the devices that were just prepared.
    import jax
    import psutil

    from jaxdist.calibrate.kernels import network_kernel_cases
    from jaxdist.calibrate.measure_cluster import (
        MAX_CPU_FLOPS,
        add_network_timings,
        measure_cluster,
    )
    from jaxdist.launch.calibration.block_timing import network_block_cases
    from jaxdist.launch.calibration.input_rate import measure_input_rate
    from jaxdist.launch.training.job.abstract_step import list_layer_calls
    from jaxdist.meshes.build import build_mesh

    # All devices lie along the data axis; levels are groups of neighbours on it.
    mesh, when = build_mesh(prepared.plan), date.today().isoformat()
    devices, machine = mesh.size, None
    if cluster is None:
        # Fake devices and the processes of a host share its memory; an accelerator has
        # its own, of which jax leaves some to the driver.
        memory = int(psutil.virtual_memory().total) // devices
        if prepared.platform != "cpu":
            stats: Any = jax.local_devices()[0].memory_stats() or {}
            memory = int(stats.get("bytes_limit", memory))
        with ExitStack() as stack:
            progress: list[TaskProgress] = []

            def on_timed(parts: int, what: str) -> None:
                # How many parts there are is known with the first; one process tells.
                if process_group().is_primary:
                    if not progress:
                        opened = TaskProgress(parts, f"measuring {devices} devices")
                        progress.append(stack.enter_context(opened))
                    progress[0].advance(what)

            # The name of the file is that of the cluster.
            machine = measure_cluster(
                mesh,
                name=query.output.stem,
                dtype=query.dtype,
                memory_bytes=memory,
                date=when,
                allow_noisy=query.allow_noisy,
                max_bytes=max_bytes,
                quick=query.quick,
                on_timed=on_timed,
            )
        cluster = machine.cluster
        if config is None:
            return machine
    assert config is not None
    # Layers are timed at the sizes that plans would give them: whole, divided by one
    # axis over all devices, and by two; blocks on a device's samples, on few, on one.
    found = add_network_timings(
        cluster,
        mesh,
        network_kernel_cases(
            list_layer_calls(config), sorted({1, devices, devices**2}), MAX_CPU_FLOPS
        ),
        network_block_cases(
            config, sorted({devices, devices**2, config.data.batch}), MAX_CPU_FLOPS
        ),
        dtype=query.dtype,
        date=when,
    )
    rate = measure_input_rate(config, mesh)
    if rate is not None:
        origin = (
            f"measured: jaxdist calibrate {config.name}, {mesh.size} devices, {when}"
        )
        found = replace(found, cluster=_add_input_rate(found.cluster, rate, origin))
    if machine is None:
        return found
    return replace(
        machine,
        cluster=found.cluster,
        kernel_timings=machine.kernel_timings + found.kernel_timings,
        block_timings=found.block_timings,
    )


def _add_input_rate(cluster: Cluster, rate: float, origin: str) -> Cluster:
    """Return the cluster with a host's part of the bytes a second of all hosts."""
    # There are as many hosts as parts of its innermost level.
    hosts = cluster.devices // cluster.levels[0].size
    return replace(cluster, input_rate=SourcedNumber(rate / hosts, origin))


def print_calibration(out: "Console", report: CalibrationReport) -> None:
    """Print what was measured, and where it was written."""
    result, cluster = report.result, report.result.cluster
    device = cluster.device
    out.print(f"{cluster.name}    {device.name}, all measured together\n")
    heads = ("FLOPs", "forward", "of peak", "backward", "of peak ")
    rows = make_table("kernel", *heads, right=heads)
    # Shares are of the fastest measured kernel, and not of a data sheet.
    peak = device.peak(report.dtype).value
    for kernel in result.kernel_timings:
        flops = kernel.shape.flops
        cells = [kernel.shape.text, format_size(flops, "")]
        # Backward computes two gradients, each as much work as forward.
        for took, work in ((kernel.forward_s, 1), (kernel.backward_s, 2)):
            share = format_percent(work * flops / took / peak, 0)
            cells += [f"{1e6 * took:,.0f} us", share]
        rows.add_row(*cells)
    print_table(out, rows)
    if result.block_timings:
        columns = ("samples", "forward", "backward", "kept ")
        rows = make_table("block", *columns, right=columns)
        for block in result.block_timings:
            rows.add_row(
                block.key,
                f"{block.samples:,.0f}",
                *(format_duration(s) for s in (block.forward_s, block.backward_s)),
                format_size(block.kept),
            )
        print_table(out, rows)
    facts = {
        "computes": f"{format_size(peak, 'FLOP/s')} in {report.dtype} at most",
        "memory": f"{format_size(device.memory_bandwidth.value, 'B/s')} a device",
    }
    if cluster.host_link is not None:
        facts["copies"] = f"{format_size(cluster.host_link.value, 'B/s')} to a device"
    if cluster.input_rate is not None:
        host = " a host" * (len(cluster.levels) > 1)
        rate = format_size(cluster.input_rate.value, "B/s")
        facts["input"] = f"{rate}{host} of {report.experiment}"
    facts["kernel"] = f"{1e6 * device.launch.value:.1f} us at least"
    if cluster.devices > 1:
        facts["contention"] = f"{device.crowd.value:.2g} times as long as alone"
    for name, fact in facts.items():
        out.print(f"  {name:10} {fact}")
    levels = {level.name: level for level in cluster.levels}
    for sums in result.all_reduces:
        level, first, last = levels[sums.level], sums.timings[0], sums.timings[-1]
        # A group with a stride is of one device a host: its links are those of hosts.
        unit = "host" if sums.group.stride > 1 else "device"
        # A single level has no name that would say more than what is in it.
        only = len(levels) == 1
        out.print(
            f"  {'sums' if only else level.name:10} "
            f"{'' if only else f'{level.size} {unit}s: '}"
            f"{1e6 * level.alpha.value:,.0f} us a message, "
            f"{format_size(level.bandwidth.value, 'B/s')} a {unit}; "
            f"{format_percent(sums.fit.spread)} from that on average, over "
            f"{format_size(first.payload)} to {format_size(last.payload)}, the largest "
            f"in {format_duration(last.seconds)}",
            soft_wrap=True,
        )
        if sums.switch:
            out.print(format_switch(sums.switch), soft_wrap=True)
    out.print(f"  written    {report.output_path}\n")
    commands = [f"jaxdist predict {report.experiment} --cluster {report.output_path}"]
    if report.quick:
        out.print(f"  {_coarse_numbers(cluster)}", soft_wrap=True)
        commands.append(
            f"jaxdist calibrate --devices {cluster.devices} -o {report.output_path} "
            "--force    (minutes)"
        )
    print_next_commands(out, *commands)


def _coarse_numbers(cluster: Cluster) -> str:
    """Say what a quick calibration took from few timings, the coarsest first."""
    coarse = ["kernels of other sizes than these"]
    if cluster.devices > 1:
        coarse = [
            "messages of other sizes than four, and groups of some of the devices",
            *coarse,
            "compressors, which were not timed",
        ]
    return f"without --quick it would know better: {'; '.join(coarse)}"


def format_switch(switch: "AlgorithmSwitch") -> str:
    """Say between which sizes an algorithm changes, and the links on each side."""
    below, above = (
        f"{1e6 * fit.alpha:,.3g} us and {format_size(fit.bandwidth, 'B/s')}"
        for fit in (switch.small, switch.large)
    )
    return (
        f"  switch     {switch.program} between {switch.below:,} B and "
        f"{switch.above:,} B: {below} below, {above} above; "
        f"{format_percent(switch.spread)} from two lines"
    )
