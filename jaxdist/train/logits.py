"""Cross entropy and argmax of logits, of a whole vocabulary or of one that is sliced.

Of logits that are sliced over the tensor axis, no device needs more than its own:

    cross_entropy(label) = log sum_v exp(l_v - m) - (l_label - m),   m = max_v l_v

is one maximum and two sums over the devices (Shoeybi et al. 2019, arXiv:1909.08053,
section 3).

Logits that are a product are multiplied out for some tokens at a time. For a loss that
is the sum of tokens' cross entropies with known weights, the gradient by the logits,

    d loss / d l_v = weight (softmax(l)_v - [v = label]),

follows in the forward pass, chunk by chunk, and so do those of features and kernel:
nothing is multiplied out twice (Hsu et al. 2024, arXiv:2410.10989, section 3.2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.logits_product import LogitsProduct, chunk_count, row_chunks
from jaxdist.layers.tensor_role import TENSOR_AXIS

Logits = jax.Array | LogitsProduct
"""Logits `[B, ..., vocabulary]`, or the product that they are."""


class VocabLogits(Protocol):
    """Loss and argmax of the logits of a vocabulary."""

    def cross_entropy(self, logits: Logits, labels: jax.Array) -> jax.Array:
        """Return the cross entropy of each label, `[B, ...]`, nats."""

    def argmax(self, logits: Logits) -> jax.Array:
        """Return the first label of the largest logit, int `[B, ...]`."""

    def maximum(self, x: jax.Array) -> jax.Array:
        """Return the largest of what devices with slices have found."""

    def total(self, x: jax.Array) -> jax.Array:
        """Return the sum of what devices with slices have found."""

    def first_label(self, count: int, dtype: Any) -> jax.Array:
        """Return the first label of this device's slice of so many."""

    def devices(self) -> int:
        """Return the number of devices with a slice."""


@dataclass(frozen=True)
class UnsplitLogits:
    """Logits `[B, ..., vocabulary]`.

    >>> label = jnp.array([2])
    >>> round(float(UnsplitLogits().cross_entropy(jnp.zeros((1, 4)), label)[0]), 4)
    1.3863
    """

    def cross_entropy(self, logits: Logits, labels: jax.Array) -> jax.Array:
        """Return the cross entropy of each label, `[B, ...]`, nats."""
        if isinstance(logits, LogitsProduct):
            return _by_chunks(self.cross_entropy, logits, labels)
        return optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(accumulation_dtype(logits.dtype)), labels
        )

    def argmax(self, logits: Logits) -> jax.Array:
        """Return the first label of the largest logit, int `[B, ...]`."""
        if isinstance(logits, LogitsProduct):
            return _by_chunks(self.argmax, logits)
        return logits.argmax(-1)

    def maximum(self, x: jax.Array) -> jax.Array:
        """Return `x`: no other device has a slice."""
        return x

    def total(self, x: jax.Array) -> jax.Array:
        """Return `x`: no other device has a slice."""
        return x

    def first_label(self, count: int, dtype: Any) -> jax.Array:
        """Return 0."""
        del count
        return jnp.zeros((), dtype)

    def devices(self) -> int:
        """Return 1."""
        return 1


