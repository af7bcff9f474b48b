"""Measuring a link: sums of some sizes along a mesh axis, timed in each of some ways.

Every device comes to the same numbers, so all of them choose alike.
"""

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Final

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.calibrate.synchronized_timing import first_quartiles, replicate_on_axes
from jaxdist.collectives.compress.method import AllReduceAlgorithm
from jaxdist.collectives.link import AlgorithmTiming, Link, fit_link
from jaxdist.collectives.primitives import psum

MATRIX_SIDES: Final = (160, 1024, 2896)
"""Sides of the square float32 matrices: 0.1, 4 and 32 MiB."""
_SKIP_ABOVE_S: Final = 0.1
_BUDGET_S: Final = 0.6
_MAX_ROUNDS: Final = 41


def measure_reduction_link(
    mesh: Mesh, axis: str, algorithms: Sequence[AllReduceAlgorithm]
) -> Link:
    """Time ways to sum along a mesh axis, in turn.

    Every process of the program calls it at the same time. A way that took 0.1 s is not
    timed on the next larger matrix: there its bytes decide.

    Args:
        mesh: its other axes repeat the same sums.
        axis: more than one device.
        algorithms: the ways, the exact one among them.

    Returns:
        The same link in every process.
    """
    times: list[list[float]] = [[] for _ in algorithms]
    for place, side in enumerate(MATRIX_SIDES):
        quick = [place < 2 or each[-1] < _SKIP_ABOVE_S for each in times]
        if not any(quick):
            break
        found = _time_algorithms(mesh, axis, list(compress(algorithms, quick)), side)
        for each, seconds in zip(compress(times, quick), found, strict=True):
            each.append(seconds)
    longest = max(map(len, times))
    return fit_link(
        [
            AlgorithmTiming(algorithm=way, seconds=tuple(each))
            for way, each in zip(algorithms, times, strict=True)
        ],
        [(side, side) for side in MATRIX_SIDES[:longest]],
        np.dtype(np.float32),
        {axis: mesh.shape[axis]},
    )


def _time_algorithms(
    mesh: Mesh, axis: str, algorithms: Sequence[AllReduceAlgorithm], side: int
) -> list[float]:
    """Return the seconds of each way on matrices of one size."""
    numbers = np.random.default_rng(0).standard_normal((side, side), np.float32)
    x = replicate_on_axes(mesh, numbers, axis)
    calls = [_compile_all_reduce(mesh, axis, way, x) for way in algorithms]
    return first_quartiles(mesh, calls, budget_s=_BUDGET_S, max_rounds=_MAX_ROUNDS)


def _compile_all_reduce(
    mesh: Mesh, axis: str, algorithm: AllReduceAlgorithm, x: jax.Array
) -> Callable[[], jax.Array]:
    """Return a sum that has been made once."""
    add = jax.jit(
        jax.shard_map(
            lambda rows: psum(rows, axis, algorithm),
            mesh=mesh,
            in_specs=P(axis),
            out_specs=P(axis),
            check_vma=False,
        )
    )
    jax.block_until_ready(add(x))
    return lambda: add(x)
