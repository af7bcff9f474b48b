"""Calls timed on all devices of a mesh at once, alike in every process.

All processes get the same number for each time, that of the slowest, so whatever they
decide by it they decide alike.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

TimedCall = Callable[[], Any]

_SHORT_LOOP: Final = 2
_LOOP_BUDGET_S: Final = 0.1
_LOOP_MAX_ROUNDS: Final = 15
_MAX_ATTEMPTS: Final = 3
# Share of the longer loop above which a difference is more than noise, and the smallest
# share that is believed.
_MIN_SIGNAL: Final = 0.1
_MIN_SHARE: Final = 0.02
# Rounds by which the number of further rounds is chosen.
_PILOT_ROUNDS: Final = 5


def first_quartiles(
    mesh: Mesh, calls: Sequence[TimedCall], *, budget_s: float, max_rounds: int
) -> list[float]:
    """Return the first quartile of each call's seconds on the slowest device.

    Args:
        mesh: mesh of devices, which synchronize before every call.
        calls: calls that are compiled already.
        budget_s: approximate seconds for each call.
        max_rounds: largest number of rounds.
    """
    # A quartile rather than the mean: other work on the machine makes a call slower and
    # never faster.
    first = time_rounds(mesh, calls, _PILOT_ROUNDS)
    wanted = int(budget_s * len(calls) / first.sum(axis=0).mean())
    more = time_rounds(mesh, calls, max(0, min(wanted, max_rounds) - _PILOT_ROUNDS))
    both = np.concatenate([first, more], axis=1)
    found: list[float] = np.quantile(both, 0.25, axis=1).tolist()
    return found


def time_rounds(mesh: Mesh, calls: Sequence[TimedCall], count: int) -> np.ndarray:
    """Time all calls in turn: seconds of the slowest process, [calls, count]."""
    meet = max_over_processes(mesh, np.zeros(1, np.float32))
    seconds = np.zeros((len(calls), count), np.float32)
    for turn in range(count):
        for place, call in enumerate(calls):
            # All processes begin a call together: none waits inside for one that is
            # late.
            meet()
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[place, turn] = time.perf_counter() - start
    return max_over_processes(mesh, seconds)()


def max_over_processes(mesh: Mesh, values: np.ndarray) -> Callable[[], np.ndarray]:
    """Return a call that computes the maximum over all processes, in each of them."""
    # Called between timings, where it is a barrier as well.
    every = mesh.axis_names
    x = replicate_on_axes(mesh, values[None], *every)
    largest = jax.jit(
        jax.shard_map(
            lambda row: lax.pmax(row, every),
            mesh=mesh,
            in_specs=P(every),
            out_specs=P(),
            check_vma=False,
        )
    )

    def call() -> np.ndarray:
        return np.asarray(largest(x).addressable_shards[0].data)[0]

    return call


def replicate_on_axes(mesh: Mesh, block: np.ndarray, *axes: Any) -> jax.Array:
    """Return an array of which every device along the axes has the same block."""
    devices = int(np.prod([mesh.shape[axis] for axis in axes]))
    shape = (devices * len(block), *block.shape[1:])
    place = NamedSharding(mesh, P(axes))
    return jax.make_array_from_callback(shape, place, lambda _: block)


def bind_on_all_devices(
    mesh: Mesh, function: Callable[..., Any], *arrays: np.ndarray
) -> TimedCall:
    """Compile a function of every device's own arrays, and return a call of it.

    Args:
        mesh: mesh of the devices.
        function: function to call inside one `shard_map` over every axis.
        arrays: arrays of each device, the same on all.
    """
    every = mesh.axis_names
    given = [replicate_on_axes(mesh, each[None], *every) for each in arrays]

    def local(*rows: jax.Array) -> Any:
        made = function(*(row[0] for row in rows))
        return jax.tree.map(lambda x: x[None], made)

    call = jax.jit(
        jax.shard_map(
            local, mesh=mesh, in_specs=P(every), out_specs=P(every), check_vma=False
        )
    )
    # The first call compiles.
    jax.block_until_ready(call(*given))
    return lambda: call(*given)


def seconds_per_call(
    mesh: Mesh, function: Callable[..., Any], *arrays: np.ndarray, calls: int
) -> float:
    """Return the seconds of one call inside a program that makes one after another.

    Args:
        mesh: mesh whose devices all make the calls at once.
        function: function of the number of the call, and of the arrays.
        arrays: arrays of each device, the same on all.
        calls: how many more calls the longer of two loops makes.
    """
    every = mesh.axis_names
    given = [replicate_on_axes(mesh, each[None], *every) for each in arrays]

    def local(count: jax.Array, *rows: jax.Array) -> jax.Array:
        each = [row[0] for row in rows]
        shapes = jax.eval_shape(function, count, *each)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        last = lax.fori_loop(0, count, lambda i, _: function(i, *each), zeros)
        # A number of every result: XLA would drop the computation of what nobody reads.
        numbers = [x.ravel()[0] for x in jax.tree.leaves(last) if x.size]
        return jnp.stack([x.astype(jnp.float32) for x in numbers])[None]

    # The number of iterations is an argument, so that both loops are one compilation.
    program = jax.jit(
        jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(), *(P(every),) * len(arrays)),
            out_specs=P(every),
            check_vma=False,
        )
    )
    loops = []
    for count in (_SHORT_LOOP, _SHORT_LOOP + calls):
        loops.append(partial(program, np.int32(count), *given))
        jax.block_until_ready(loops[-1]())
    took = 0.0
    for _ in range(_MAX_ATTEMPTS):
        few, many = first_quartiles(
            mesh, loops, budget_s=_LOOP_BUDGET_S, max_rounds=_LOOP_MAX_ROUNDS
        )
        # Other work on the machine may hide the difference, and hardly ever invents
        # one.
        took = max(took, many - few)
        if took > _MIN_SIGNAL * many:
            break
    return max(took, _MIN_SHARE * many) / calls
