"""Gradient accumulation: one gradient from several microbatches, one after the other.

The sum over microbatches of the mean loss over each, divided by their number, is the
mean over the whole batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.train.objective import Batch

GradientFn = Callable[[Any, Batch], tuple[jax.Array, Any, Any]]
"""Maps statistics and a batch to loss, new statistics and gradients: sample means."""


def accumulate_gradients(gradient_fn: GradientFn, microbatches: int) -> GradientFn:
    """Return a gradient function that goes through a batch in microbatches.

    Args:
        gradient_fn: gradient function of a microbatch.
        microbatches: number of microbatches, of equal sizes.

    Returns:
        A gradient function of all samples, `[B, ...]`.
    """
    if microbatches == 1:
        return gradient_fn

    # A step holds the activations of one microbatch. Gradients are added on each
    # device, and reduced over devices once, at the end. Only what couples samples
    # changes: batch statistics are those of a microbatch, and running ones move once
    # for each.
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
    """Split samples [B, ...] into microbatches [count, B / count, ...]."""
    return x.reshape(count, x.shape[0] // count, *x.shape[1:])
