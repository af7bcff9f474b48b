"""A host of `links.py`: sums one matrix a host in several ways, with jax."""

import json
import math
import sys

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.compress.powersgd import PowerSGD
from jaxdist.collectives.primitives import psum
from jaxdist.launch.distributed import initialize
from jaxdist.launch.testbed.traffic_counter import (
    CallTraffic,
    TrafficCounter,
    shard_local_arrays,
)

TWO_LEVELS = ("hierarchical",)  # its inner axis stands for the devices of a host


def two_phase(x, axes):
    """Sum as the two halves that compressed sums have, without compressing."""
    return lax.all_gather(lax.psum_scatter(x, axes, tiled=True), axes, tiled=True)


def rank_of(name):
    """Return the rank of `power4`, which is PowerSGD with four columns."""
    return int(name.removeprefix("power") or PowerSGD().rank)


def method(name):
    """Return what a name says to do with an array over axes."""
    if name == "two-phase":
        return two_phase
    via = PowerSGD(rank=rank_of(name)) if name.startswith("power") else name
    return lambda x, axes: psum(x, axes, algorithm=via)


def matrix(rank, mib):
    """Return a square matrix of so many MiB; another one on each host."""
    # 1 MiB is 2^18 float32 numbers.
    side = math.isqrt(mib << 18)
    return np.random.default_rng(rank).normal(size=(side, side)).astype(np.float32)


def compiled(name, mib):
    """Return a call of one method that has run once."""
    hosts = jax.process_count()
    two = name in TWO_LEVELS
    sizes, axes = ((hosts // 2, 2), ("data", "fsdp")) if two else ((hosts,), ("data",))
    mesh = jax.make_mesh(sizes, axes, (AxisType.Auto,) * len(axes))
    x, run, along = (
        shard_local_arrays(mesh, lambda rank: matrix(rank, mib)),
        method(name),
        P(axes),
    )
    each = jax.shard_map(
        lambda x: run(x, axes),
        mesh=mesh,
        in_specs=along,
        out_specs=along,
        check_vma=False,
    )
    step = jax.jit(each)
    jax.block_until_ready(step(x))
    return lambda: step(x)


def main(mib, methods, times):
    initialize()
    gauge = TrafficCounter(
        jax.make_mesh((jax.process_count(),), ("data",), (AxisType.Auto,))
    )
    calls = {name: compiled(name, mib) for name in methods}
    readings: dict[str, list[CallTraffic]] = {name: [] for name in methods}
    for _ in range(times):
        for name, call in calls.items():
            readings[name].append(gauge.measure(call))
    for name, each in readings.items():
        seconds, sent = [r.seconds for r in each], [r.tx_bytes for r in each]
        print(json.dumps({"method": name, "seconds": seconds, "sent": sent}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
