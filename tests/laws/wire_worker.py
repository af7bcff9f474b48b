"""One of several hosts: runs collectives, counts their bytes, prints a line each."""

import json
import sys

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.launch.gauge import Gauge, spread
from jaxdist.launch.joined import join
from jaxdist.partition.foreign import bytes_of

AXIS = "data"
TIMES = 5


def ring(x):
    size = lax.axis_size(AXIS)
    return lax.ppermute(x, AXIS, [(i, (i + 1) % size) for i in range(size)])


METHODS = {
    "psum": lambda x: lax.psum(x, AXIS),
    "psum_scatter": lambda x: lax.psum_scatter(x, AXIS, tiled=True),
    "all_gather": lambda x: lax.all_gather(x, AXIS, tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True),
    "ppermute": ring,
}


def count(mesh, name, elements):
    """Return one method's bytes as written and as compiled, and the call."""
    along = P(AXIS)
    each = jax.shard_map(
        METHODS[name], mesh=mesh, in_specs=along, out_specs=along, check_vma=False
    )
    x = spread(mesh, lambda rank: numbers(rank, elements))
    step = jax.jit(each)
    said = {"name": name, "elements": elements}
    return said | bytes_of(step, x).tree()["total"], lambda: step(x)


def sent(gauge, call):
    jax.block_until_ready(call())
    return [gauge.read(call).sent for _ in range(TIMES)]


def numbers(rank, elements):
    return np.random.default_rng(rank).normal(size=elements).astype(np.float32)


def main(names, sizes, wired):
    join()
    hosts = jax.process_count()
    mesh = jax.make_mesh((hosts,), (AXIS,), (AxisType.Auto,))
    gauge = Gauge(mesh) if wired else None
    for elements in sizes:
        for name in names:
            said, call = count(mesh, name, elements)
            print(json.dumps(said | ({"sent": sent(gauge, call)} if gauge else {})))


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
