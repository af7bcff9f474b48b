"""Calibrating: this machine, or the processes of a launcher, measured as a cluster."""

import os
from argparse import Namespace
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.text import parsing
from jaxdist.launch.calibration.measure_table import CalibrationReport
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.devices.jax_environment import requested_virtual_devices
from jaxdist.launch.devices.platform import find_platform
from jaxdist.launch.devices.prepare import PreparedDevices, prepare_devices
from jaxdist.launch.distributed.environment import is_multi_process
from jaxdist.launch.distributed.initialize import (
    WATCHED_HEARTBEAT_TIMEOUT_S,
    initialize,
)
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.run_folder.folder import write_atomic
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxdist.calibrate.blocks import BlockCase as Block
    from jaxdist.calibrate.kernels import KernelCase
    from jaxdist.calibrate.measure_cluster import CalibrationResult
    from jaxdist.launch.config import Experiment

_MIN_MESSAGE_BYTES: Final = 1e6
_MAX_MESSAGE_BYTES: Final = 2.0**32
"""Bytes of `--largest`."""


def calibrate(args: Namespace) -> CalibrationReport:
    """Measure, and write the cluster file.

    Raises:
        BadInput: fewer devices than were asked for, or a machine that is too busy.
    """
    config = (
        resolve_config(args.words[0], args.words[1:]).config if args.words else None
    )
    cluster = None if args.cluster is None else _base_cluster(args)
    if is_multi_process(os.environ):
        initialize(WATCHED_HEARTBEAT_TIMEOUT_S)
    mine = process_group()
    devices = _resolve_device_count(args, cluster, mine.size)
    largest = _parse_max_bytes(args, cluster, devices)
    prepared = prepare_devices(Plan(mesh=MeshShape(data=devices)), explicit=True)
    machine = _measure(args, prepared, config, cluster, largest)
    if mine.is_primary:
        write_atomic(args.output, machine.cluster.to_json())
    return CalibrationReport(
        result=machine,
        dtype=args.dtype,
        output_path=args.output,
        is_primary=mine.is_primary,
        experiment=args.words[0] if args.words else CalibrationReport.experiment,
    )


