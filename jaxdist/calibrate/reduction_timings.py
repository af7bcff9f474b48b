"""Measuring a link: all-reduces of some sizes along a mesh axis, by each algorithm."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxdist.calibrate.synchronized_timing import first_quartiles, replicate_on_axes
from jaxdist.collectives.compress.method import AllReduceAlgorithm
from jaxdist.collectives.primitives import psum
from jaxdist.collectives.registry import AlgorithmTiming, Link, fit_link

MATRIX_SIDES: Final = (160, 1024, 2896)
"""Sides of the square float32 matrices: 0.1, 4 and 32 MiB."""
# Seconds from which a larger matrix is not timed, and the budget of each algorithm.
_SKIP_ABOVE_S: Final = 0.1
_BUDGET_S: Final = 0.6
_MAX_ROUNDS: Final = 41


def measure_reduction_link(
    mesh: Mesh, axis: str, algorithms: Sequence[AllReduceAlgorithm]
) -> Link:
    """Time algorithms of all-reduce along a mesh axis, in turn.

    Every process of the program calls it at the same time.

    Args:
        mesh: mesh whose other axes repeat the same sums.
        axis: axis of more than one device.
        algorithms: the algorithms, the exact one among them.

    Returns:
        The same link in every process, so that all of them choose alike.
    """
    times: list[list[float]] = [[] for _ in algorithms]
    sides: list[int] = []
    for side in MATRIX_SIDES:
        # An algorithm that took 0.1 s is not timed on the next larger matrix: there its
        # bytes decide. Two sizes are always timed, since a line needs two.
        chosen = [
            place
            for place, took in enumerate(times)
            if len(sides) < 2 or took[-1] < _SKIP_ABOVE_S
        ]
        if not chosen:
            break
        sides.append(side)
        numbers = np.random.default_rng(0).standard_normal((side, side), np.float32)
        x = replicate_on_axes(mesh, numbers, axis)
        calls = []
        for place in chosen:
            add = jax.jit(
                jax.shard_map(
                    partial(psum, axis=axis, algorithm=algorithms[place]),
                    mesh=mesh,
                    in_specs=P(axis),
                    out_specs=P(axis),
                    check_vma=False,
                )
            )
            jax.block_until_ready(add(x))
            calls.append(partial(add, x))
        found = first_quartiles(mesh, calls, budget_s=_BUDGET_S, max_rounds=_MAX_ROUNDS)
        for place, seconds in zip(chosen, found, strict=True):
            times[place].append(seconds)
    return fit_link(
        [
            AlgorithmTiming(algorithm=algorithm, seconds=tuple(took))
            for algorithm, took in zip(algorithms, times, strict=True)
        ],
        [(side, side) for side in sides],
        np.dtype(np.float32),
        {axis: mesh.shape[axis]},
    )
