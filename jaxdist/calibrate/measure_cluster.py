"""Measuring a machine: a cluster whose every number was timed on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxdist.calibrate import blocks, kernels
from jaxdist.calibrate.collective_timings import COLLECTIVE_KINDS, time_collectives
from jaxdist.calibrate.compression_cost import measure_compression_cost
from jaxdist.calibrate.hosts import host_topology
from jaxdist.calibrate.levels import (
    LevelAllReduce,
    add_collective_costs,
    build_levels,
    level_all_reduces,
    timed_groups,
)
from jaxdist.calibrate.synchronized_timing import (
    TimedCall,
    bind_on_all_devices,
    first_quartiles,
    seconds_per_call,
    time_rounds,
)
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device, EfficiencyCurve
from jaxdist.core.cluster.kernel_timings import (
    BlockTiming,
    BlockTimings,
    KernelTiming,
    KernelTimings,
)
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput

MAX_FIT_SPREAD: Final = 0.35
"""Largest spread of a link's timings around the line through them."""
MAX_CPU_FLOPS: Final = 5e9
"""FLOPs of the largest kernel that is timed on a CPU."""

_QUICK_KERNELS: Final = 7
"""Kernels of a quick calibration, about, spread over all."""
_QUICK_MAX_FLOPS: Final = 2e8
"""FLOPs of the largest of these."""
# Elements of the array that is streamed: 32 MiB in float32, beyond the caches.
_STREAM_ELEMENTS: Final = 1 << 23
# The products whose time is compared alone and in company.
_MATRIX_SIDE: Final = 256
_REPEATS: Final = 100
_CONTENTION_BUDGET_S: Final = 1.0
_CONTENTION_MAX_ROUNDS: Final = 15
_COPY_BYTES: Final = 1 << 25
_COPY_ROUNDS: Final = 5


@dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """A measured cluster, and the timings behind it."""

    cluster: Cluster
    """The cluster, as the oracle reads it."""
    kernel_timings: tuple[KernelTiming, ...]
    """Timed products and convolutions."""
    block_timings: tuple[BlockTiming, ...] = ()
    """Timed blocks of a network."""
    all_reduces: tuple[LevelAllReduce, ...] = ()
    """Timed all-reduces of each level; none on one device."""


