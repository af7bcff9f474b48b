"""One of several hosts: runs every step list, and counts what its interface sends."""

import json
import sys
from hashlib import sha256

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.algorithms.registry import make_schedule
from jaxdist.collectives.schedule_executor import run_schedule
from jaxdist.collectives.schedule_traffic import elements_per_rank
from jaxdist.launch.distributed import initialize
from jaxdist.launch.testbed.traffic_counter import TrafficCounter, shard_local_arrays

TIMES = 3


def call(mesh, function, x):
    each = jax.shard_map(
        function, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )
    program = jax.jit(each).lower(x).compile()
    return lambda: jax.block_until_ready(program(x))


def main(names, size, wired):
    rank = initialize()
    count = jax.process_count()
    mesh = jax.make_mesh((count,), ("data",), (AxisType.Auto,))
    x = shard_local_arrays(
        mesh,
        lambda rank: np.random.default_rng(rank).normal(size=size).astype(np.float32),
    )
    gauge = TrafficCounter(mesh)
    exact = call(mesh, lambda v: lax.psum(v, "data"), x)()
    for name in names:
        steps = make_schedule(name, count)
        sums = call(mesh, lambda v, steps=steps: run_schedule(steps, v, "data"), x)
        ours, theirs = (a.addressable_data(0) for a in (sums(), exact))
        found = {
            "name": name,
            "digest": sha256(np.asarray(ours).tobytes()).hexdigest(),
            "error": float(abs(ours - theirs).max()),
            "sent": [gauge.measure(sums).tx_payload_bytes for _ in range(TIMES)]
            if wired
            else [],
            "formula": 4 * elements_per_rank(steps, size)[rank],
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
