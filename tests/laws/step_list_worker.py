"""One of several processes: runs every step list, and counts what loopback carries."""

import json
import sys
import time
from hashlib import sha256
from pathlib import Path

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.algorithms.registry import algorithm
from jaxdist.collectives.execute import run
from jaxdist.collectives.step_bytes import sent

TIMES = 4
QUIET_S = 0.3
"""Longer than a process needs to come from a sum on all to its own next line."""


def carried():
    """Return the bytes that loopback has sent since it is up, all processes' together."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (line,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(line.split()[9])


def call(mesh, function, x):
    each = jax.shard_map(
        function, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False
    )
    program = jax.jit(each).lower(x).compile()
    return lambda: jax.block_until_ready(program(x))


def counted(sums):
    """Return the bytes of one call: of several, with nothing before and behind."""
    sums()
    time.sleep(QUIET_S)
    before = carried()
    time.sleep(QUIET_S / 3)
    for _ in range(TIMES):
        sums()
    time.sleep(QUIET_S)
    return (carried() - before) / TIMES


def main(rank, count, port, size, names):
    jax.distributed.initialize(f"localhost:{port}", count, rank)
    mesh = jax.make_mesh((count,), ("data",), (AxisType.Auto,))
    own = np.random.default_rng(rank).normal(size=size).astype(np.float32)
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), own)
    exact = call(mesh, lambda v: lax.psum(v, "data"), x)()
    for name in names:
        steps = algorithm(name, count)
        sums = call(mesh, lambda v, steps=steps: run(steps, v, "data"), x)
        ours, theirs = (a.addressable_data(0) for a in (sums(), exact))
        found = {
            "name": name,
            "digest": sha256(np.asarray(ours).tobytes()).hexdigest(),
            "error": float(abs(ours - theirs).max()),
            "carried": counted(sums),
            "formula": 4 * sum(sent(steps, size)),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