@dataclass(frozen=True)
class VocabParallelLogits:
    """Logits `[B, ..., vocabulary / devices]`, a slice on each device of tensor."""

    def cross_entropy(self, logits: Logits, labels: jax.Array) -> jax.Array:
        """Return the cross entropy of each label, `[B, ...]`, nats, on every device."""
        if isinstance(logits, LogitsProduct):
            return _by_chunks(self.cross_entropy, logits, labels)
        logits = logits.astype(accumulation_dtype(logits.dtype))
        # The maximum keeps the exponentials small; the loss does not depend on it.
        largest = self.maximum(lax.stop_gradient(logits.max(-1)))
        apart = logits - largest[..., None]
        place, mine = _find_labels(self, labels, logits.shape[-1])
        chosen = jnp.take_along_axis(apart, place[..., None], -1)[..., 0]
        parts = jnp.exp(apart).sum(-1), jnp.where(mine, chosen, jnp.zeros_like(chosen))
        # One all-reduce for both sums.
        total, found = self.total(jnp.stack(parts))
        return jnp.log(total) - found

    def argmax(self, logits: Logits) -> jax.Array:
        """Return the first label of the largest logit, int `[B, ...]`."""
        if isinstance(logits, LogitsProduct):
            return _by_chunks(self.argmax, logits)
        best, place = logits.max(-1), logits.argmax(-1)
        place = place + self.first_label(logits.shape[-1], place.dtype)
        # Of equal maxima the first label counts, as in jnp.argmax: the smallest place.
        far = jnp.full_like(place, jnp.iinfo(place.dtype).max)
        return lax.pmin(jnp.where(best == self.maximum(best), place, far), TENSOR_AXIS)

    def maximum(self, x: jax.Array) -> jax.Array:
        """Return the largest of what the devices of tensor have found."""
        return lax.pmax(x, TENSOR_AXIS)

    def total(self, x: jax.Array) -> jax.Array:
        """Return the sum of what the devices of tensor have found."""
        return lax.psum(x, TENSOR_AXIS)

    def first_label(self, count: int, dtype: Any) -> jax.Array:
        """Return the first label of this device's slice of so many."""
        return (lax.axis_index(TENSOR_AXIS) * count).astype(dtype)

    def devices(self) -> int:
        """Return the number of devices along tensor."""
        return lax.axis_size(TENSOR_AXIS)


def weighted_cross_entropy(
    split: VocabLogits, logits: LogitsProduct, labels: jax.Array, weights: jax.Array
) -> jax.Array:
    """Return the weighted sum of tokens' cross entropies, in one pass over chunks.

    Args:
        split: how the vocabulary lies on devices.
        logits: product `[B, ..., vocabulary]`.
        labels: int `[B, ...]`.
        weights: float32 or wider `[B, ...]`, of which the sum has no gradient.
    """
    flat = logits.reshape(-1)
    return _weighted_sum(
        split, flat, labels.reshape(-1), lax.stop_gradient(weights.reshape(-1))
    )


def _by_chunks(
    of_logits: Callable[..., jax.Array], product: LogitsProduct, *rows: jax.Array
) -> jax.Array:
    """Apply a function of logits and other rows to some tokens at a time.

    Args:
        of_logits: maps logits `[n, vocabulary]` and rows `[n]` to `[n]`.
        product: `[B, ..., vocabulary]`.
        rows: `[B, ...]` each.
    """
    shape = product.shape[:-1]
    flat = product.reshape(-1)
    count = chunk_count(flat.features.shape[0])

    # Logits are multiplied out again in a backward pass, not kept.
    @jax.checkpoint
    def one(features: jax.Array, rows: list[jax.Array]) -> jax.Array:
        return of_logits(replace(flat, features=features).logits(), *rows)

    pieces = [row_chunks(x.reshape(-1), count) for x in rows]
    found: jax.Array = lax.map(
        lambda piece: one(*piece), (row_chunks(flat.features, count), pieces)
    )
    return found.reshape(shape)


