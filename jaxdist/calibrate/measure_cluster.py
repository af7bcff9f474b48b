"""A machine as it was measured: a cluster whose every number says so."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from jax.sharding import Mesh

from jaxdist.calibrate import blocks, kernels
from jaxdist.calibrate.collective_timings import time_collectives
from jaxdist.calibrate.compression_cost import measure_compression_cost
from jaxdist.calibrate.core_contention import measure_core_contention
from jaxdist.calibrate.host_copies import host_copy_bandwidth
from jaxdist.calibrate.hosts import host_topology
from jaxdist.calibrate.levels import (
    LevelAllReduce,
    add_collective_costs,
    build_levels,
    level_all_reduces,
    timed_groups,
)
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.block_timings import BlockTiming, BlockTimings
from jaxdist.core.cluster.device import Device, EfficiencyCurve
from jaxdist.core.cluster.kernel_timings import KernelTiming, KernelTimings
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput

MAX_FIT_SPREAD: Final = 0.35
"""Spread of the timings of a link above which it is not taken for measured."""
MAX_CPU_FLOPS: Final = 5e9
"""FLOPs of the largest kernel that is timed on a CPU."""


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """What calibrate found."""

    cluster: Cluster
    """All of it, as the oracle reads it."""
    kernel_timings: tuple[KernelTiming, ...]
    """Products and convolutions that were timed."""
    block_timings: tuple[BlockTiming, ...] = ()
    """Whole blocks that were."""
    all_reduces: tuple[LevelAllReduce, ...] = ()
    """Sums that were timed, of each level; none on one device."""


def measure_cluster(
    mesh: Mesh,
    *,
    name: str,
    dtype: str,
    memory_bytes: int,
    date: str,
    allow_noisy: bool = False,
    max_bytes: int | None = None,
) -> CalibrationResult:
    """Measure the devices of a mesh and what connects them, all at once.

    Processes with several devices each are hosts: what is in one and what is between
    them are levels of their own.

    Args:
        mesh: all devices lie along its data axis.
        name: of the cluster.
        dtype: of the numbers that are computed with.
        memory_bytes: bytes of a device.
        date: a date, for the origins.
        allow_noisy: take a link as it is, however much it spreads.
        max_bytes: bytes up to which collectives are timed; None for 8 MB.

    Raises:
        BadInput: sums that spread so much that no line goes through them.
    """
    devices = mesh.shape["data"]
    origin = f"measured: jaxdist calibrate, {devices} devices at once, {date}"
    timed_kernels = kernels.time_kernels(
        mesh, kernels.default_kernel_cases(MAX_CPU_FLOPS), dtype
    )
    peak, curve = fit_efficiency_curve(timed_kernels, origin)
    hosts = host_topology(mesh)
    chains = time_collectives(mesh, timed_groups(hosts), max_bytes)
    sums = level_all_reduces(hosts, chains)
    for each in sums:
        if each.fit.spread > MAX_FIT_SPREAD and not allow_noisy:
            raise _noise_error(each)
    device = Device(
        name=f"{mesh.devices.flat[0].device_kind}, {devices} at once",
        flops={dtype: SourcedNumber(peak, origin)},
        memory=SourcedNumber(memory_bytes, "given: by the system"),
        memory_bandwidth=SourcedNumber(kernels.memory_bandwidth(mesh), origin),
        efficiency=curve,
        kernels=KernelTimings(origin=origin, peak=peak, timed=timed_kernels),
        launch=SourcedNumber(kernels.kernel_launch_overhead(mesh), origin),
        crowd=SourcedNumber(measure_core_contention(mesh), origin),
    )
    cluster = Cluster(
        name=name,
        device=device,
        levels=build_levels(hosts, sums, origin),
        source=origin,
        host_link=SourcedNumber(host_copy_bandwidth(mesh), origin),
    )
    if devices > 1:
        device = replace(device, packing=measure_compression_cost(mesh, origin))
    return CalibrationResult(
        cluster=add_collective_costs(
            replace(cluster, device=device), hosts, chains, origin
        ),
        kernel_timings=timed_kernels,
        all_reduces=sums,
    )


def add_network_timings(
    cluster: Cluster,
    mesh: Mesh,
    kernel_cases: Sequence[kernels.KernelCase],
    block_cases: Sequence[blocks.BlockCase] = (),
    *,
    dtype: str,
    date: str,
) -> CalibrationResult:
    """Time a network's layers and blocks, and add them to a cluster that was measured.

    Args:
        cluster: of the same devices.
        mesh: all devices lie along its data axis.
        kernel_cases: the layers.
        block_cases: the blocks.
        dtype: of the numbers that are computed with.
        date: a date, for the origin.
    """
    origin = f"measured: jaxdist calibrate, {mesh.size} devices at once, {date}"
    device, peak = cluster.device, cluster.device.peak(dtype).value
    timed = kernels.time_kernels(mesh, kernel_cases, dtype)
    more = KernelTimings(origin=origin, peak=peak, timed=timed)
    table = device.kernels.with_more(more) if device.kernels else more
    whole = blocks.time_blocks(mesh, block_cases)
    found = BlockTimings(origin=origin, peak=peak, timed=whole)
    every = device.blocks.with_more(found) if device.blocks else found
    device = replace(device, kernels=table, blocks=every if every.timed else None)
    return CalibrationResult(
        cluster=replace(cluster, device=device),
        kernel_timings=timed,
        block_timings=whole,
    )


def fit_efficiency_curve(
    timings: Sequence[KernelTiming], provenance: str
) -> tuple[float, EfficiencyCurve]:
    """Return the peak and the share of it that kernels of a size reach.

    The peak is what the fastest kernel reaches; a point of the curve is the mean of
    those whose FLOPs begin with the same power of four.
    """
    sizes = np.array([kernel.shape.flops for kernel in timings])
    rates = sizes / np.array([kernel.forward_s for kernel in timings])
    bins = np.floor(np.log(sizes) / np.log(4))
    peak = float(rates.max())
    curve = tuple(
        (
            float(np.exp(np.log(sizes[bins == place]).mean())),
            min(1.0, float(np.exp(np.log(rates[bins == place]).mean()) / peak)),
        )
        for place in sorted(set(bins.tolist()))
    )
    return peak, EfficiencyCurve(points=curve, origin=provenance)


def _noise_error(sums: LevelAllReduce) -> BadInput:
    slow = ", ".join(f"{t.payload:,} B: {1e3 * t.seconds:.2f} ms" for t in sums.timings)
    two = sums.switch
    return BadInput(
        f"the sums of level {sums.level} spread too much to calibrate on",
        rule=f"timings lie within {MAX_FIT_SPREAD:.0%} of a line through them, on "
        "average",
        values=f"{sums.fit.spread:.0%}: {slow}" + (f"; {two.text}" if two else ""),
        remedy=(
            "again on a machine that does nothing else",
            "--noisy takes it as it is",
        ),
    )
