"""Measuring a link: sums of some sizes along a mesh axis, timed in each of some ways.

All devices come to one number for each time, that of the slowest, so all of them choose
alike.
"""

import time
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, Final

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.collectives.compress.method import Method
from jaxdist.collectives.link import Link, Timed, fitted
from jaxdist.collectives.primitives import psum

SIDES: Final = (160, 1024, 2896)
"""Sides of the square float32 matrices: 0.1, 4 and 32 MiB."""
_QUICK_S: Final = 0.1
_BUDGET_S: Final = 0.6
_ROUNDS: Final = (5, 41)


def measure(mesh: Mesh, axis: str, among: Sequence[Method]) -> Link:
    """Time ways to sum along a mesh axis, in turn.

    Every process of the program calls it at the same time. A way that took 0.1 s is not
    timed on the next larger matrix: there its bytes decide.

    Args:
        mesh: its other axes repeat the same sums.
        axis: more than one device.
        among: the ways, the exact one among them.

    Returns:
        The same link in every process.
    """
    times: list[list[float]] = [[] for _ in among]
    for place, side in enumerate(SIDES):
        quick = [place < 2 or each[-1] < _QUICK_S for each in times]
        if not any(quick):
            break
        found = _timed(mesh, axis, list(compress(among, quick)), side)
        for each, seconds in zip(compress(times, quick), found, strict=True):
            each.append(seconds)
    longest = max(map(len, times))
    return fitted(
        [
            Timed(way=way, seconds=tuple(each))
            for way, each in zip(among, times, strict=True)
        ],
        [(side, side) for side in SIDES[:longest]],
        np.dtype(np.float32),
        {axis: mesh.shape[axis]},
    )


def _timed(mesh: Mesh, axis: str, among: Sequence[Method], side: int) -> list[float]:
    """Return the seconds of each way: of the slowest device, the first quartile.

    What else the machine does makes a sum slower and never faster.
    """
    numbers = np.random.default_rng(0).standard_normal((side, side), np.float32)
    x = _spread(mesh, numbers, axis)
    calls = [_compiled(mesh, axis, way, x) for way in among]
    first = _rounds(mesh, calls, _ROUNDS[0])
    wanted = int(_BUDGET_S * len(calls) / first.sum(axis=0).mean())
    more = _rounds(mesh, calls, max(0, min(wanted, _ROUNDS[1]) - _ROUNDS[0]))
    both = np.concatenate([first, more], axis=1)
    quartiles: list[float] = np.quantile(both, 0.25, axis=1).tolist()
    return quartiles


def _rounds(
    mesh: Mesh, calls: Sequence[Callable[[], jax.Array]], count: int
) -> np.ndarray:
    """Make all calls so many times: the seconds of the slowest, [calls, count]."""
    meet = _slowest(mesh, np.zeros(1, np.float32))
    seconds = np.zeros((len(calls), count), np.float32)
    for turn in range(count):
        for place, call in enumerate(calls):
            meet()
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[place, turn] = time.perf_counter() - start
    return _slowest(mesh, seconds)()


def _compiled(
    mesh: Mesh, axis: str, way: Method, x: jax.Array
) -> Callable[[], jax.Array]:
    """Return a sum that has been made once."""
    add = jax.jit(
        jax.shard_map(
            lambda rows: psum(rows, axis, way),
            mesh=mesh,
            in_specs=P(axis),
            out_specs=P(axis),
            check_vma=False,
        )
    )
    jax.block_until_ready(add(x))
    return lambda: add(x)


def _slowest(mesh: Mesh, own: np.ndarray) -> Callable[[], np.ndarray]:
    """Return a call that gives the largest of all processes' numbers to each."""
    every = mesh.axis_names
    x = _spread(mesh, own[None], *every)
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


def _spread(mesh: Mesh, each: np.ndarray, *axes: Any) -> jax.Array:
    """Give every device along the axes the same block of its own."""
    devices = int(np.prod([mesh.shape[axis] for axis in axes]))
    shape = (devices * len(each), *each.shape[1:])
    place = NamedSharding(mesh, P(axes))
    return jax.make_array_from_callback(shape, place, lambda _: each)
