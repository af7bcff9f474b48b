"""One of several hosts: runs collectives, counts their bytes, prints a line each."""

import functools
import json
import sys

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.primitives import psum, psum_scatter
from jaxdist.inspect import bytes_of
from jaxdist.launch.distributed import initialize
from jaxdist.launch.testbed.traffic_counter import TrafficCounter, shard_local_arrays

TIMES = 5


def ring(x, axes):
    size = lax.axis_size(axes)
    return lax.ppermute(x, axes, [(i, (i + 1) % size) for i in range(size)])


PLAIN = {
    "psum": lax.psum,
    "psum_scatter": functools.partial(lax.psum_scatter, tiled=True),
    "all_gather": functools.partial(lax.all_gather, tiled=True),
    "all_to_all": lambda x, axes: lax.all_to_all(x, axes, 0, 0, tiled=True),
    "ppermute": ring,
}
FAMILY = {"psum": psum, "psum_scatter": psum_scatter}


def method(name):
    """Return what `psum` or `psum int8` does, and the axes that it does it over."""
    kind, _, via = name.partition(" ")
    axes = ("data", "fsdp") if via == "hierarchical" else ("data",)
    if not via:
        return PLAIN[kind], axes
    return functools.partial(FAMILY[kind], algorithm=via), axes


def prepared(name, shape):
    """Return a call, its bytes as written and as compiled, by kind of collective."""
    run, axes = method(name)
    hosts = jax.process_count()
    sizes = (hosts,) if len(axes) == 1 else (hosts // 2, 2)
    mesh = jax.make_mesh(sizes, axes, (AxisType.Auto,) * len(axes))
    along = P(axes)
    each = jax.shard_map(
        lambda x: run(x, axes),
        mesh=mesh,
        in_specs=along,
        out_specs=along,
        check_vma=False,
    )
    x = shard_local_arrays(mesh, lambda rank: numbers(rank, shape))
    step = jax.jit(each)
    return lambda: step(x), bytes_of(step, x).tree()["rows"], TrafficCounter(mesh)


def numbers(rank, shape):
    return np.random.default_rng(rank).normal(size=shape).astype(np.float32)


def main(names, shape, wired):
    initialize()
    for name in names:
        call, rows, gauge = prepared(name, shape)
        jax.block_until_ready(call())
        sent = (
            [gauge.measure(call).tx_payload_bytes for _ in range(TIMES)]
            if wired
            else []
        )
        print(json.dumps({"name": name, "rows": rows, "sent": sent}))


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
