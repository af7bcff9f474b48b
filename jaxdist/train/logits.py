"""Cross entropy and argmax of logits, of a whole vocabulary or of one that is sliced.

Of logits that are sliced over the tensor axis, no device needs more than its own:

    cross_entropy(label) = log sum_v exp(l_v - m) - (l_label - m),   m = max_v l_v

is one maximum and two sums over the devices (Shoeybi et al. 2019, arXiv:1909.08053,
section 3).
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.tensor_role import TENSOR_AXIS


class VocabLogits(Protocol):
    """Loss and argmax of the logits of a vocabulary."""

    def cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the cross entropy of each label, `[B, ...]`, nats."""

    def argmax(self, logits: jax.Array) -> jax.Array:
        """Return the first label of the largest logit, int `[B, ...]`."""


@dataclass(frozen=True)
class UnsplitLogits:
    """Logits `[B, ..., vocabulary]`.

    >>> label = jnp.asarray([2])
    >>> round(float(UnsplitLogits().cross_entropy(jnp.zeros((1, 4)), label)[0]), 4)
    1.3863
    """

    def cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the cross entropy of each label, `[B, ...]`, nats."""
        return optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(accumulation_dtype(logits.dtype)), labels
        )

    def argmax(self, logits: jax.Array) -> jax.Array:
        """Return the first label of the largest logit, int `[B, ...]`."""
        return logits.argmax(-1)


@dataclass(frozen=True)
class VocabParallelLogits:
    """Logits `[B, ..., vocabulary / devices]`, a slice on each device of tensor."""

    def cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the cross entropy of each label, `[B, ...]`, nats, on every device."""
        count = logits.shape[-1]
        logits = logits.astype(accumulation_dtype(logits.dtype))
        # The maximum keeps the exponentials small; the loss does not depend on it.
        largest = lax.pmax(lax.stop_gradient(logits.max(-1)), TENSOR_AXIS)
        apart = logits - largest[..., None]
        place = labels - _slice_start(count, labels.dtype)
        # A label of another device's slice takes any place here, and counts as zero.
        mine = (place >= 0) & (place < count)
        place = jnp.clip(place, 0, count - 1)
        chosen = jnp.take_along_axis(apart, place[..., None], -1)[..., 0]
        parts = jnp.exp(apart).sum(-1), jnp.where(mine, chosen, jnp.zeros_like(chosen))
        # One all-reduce for both sums.
        total, found = lax.psum(jnp.stack(parts), TENSOR_AXIS)
        return jnp.log(total) - found

    def argmax(self, logits: jax.Array) -> jax.Array:
        """Return the first label of the largest logit, int `[B, ...]`."""
        best, place = logits.max(-1), logits.argmax(-1)
        place = place + _slice_start(logits.shape[-1], place.dtype)
        # Of equal maxima the first label counts, as in jnp.argmax: the smallest place.
        far = jnp.full_like(place, jnp.iinfo(place.dtype).max)
        return lax.pmin(
            jnp.where(best == lax.pmax(best, TENSOR_AXIS), place, far), TENSOR_AXIS
        )


def _slice_start(slice_size: int, dtype: jnp.dtype) -> jax.Array:
    """Return the first label of this device's slice of the vocabulary."""
    return (lax.axis_index(TENSOR_AXIS) * slice_size).astype(dtype)