def _find_labels(
    split: VocabLogits, labels: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Return the places of labels in this device's slice, and whether they are in it.

    A label of another device's slice takes any place here, and counts as zero.
    """
    place = labels - split.first_label(count, labels.dtype)
    mine = (place >= 0) & (place < count)
    return jnp.clip(place, 0, count - 1), mine


def _chunk_loss(
    split: VocabLogits, logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the loss of logits `[n, vocabulary]`, and its gradient by them."""
    count = logits.shape[-1]
    place, mine = _find_labels(split, labels, count)
    apart = logits - split.maximum(logits.max(-1))[:, None]
    powers = jnp.exp(apart)
    chosen = jnp.take_along_axis(apart, place[:, None], -1)[:, 0]
    parts = powers.sum(-1), jnp.where(mine, chosen, jnp.zeros_like(chosen))
    total, found = split.total(jnp.stack(parts))
    loss = (weights * (jnp.log(total) - found)).sum()
    columns = lax.broadcasted_iota(place.dtype, logits.shape, 1)
    is_label = (columns == place[:, None]) & mine[:, None]
    gradient = powers * (weights / total)[:, None]
    weight = weights[:, None]
    return loss, gradient - jnp.where(is_label, weight, jnp.zeros_like(weight))


def _scan_chunks(
    split: VocabLogits,
    product: LogitsProduct,
    labels: jax.Array,
    weights: jax.Array,
    *,
    wanted: Sequence[bool],
) -> tuple[jax.Array, list[jax.Array | None]]:
    """Return the loss of all rows, and the gradients that are wanted.

    Args:
        split: how the vocabulary lies on devices.
        product: `[n, vocabulary]`.
        labels: int `[n]`.
        weights: `[n]`.
        wanted: whether the gradients of features, kernel and bias are.
    """
    features, kernel, bias = product.features, product.kernel, product.bias
    dtype = accumulation_dtype(features.dtype)

    def add(sums: list[Any], rows: tuple[jax.Array, ...]) -> tuple[Any, Any]:
        loss, kernels, biases = sums
        piece = replace(product, features=rows[0])
        own, gradient = _chunk_loss(split, piece.logits(), *rows[1:])
        narrow = gradient.astype(features.dtype)
        back = piece.feature_gradient(narrow) if wanted[0] else None
        if wanted[1]:
            kernels = kernels + piece.kernel_gradient(narrow)
        if wanted[2]:
            biases = biases + gradient.sum(0)
        return [loss + own, kernels, biases], back

    # Sums of 16 bits would lose digits with each chunk.
    start = [
        jnp.zeros((), dtype),
        jnp.zeros(kernel.shape, dtype) if wanted[1] else None,
        jnp.zeros(kernel.shape[1 - product.kernel_dim], dtype) if wanted[2] else None,
    ]
    count = chunk_count(features.shape[0])
    rows = tuple(row_chunks(x, count) for x in (features, labels, weights))
    (loss, kernels, biases), back = lax.scan(add, start, rows)
    assert loss is not None
    return loss, [
        back.reshape(features.shape) if back is not None else None,
        kernels.astype(kernel.dtype) if kernels is not None else None,
        biases.astype(bias.dtype) if biases is not None and bias is not None else None,
    ]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted_sum(
    split: VocabLogits, product: LogitsProduct, labels: jax.Array, weights: jax.Array
) -> jax.Array:
    return _scan_chunks(split, product, labels, weights, wanted=(False,) * 3)[0]


def _forward(
    split: VocabLogits, product: Any, labels: Any, weights: Any
) -> tuple[jax.Array, Any]:
    given = product.features, product.kernel, product.bias
    # A frozen kernel has no gradient: which arrays need one is known here.
    wanted = [x is not None and x.perturbed for x in given]
    value, *rows = jax.tree.map(lambda x: x.value, (product, labels, weights))
    loss, gradients = _scan_chunks(split, value, *rows, wanted=wanted)
    features, kernel, bias = gradients
    return loss, replace(value, features=features, kernel=kernel, bias=bias)


def _backward(
    split: VocabLogits, gradients: Any, cotangent: jax.Array
) -> tuple[Any, None, None]:
    # Every device of tensor has the loss, and is asked for an equal share of it.
    scale = cotangent * split.devices()
    return jax.tree.map(lambda x: scale.astype(x.dtype) * x, gradients), None, None


_weighted_sum.defvjp(_forward, _backward, symbolic_zeros=True)
