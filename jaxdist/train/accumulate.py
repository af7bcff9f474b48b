"""Accumulation: one gradient from several microbatches, one after the other.

A step of `k` microbatches holds the activations of one. Their gradients are added on
each device and reduced over devices once, at the end. The sum over microbatches of the
mean loss over each, divided by `k`, is the mean over the whole batch, so only what
couples samples changes: batch statistics are those of a microbatch, and the running
ones move `k` times a step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.train.objective import Batch

GradientFn = Callable[[Any, Batch], tuple[jax.Array, Any, Any]]
"""From statistics and a batch to loss, new statistics, gradients: means over samples.
"""


def accumulate_gradients(gradient_fn: GradientFn, microbatches: int) -> GradientFn:
    """Take gradients of a device's samples at once, or of parts of them in turn.

    Args:
        gradient_fn: of the samples it is given.
        microbatches: parts of equal sizes.

    Returns:
        The same function of all samples, `[B, ...]`.
    """
    if microbatches == 1:
        return gradient_fn

    def every(stats: Any, batch: Batch) -> tuple[jax.Array, Any, Any]:
        def add(carry: Any, part: Batch) -> tuple[Any, None]:
            sums, stats = carry
            loss, stats, grads = gradient_fn(stats, part)
            return (jax.tree.map(jnp.add, sums, (loss, grads)), stats), None

        parts = {key: split_microbatches(x, microbatches) for key, x in batch.items()}
        first = {key: x[0] for key, x in parts.items()}
        loss, _, grads = jax.eval_shape(gradient_fn, stats, first)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (loss, grads))
        (sums, stats), _ = lax.scan(add, (zeros, stats), parts)
        loss, grads = jax.tree.map(lambda x: x / microbatches, sums)
        return loss, stats, grads

    return every


def split_microbatches(x: jax.Array, count: int) -> jax.Array:
    """Cut samples [B, ...] into equal parts, [parts, B / parts, ...]."""
    return x.reshape(count, x.shape[0] // count, *x.shape[1:])
