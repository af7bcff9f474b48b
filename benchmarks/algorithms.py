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
from record import add_record_option, row, write_result

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.collectives.algorithms.schedule import CollectiveSchedule
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


def figures(steps: CollectiveSchedule, size, seconds, ratios):
    """Return a list's steps, its bytes in arrays, and what was measured."""
    arrays = busiest_rank_bytes(steps, size, 4) / (4 * size)
    moves = sum(len(step) for step in permutes(steps))
    case, n = f"`{steps.name}`", len(seconds)
    return [
        row(case, len(steps.steps), "", figure="steps", n=n),
        row(case, moves, "", figure="permutes", n=n),
        row(case, arrays, "S", figure="sent by the busiest", n=n),
        row(case, 1e3 * statistics.median(seconds), "ms", figure="a call", n=n),
        row(case, statistics.median(ratios), "", figure="over psum", n=n),
    ]


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=1 << 20, help="float32 numbers")
    add_record_option(parser)
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
    middle, n = 1e3 * statistics.median(base), args.rounds
    made = [
        row("`lax.psum`", middle, "ms", figure="a call", n=n),
        row("`lax.psum`", 1, "", figure="over psum", n=n),
    ]
    sys.stdout.write(f"{HEAD}\n|---|---|---|---|---|---|\n")
    sys.stdout.write(f"| `lax.psum` | | | | {middle:.1f} | 1 |\n")
    for steps, seconds in zip(lists, others, strict=True):
        ratios = [a / b for a, b in zip(seconds, base, strict=True)]
        own = figures(steps, args.size, seconds, ratios)
        count, moves, arrays, ms, ratio = (one["value"] for one in own)
        sys.stdout.write(
            f"| `{steps.name}` | {count} | {moves} | {arrays:.2f} S | {ms:.1f} "
            f"| {ratio:.2f} |\n"
        )
        made += own
    if args.record:
        write_result("algorithms", made)


if __name__ == "__main__":
    main()
