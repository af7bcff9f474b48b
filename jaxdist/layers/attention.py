"""Causal attention: each token reads itself and the tokens before it."""

import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxdist.core.array_tags import INNER_ACTIVATION
from jaxdist.core.dtypes import accumulation_dtype


def causal_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attend: average values by the softmax of the products of queries and keys.

        out = softmax(query key^T / sqrt(D) over the tokens up to the query's own) value

    Scores and their softmax are at least float32, and float64 for float64:
    `jax.nn.dot_product_attention` rounds them to float32 always, so that no float64
    step could be told from another to more than 7 digits.

    Args:
        query: [B, T, heads, D].
        key: [B, T, kv_heads, D]; heads are a multiple of kv_heads, and neighbouring
            heads share one.
        value: as `key`.

    Returns:
        [B, T, heads, D], in the dtype of `value`.
    """
    samples, count, heads, features = query.shape
    # Grouped queries: heads that share keys and values are a dim of their own, so that
    # keys are never repeated in memory.
    grouped = query.reshape(samples, count, key.shape[2], -1, features)
    full = accumulation_dtype(query.dtype)
    scores = jnp.einsum(
        "btkgd,bskd->bkgts", grouped, key, preferred_element_type=full
    ) / math.sqrt(features)
    seen = jnp.tril(jnp.ones((count, count), bool))
    spread = checkpoint_name(
        jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), INNER_ACTIVATION
    )
    # What is kept for the backward pass has a name each, so that memory is predicted:
    # the softmax, and its copy in the narrower dtype of the product.
    weights = spread.astype(value.dtype)
    if weights.dtype != spread.dtype:
        weights = checkpoint_name(weights, INNER_ACTIVATION)
    read = jnp.einsum("bkgts,bskd->btkgd", weights, value)
    return read.reshape(samples, count, heads, features)
