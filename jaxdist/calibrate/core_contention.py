"""Crowd: times as long as alone a kernel takes where all devices compute at once.

    crowd = seconds of products on all devices / seconds of the same on one of them

It is 1 where each has processors of its own. Of N hosts that are processes on P cores
it is N / P where each may use one core (2.0 of four on two, 2026-11-24), and up to N
where one alone uses them all (2.7 to 3.7, 2026-11-23). Kernels are timed on all
devices at once; in a pipeline that fills or drains, some rest meanwhile
(`jaxdist/oracle/schedule_times.py`).
"""

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxdist.calibrate.synchronized_timing import (
    TimedCall,
    bind_on_all_devices,
    first_quartiles,
)

_MATRIX_SIDE: Final = 256
"""Rows and columns of the product."""
_REPEATS: Final = 100
_BUDGET_S: Final = 1.0
_MAX_ROUNDS: Final = 15


def measure_core_contention(mesh: Mesh) -> float:
    """Return how many times as long kernels take in company, at least 1.

    Args:
        mesh: of the devices.
    """
    calls = [_compute_on(mesh, some) for some in (1, mesh.size)]
    alone, together = first_quartiles(
        mesh, calls, budget_s=_BUDGET_S, max_rounds=_MAX_ROUNDS
    )
    return max(1.0, together / alone)


def _compute_on(mesh: Mesh, active_devices: int) -> TimedCall:
    """Return a call in which so many devices compute, and the others do not."""

    def products(square: jax.Array) -> jax.Array:
        works = lax.axis_index(mesh.axis_names) < active_devices
        times = jnp.where(works, _REPEATS, 0)
        return lax.fori_loop(0, times, lambda _, x: jnp.tanh(x @ square), square)

    return bind_on_all_devices(
        mesh,
        products,
        np.full((_MATRIX_SIDE, _MATRIX_SIDE), 1 / _MATRIX_SIDE, np.float32),
    )