def measure_cluster(
    mesh: Mesh,
    *,
    name: str,
    dtype: str,
    memory_bytes: int,
    date: str,
    allow_noisy: bool = False,
    max_bytes: int | None = None,
    quick: bool = False,
    on_timed: Callable[[int, str], None] = lambda total, what: None,
) -> CalibrationResult:
    """Measure the devices of a mesh and what connects them, all at once.

    Processes with several devices each are hosts: the links within and between them are
    levels of their own.

    Args:
        mesh: mesh with all devices along its data axis.
        name: name of the cluster.
        dtype: dtype of computations.
        memory_bytes: memory of a device.
        date: date, for the origin of the numbers.
        allow_noisy: accept a link, however much its timings spread.
        max_bytes: size up to which collectives are timed; None for 8 MB.
        quick: whether a few kernels and sizes stand for all, and no compressors: about
            20 s in place of minutes.
        on_timed: told of each part that is done: how many there are, and which it was.

    Raises:
        BadInput: all-reduces that spread so much that no line fits.
    """
    devices = mesh.shape["data"]
    how = " --quick" if quick else ""
    origin = f"measured: jaxdist calibrate{how}, {devices} devices at once, {date}"
    most = _QUICK_MAX_FLOPS if quick else MAX_CPU_FLOPS
    cases = list(kernels.default_kernel_cases(most))
    if quick:
        cases = cases[:: -(-len(cases) // _QUICK_KERNELS)]
    hosts = host_topology(mesh)
    groups = timed_groups(hosts, whole=quick)
    parts = len(cases) + len(groups) * len(COLLECTIVE_KINDS) + 1
    done = partial(on_timed, parts)
    timed_kernels = kernels.time_kernels(
        mesh, cases, dtype, on_timed=lambda shape: done(shape.text)
    )
    peak, curve = fit_efficiency_curve(timed_kernels, origin)
    # Links: every kind of collective in every group, then the levels from the
    # all-reduces.
    chains = time_collectives(mesh, groups, max_bytes, quick=quick, on_timed=done)
    sums = level_all_reduces(hosts, chains)
    for each in sums:
        if each.fit.spread > MAX_FIT_SPREAD and not allow_noisy:
            listed = ", ".join(
                f"{t.payload:,} B: {1e3 * t.seconds:.2f} ms" for t in each.timings
            )
            switch = f"; {each.switch.text}" if each.switch else ""
            raise BadInput(
                f"the sums of level {each.level} spread too much to calibrate on",
                rule=f"timings lie within {MAX_FIT_SPREAD:.0%} of a line through them, "
                "on average",
                values=f"{each.fit.spread:.0%}: {listed}{switch}",
                remedy=(
                    "again on a machine that does nothing else",
                    "--allow-noisy takes it as it is",
                ),
            )

    # Memory: one pass reads and writes the array; the number of the call keeps it in
    # the loop. Launches: so few numbers that a call takes no longer than its
    # operations' start.
    stream, small = np.ones(_STREAM_ELEMENTS, np.float32), np.ones(64, np.float32)
    stream_s = seconds_per_call(mesh, lambda i, a: a * (1.0001 + i), stream, calls=16)
    launch_s = seconds_per_call(
        mesh, lambda i, a: jnp.cumsum(jnp.sin(a + i)), small, calls=300
    )
    device = Device(
        name=f"{mesh.devices.flat[0].device_kind}, {devices} at once",
        flops={dtype: SourcedNumber(peak, origin)},
        memory=SourcedNumber(memory_bytes, "given: by the system"),
        memory_bandwidth=SourcedNumber(2 * stream.nbytes / stream_s, origin),
        efficiency=curve,
        kernels=KernelTimings(origin=origin, peak=peak, timed=timed_kernels),
        launch=SourcedNumber(launch_s, origin),
        crowd=SourcedNumber(measure_core_contention(mesh), origin),
    )
    host_link = SourcedNumber(host_copy_bandwidth(mesh), origin)
    done("memory, launches and copies")
    # Between devices there is something to compress.
    if devices > 1 and not quick:
        device = replace(device, packing=measure_compression_cost(mesh, origin))
    cluster = Cluster(
        name=name,
        device=device,
        levels=build_levels(hosts, sums, origin),
        source=origin,
        host_link=host_link,
    )
    # Costs of single collectives are relative to the levels' own numbers.
    return CalibrationResult(
        cluster=add_collective_costs(cluster, hosts, chains, origin),
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
    """Time a network's layers and blocks, and add them to a measured cluster.

    Args:
        cluster: cluster of the same devices.
        mesh: mesh with all devices along its data axis.
        kernel_cases: layers.
        block_cases: blocks.
        dtype: dtype of computations.
        date: date, for the origin of the numbers.
    """
    origin = f"measured: jaxdist calibrate, {mesh.size} devices at once, {date}"
    # The peak stays that of the machine's own kernels, to which efficiencies relate.
    device, peak = cluster.device, cluster.device.peak(dtype).value
    timed = kernels.time_kernels(mesh, kernel_cases, dtype)
    more = KernelTimings(origin=origin, peak=peak, timed=timed)
    table = device.kernels.with_more(more) if device.kernels else more
    timed_blocks = blocks.time_blocks(mesh, block_cases)
    found = BlockTimings(origin=origin, peak=peak, timed=timed_blocks)
    every = device.blocks.with_more(found) if device.blocks else found
    device = replace(device, kernels=table, blocks=every if every.timed else None)
    return CalibrationResult(
        cluster=replace(cluster, device=device),
        kernel_timings=timed,
        block_timings=timed_blocks,
    )


def fit_efficiency_curve(
    timings: Sequence[KernelTiming], provenance: str
) -> tuple[float, EfficiencyCurve]:
    """Return the peak FLOP/s, and the share of it that kernels of a size reach."""
    # The peak is that of the fastest kernel. A point of the curve is the geometric mean
    # of the kernels whose FLOPs are between two powers of four.
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


def measure_core_contention(mesh: Mesh) -> float:
    """Return how many times as long kernels take where all devices compute, at least 1.

    Args:
        mesh: mesh of the devices.
    """
    # It is 1 where each device has processors of its own. Of N hosts that are processes
    # on P cores it is N / P where each may use one core (2.0 of four on two,
    # 2026-11-24), and up to N where one alone uses them all (2.7 to 3.7, 2026-11-23).
    # Kernels are timed on all devices at once; in a pipeline that fills or drains some
    # rest meanwhile (jaxdist/oracle/schedule_times.py).
    calls = [_compute_on(mesh, active) for active in (1, mesh.size)]
    alone, together = first_quartiles(
        mesh, calls, budget_s=_CONTENTION_BUDGET_S, max_rounds=_CONTENTION_MAX_ROUNDS
    )
    return max(1.0, together / alone)


def _compute_on(mesh: Mesh, active_devices: int) -> TimedCall:
    """Return a call in which the first devices compute, and the others do not."""

    def products(square: jax.Array) -> jax.Array:
        works = lax.axis_index(mesh.axis_names) < active_devices
        times = jnp.where(works, _REPEATS, 0)
        return lax.fori_loop(0, times, lambda _, x: jnp.tanh(x @ square), square)

    square = np.full((_MATRIX_SIDE, _MATRIX_SIDE), 1 / _MATRIX_SIDE, np.float32)
    return bind_on_all_devices(mesh, products, square)


def host_copy_bandwidth(mesh: Mesh) -> float:
    """Return the bytes a second between a device and its host, the slower way.

    Args:
        mesh: mesh whose devices copy at once.
    """
    own = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    x = np.ones(_COPY_BYTES // 4, np.float32)

    def there() -> list[jax.Array]:
        return [jax.device_put(x, device, may_alias=False) for device in own]

    # JAX keeps the host's copy of an array that was read before, so each array that is
    # copied back is new, and the seconds of sending it are subtracted.
    def there_and_back() -> list[Any]:
        return [np.array(y) for y in jax.block_until_ready(there())]

    calls = [there, there_and_back]
    one, both = np.median(time_rounds(mesh, calls, _COPY_ROUNDS), axis=1)
    return x.nbytes / float(max(one, both - one))
