"""What step lists cost beside XLA's own psum, where links cost nothing.

    python benchmarks/algorithms.py

Fake devices share the memory of one machine, so this is overhead: copies, additions and
the meetings of threads. Which list is fast on a network it does not tell. All are run
in turn, round by round; a ratio is taken in a round.
"""

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.permutes import permutes
from jaxdist.collectives.schedule_executor import run_schedule
from jaxdist.collectives.schedule_traffic import busiest_rank_bytes
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.build import build_mesh

HEAD = "| list | steps | permutes | sent by the busiest | ms | ratio to psum |"


def compiled(function, x, mesh):
    """Compile a function of each device's own array, and run it once."""
    axes = P("data")
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=axes, out_specs=axes, check_vma=False
    )
    program = jax.jit(mapped).lower(x).compile()
    jax.block_until_ready(program(x))
    return program


def timed(program, x):
    start = time.perf_counter()
    jax.block_until_ready(program(x))
    return time.perf_counter() - start


def row(steps, size, seconds, ratio):
    """Lay out one list: its steps, its bytes in arrays, and what was measured."""
    arrays = busiest_rank_bytes(steps, size, 4) / (4 * size)
    moves = sum(len(step) for step in permutes(steps))
    return (
        f"| `{steps.name}` | {len(steps.steps)} | {moves} | {arrays:.2f} S "
        f"| {1e3 * seconds:.1f} | {ratio:.2f} |\n"
    )


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=1 << 20, help="float32 numbers")
    args = parser.parse_args()
    ranks = jax.device_count()
    mesh = build_mesh(Plan(mesh=MeshShape(data=ranks)))
    rows = NamedSharding(mesh, P("data"))
    x = jax.device_put(jnp.ones((ranks * args.size,), jnp.float32), rows)
    lists = [make(ranks) for make in SCHEDULES.values()]
    psum = compiled(lambda v: jax.lax.psum(v, "data"), x, mesh)
    programs = [
        compiled(lambda v, s=s: run_schedule(s, v, "data"), x, mesh) for s in lists
    ]
    times = [
        [timed(program, x) for program in (psum, *programs)] for _ in range(args.rounds)
    ]
    base, *others = zip(*times)
    middle = 1e3 * statistics.median(base)
    sys.stdout.write(f"{HEAD}\n|---|---|---|---|---|---|\n")
    sys.stdout.write(f"| `lax.psum` | | | | {middle:.1f} | 1 |\n")
    for steps, seconds in zip(lists, others, strict=True):
        ratio = statistics.median(a / b for a, b in zip(seconds, base, strict=True))
        sys.stdout.write(row(steps, args.size, statistics.median(seconds), ratio))


if __name__ == "__main__":
    main()
