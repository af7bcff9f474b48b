"""A host of `overlap.py`: a backward pass whose gradients are summed in some ways."""

import json
import re
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.profiler import ProfileData
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.primitives import psum
from jaxdist.launch.distributed import initialize
from jaxdist.launch.testbed.traffic_counter import TrafficCounter, shard_local_arrays

LAYERS, WIDTH, BATCH = 4, 1024, 256
MOVES = re.compile(r"ppermute|all_gather|all_to_all|psum|all-|collective-")
WORKS = re.compile(r"dot|wrapped|copy|\w*fusion")


def gradients(weights, x):
    """Gradients of a chain of dense layers, the last layer's first."""

    def loss(weights):
        y = x
        for weight in weights:
            y = jnp.tanh(y @ weight)
        return (y * y).sum()

    return jax.grad(loss)(list(weights))[::-1]


def nothing(grads):
    return grads


def one_bucket(grads):
    return psum(grads, "data", "int8")


def each(grads):
    return [psum(grad, "data", "int8") for grad in grads]


def sums_alone(weights, x):
    """Sum what is there from the start."""
    return each(list(weights))


def call(mesh, run, given):
    """Return a call that has been made once."""
    mapped = jax.shard_map(
        lambda weights, x: [y[None] for y in run(weights[0], x)],
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    step = jax.jit(mapped)
    jax.block_until_ready(step(*given))
    return lambda: step(*given)


def ran(events, names):
    """Return the spans [n, 2] in which something of these names ran, merged."""
    spans = sorted(
        (event.start_ns, event.start_ns + event.duration_ns)
        for event in events
        if names.match(event.name)
    )
    merged: list[list[float]] = []
    for start, stop in spans:
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(stop, merged[-1][1])
        else:
            merged.append([start, stop])
    return merged


def common(some, others):
    """Return the nanoseconds that are in both lists of spans."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)


def traced(step):
    """Profile one call: ms of moving, of computing, and of both at once."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(step())
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = ProfileData.from_file(str(path))
        events = [
            e for plane in data.planes for line in plane.lines for e in line.events
        ]
        moving, working = ran(events, MOVES), ran(events, WORKS)
        both = common(moving, working)
    total = [sum(stop - start for start, stop in each) for each in (moving, working)]
    return [1e-6 * ns for ns in (*total, both)]


def main(times):
    initialize()
    hosts = jax.process_count()
    mesh = jax.make_mesh((hosts,), ("data",), (AxisType.Auto,))
    rng = np.random.default_rng(jax.process_index())
    shape = (1, LAYERS, WIDTH, WIDTH)
    weights = rng.normal(scale=WIDTH**-0.5, size=shape).astype(np.float32)
    x = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
    given = (
        shard_local_arrays(mesh, lambda _: weights),
        shard_local_arrays(mesh, lambda _: x),
    )
    calls = {
        "backward pass alone": call(mesh, gradients, given),
        "sums alone": call(mesh, sums_alone, given),
        "both, neither needs the other": call(
            mesh, lambda w, x: [*gradients(w, x), *sums_alone(w, x)], given
        ),
        "one bucket behind it": call(
            mesh, lambda w, x: one_bucket(gradients(w, x)), given
        ),
        "a bucket a layer": call(mesh, lambda w, x: each(gradients(w, x)), given),
    }
    passes, sums = calls["backward pass alone"], calls["sums alone"]
    calls["both, as two programs at once"] = lambda: (sums(), passes())
    gauge = TrafficCounter(mesh, quiet_s=0.02)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(times):
        for name, step in calls.items():
            seconds[name].append(gauge.measure(step).seconds)
    trace = traced(calls["a bucket a layer"])
    print(json.dumps({"seconds": seconds, "trace": trace}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