def _resolve_device_count(
    args: Namespace, cluster: Cluster | None, processes: int
) -> int:
    """Return how many devices are measured: those of a cluster that is added to.

    Raises:
        BadInput: other ones were asked for, or they do not divide over the processes.
    """
    there = _default_device_count(processes) if cluster is None else cluster.devices
    devices = there if args.devices is None else args.devices
    if cluster is not None and devices != there:
        raise BadInput(
            "layers are added to a cluster of other devices",
            rule="all devices of the cluster are timed at once, as they were before",
            values=f"--devices {devices}, {args.cluster} has {there}",
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


def _default_device_count(processes: int) -> int:
    """Return how many devices are measured where nobody says it.

    One, alone; of several processes all that they have, since they take part anyway.
    """
    if processes == 1:
        return 1
    if find_platform(os.environ).name == "cpu":
        return processes * (requested_virtual_devices(os.environ) or 1)
    import jax

    return jax.device_count()


def _parse_max_bytes(
    args: Namespace, cluster: Cluster | None, devices: int
) -> int | None:
    """Return the bytes up to which collectives are timed; None where nobody says it.

    Raises:
        BadInput: no size, too few to tell what a byte costs, too many, or nothing that
            is timed.
    """
    if args.largest is None:
        return None
    if cluster is not None or devices == 1:
        raise BadInput(
            "no collectives are timed that could be larger",
            rule="--largest is for several devices, whose links are measured; with "
            "--cluster they stay as they are",
            values=f"--largest {args.largest}, "
            + ("1 device" if cluster is None else f"--cluster {args.cluster}"),
            remedy=f"jaxdist calibrate --devices {max(2, devices)} "
            f"--largest {args.largest}",
        )
    try:
        size = parsing.parse_bytes(args.largest, "--largest")
    except BadInput:
        size = 0.0
    if not _MIN_MESSAGE_BYTES <= size <= _MAX_MESSAGE_BYTES:
        raise BadInput(
            f"--largest {args.largest} is no size of a sum that is worth timing",
            rule="a number and its unit, from 1 MB, below which bytes are lost among "
            "messages, to 4 GiB",
            values=f"--largest {args.largest}",
            remedy=("--largest 64MB", "without it: 8 MB"),
        )
    return int(size)


def _measure(
    args: Namespace,
    prepared: PreparedDevices,
    config: "Experiment | None",
    cluster: Cluster | None,
    max_bytes: int | None,
) -> "CalibrationResult":
    """Measure the machine, unless it is given, and the layers of an experiment."""
    # From here on jax is imported: it sees the devices that were just prepared.
    from jaxdist.calibrate.measure_cluster import add_network_timings, measure_cluster
    from jaxdist.meshes.build import build_mesh

    mesh, when = build_mesh(prepared.plan), date.today().isoformat()
    machine = None
    if cluster is None:
        machine = measure_cluster(
            mesh,
            name=args.output.stem,
            dtype=args.dtype,
            memory_bytes=_device_memory_bytes(prepared, mesh.size),
            date=when,
            allow_noisy=args.noisy,
            max_bytes=max_bytes,
        )
        if config is None:
            return machine
        cluster = machine.cluster
    layers = _kernel_cases(config, mesh.size) if config else ()
    wholes = _block_cases(config, mesh.size) if config else ()
    found = add_network_timings(
        cluster, mesh, layers, wholes, dtype=args.dtype, date=when
    )
    if config is not None:
        found = replace(
            found, cluster=_add_input_rate(found.cluster, config, mesh, when)
        )
    if machine is None:
        return found
    return replace(
        machine,
        cluster=found.cluster,
        kernel_timings=machine.kernel_timings + found.kernel_timings,
        block_timings=found.block_timings,
    )


def _add_input_rate(
    cluster: Cluster, config: "Experiment", mesh: "Mesh", date: str
) -> Cluster:
    """Return the cluster with what its hosts make ready of an experiment's samples."""
    from jaxdist.launch.calibration.input_rate import measure_input_rate

    rate = measure_input_rate(config, mesh)
    if rate is None:
        return cluster
    origin = f"measured: jaxdist calibrate {config.name}, {mesh.size} devices, {date}"
    # It was of all hosts together, which are many where a level is of one's devices.
    hosts = cluster.devices // cluster.levels[0].size
    return replace(cluster, input_rate=SourcedNumber(rate / hosts, origin))


def _base_cluster(args: Namespace) -> Cluster:
    """Return the cluster that layers are added to.

    Raises:
        BadInput: nobody measured it here.
    """
    cluster = load_cluster(args.cluster)
    if not args.words or cluster.device.kernels is None:
        raise BadInput(
            "no cluster that layers can be added to",
            rule="--cluster is a file that calibrate wrote on these devices, and an "
            "experiment says which layers",
            values=f"calibrate {' '.join(args.words)} --cluster {args.cluster}",
            remedy="jaxdist calibrate vgg16 --cluster cluster.json -o cluster.json",
        )
    return cluster


def _kernel_cases(config: "Experiment", devices: int) -> "tuple[KernelCase, ...]":
    """Return the layers of an experiment at the sizes that plans would give them."""
    from jaxdist.calibrate.kernels import network_kernel_cases
    from jaxdist.calibrate.measure_cluster import MAX_CPU_FLOPS
    from jaxdist.launch.training.job.abstract_step import list_layer_calls

    return network_kernel_cases(
        list_layer_calls(config), sorted({1, devices, devices**2}), MAX_CPU_FLOPS
    )


def _block_cases(config: "Experiment", devices: int) -> "tuple[Block, ...]":
    """Return the blocks of an experiment on a device's samples, on few, and on one."""
    from jaxdist.calibrate.measure_cluster import MAX_CPU_FLOPS
    from jaxdist.launch.calibration.block_timing import network_block_cases

    return network_block_cases(
        config, sorted({devices, devices**2, config.data.batch}), MAX_CPU_FLOPS
    )


def _device_memory_bytes(prepared: PreparedDevices, devices: int) -> int:
    """Return the bytes of a device: of the accelerator, or its part of the host's."""
    import jax
    import psutil

    if prepared.platform != "cpu":
        told: Any = jax.local_devices()[0].memory_stats() or {}
        if "bytes_limit" in told:
            return int(told["bytes_limit"])
    return int(psutil.virtual_memory().total) // devices
