"""The exponential moving average of the weights, which is evaluated in their place.

    average <- d average + (1 - d) weights,    d = min(decay, (1 + t) / (10 + t))

after step t = 1, 2, ... (Polyak and Juditsky 1992).
"""

from typing import Any

import jax
import jax.numpy as jnp


def init_ema(decay_limit: float, params: Any, stats: Any) -> Any:
    """Return the average before the first step, or None without one."""
    if not decay_limit:
        return None
    # Copies: a step donates its state, and a buffer can be donated only once.
    return jax.tree.map(jnp.copy, {"params": params, "stats": stats})


def update_ema(
    ema: Any, decay_limit: float, step: jax.Array, params: Any, stats: Any
) -> Any:
    """Return the average after a step, or None without one.

    Args:
        ema: the average before.
        decay_limit: share of the old average in the new, after many steps.
        step: steps done, int32 [].
        params: parameters after the step.
        stats: running statistics after the step.
    """
    if ema is None:
        return None

    # The smaller decay of the first steps forgets the random initial weights; it is
    # that of TensorFlow's ExponentialMovingAverage.
    def move(old: jax.Array, new: jax.Array) -> jax.Array:
        t = step.astype(old.dtype)
        share = 1 - jnp.minimum(decay_limit, (1 + t) / (10 + t))
        return old + share * (new - old)

    # Running statistics are averaged too: they are of the activations of those weights.
    return jax.tree.map(move, ema, {"params": params, "stats": stats})
