"""The average of the weights over the steps, which is evaluated in their place.

    average <- d average + (1 - d) weights,    d = min(decay, (1 + t) / (10 + t))

after step t = 1, 2, ... Polyak and Juditsky 1992; the smaller `d` of the first steps,
which forgets the random weights a run begins with, is that of TensorFlow's
`ExponentialMovingAverage`. Running statistics are averaged with the weights: they are
of the activations that those weights made.
"""

from typing import Any

import jax
import jax.numpy as jnp


def init_ema(decay_limit: float, params: Any, stats: Any) -> Any:
    """Return the average before the first step, or None where none is kept."""
    if not decay_limit:
        return None
    # Copies: a step takes its state's memory for its own, and each array but once.
    return jax.tree.map(jnp.copy, {"params": params, "stats": stats})


def update_ema(
    ema: Any, decay_limit: float, step: jax.Array, params: Any, stats: Any
) -> Any:
    """Return the average after a step, or None where none is kept.

    Args:
        ema: what `init_ema` or this function returned.
        decay_limit: share of the old average in the new, after many steps.
        step: steps done, int32 [].
        params: parameters after the step.
        stats: running statistics after the step.
    """
    if ema is None:
        return None

    def move(old: jax.Array, new: jax.Array) -> jax.Array:
        t = step.astype(old.dtype)
        share = 1 - jnp.minimum(decay_limit, (1 + t) / (10 + t))
        return old + share * (new - old)

    return jax.tree.map(move, ema, {"params": params, "stats": stats})
