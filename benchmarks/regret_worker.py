"""A host of `regret.py`: measures its link, chooses, and times every way to sum."""

import json
import math
import sys
import time
from dataclasses import asdict

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.calibrate.reduction_timings import measure_reduction_link
from jaxdist.collectives.primitives import psum
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS, Link, select_fastest
from jaxdist.launch.distributed import initialize
from jaxdist.launch.testbed.traffic_counter import TrafficCounter, shard_local_arrays

EXACT = ("exact", "ring", "recursive_doubling", "halving_doubling")
LOSSY = ("int4", "sign", "random_k", "sparse", "power")
SETS = {
    "exact ways": EXACT,
    "and int8": (*EXACT, "int8"),
    "all": (*EXACT, "int8", *LOSSY),
}


def matrix(rank, mib):
    # 1 MiB is 2^18 float32 numbers.
    side = math.isqrt(round(mib * 2**18))
    return np.random.default_rng(rank).normal(size=(side, side)).astype(np.float32)


def compiled(mesh, via, x):
    """Return a sum that has not run; its connections are there already."""
    add = jax.shard_map(
        lambda rows: psum(rows, "data", via),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    ready = jax.jit(add).lower(x).compile()
    return lambda: ready(x)


def timed(mesh, gauge: TrafficCounter, mib, times):
    """Return the seconds of every way: {way: one each time}."""
    x = shard_local_arrays(mesh, lambda rank: matrix(rank, mib))
    calls = {via: compiled(mesh, via, x) for via in SETS["all"]}
    found: dict[str, list[float]] = {via: [] for via in calls}
    for call in calls.values() if mib < 16 else ():  # the longest are not warmed up
        jax.block_until_ready(call())
    for _ in range(times):
        for via, call in calls.items():
            found[via].append(gauge.measure(call).seconds)
    return found


def main(sizes, times):
    initialize()
    hosts = jax.process_count()
    mesh = jax.make_mesh((hosts,), ("data",), (AxisType.Auto,))
    start = time.perf_counter()
    link = measure_reduction_link(
        mesh, "data", [ALL_REDUCE_ALGORITHMS[via] for via in SETS["all"]]
    )
    print(f"measured in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    choices = [
        {name: (among, chosen(among, mib, hosts, link)) for name, among in SETS.items()}
        for mib in sizes
    ]
    gauge = TrafficCounter(mesh, quiet_s=0)
    seconds = [timed(mesh, gauge, *each) for each in zip(sizes, times, strict=True)]
    done = {"link": asdict(link), "choices": choices, "seconds": seconds}
    print(json.dumps(done))


def chosen(among, mib, hosts, link: Link):
    """Return the name of the way that a link makes the fastest for one matrix."""
    shape = (math.isqrt(round(mib * 2**18)),) * 2
    ways = [ALL_REDUCE_ALGORITHMS[via] for via in among]
    return select_fastest(ways, [[shape]], np.dtype("f4"), {"data": hosts}, link).name


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
