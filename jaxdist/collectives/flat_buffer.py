"""Joined: arrays behind each other in one vector, each written to its own place."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def concatenate_flat(arrays: Sequence[jax.Array]) -> jax.Array:
    """Return the numbers of arrays of one dtype as one vector.

    A concatenation that XLA's CPU backend fuses with what makes its parts passes over
    the vector once and loads each part all along it, under a mask. Where behind a part
    no memory is, a masked load is not an error, but takes hundreds of cycles: 1.2
    million numbers in five parts took 0.9 ms or 12, as the parts lay (2 shared AMD EPYC
    cores, 2026-11-23).

    >>> concatenate_flat([jnp.ones((2, 2)), jnp.zeros(1)]).tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    size, dtype = sum(x.size for x in arrays), arrays[0].dtype
    # Behind a barrier: zeros that the compiler knows it would pad the first part with.
    vector, start = lax.optimization_barrier(jnp.zeros(size, dtype)), 0
    for x in arrays:
        vector = lax.dynamic_update_slice(vector, x.reshape(-1), (start,))
        start += x.size
    return vector
