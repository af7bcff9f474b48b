"""A host of `links.py`: sums one matrix a host in several ways, with jax."""

import json
import math
import sys

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.launch.gauge import Gauge, spread
from jaxdist.launch.joined import join

AXIS = "data"


def exact(x):
    return lax.psum(x, AXIS)


def two_phase(x):
    """Sum as the two halves that compressed sums have, without compressing."""
    return lax.all_gather(lax.psum_scatter(x, AXIS, tiled=True), AXIS, tiled=True)


METHODS = {"exact": exact, "two-phase": two_phase}


def matrix(rank, mib):
    """Return a square matrix of so many MiB; another one on each host."""
    side = math.isqrt(mib << 18)
    return np.random.default_rng(rank).normal(size=(side, side)).astype(np.float32)


def compiled(mesh, name, x):
    """Return a call of one method that has run once."""
    along = P(AXIS)
    each = jax.shard_map(
        METHODS[name], mesh=mesh, in_specs=along, out_specs=along, check_vma=False
    )
    step = jax.jit(each)
    jax.block_until_ready(step(x))
    return lambda: step(x)


def main(mib, methods, times):
    join()
    mesh = jax.make_mesh((jax.process_count(),), (AXIS,), (AxisType.Auto,))
    gauge, x = Gauge(mesh), spread(mesh, lambda rank: matrix(rank, mib))
    calls = {name: compiled(mesh, name, x) for name in methods}
    readings = {name: [] for name in methods}
    for _ in range(times):
        for name, call in calls.items():
            readings[name].append(gauge.read(call))
    for name, each in readings.items():
        seconds, sent = [r.seconds for r in each], [r.sent for r in each]
        print(json.dumps({"method": name, "seconds": seconds, "sent": sent}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
