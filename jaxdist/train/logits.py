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
from typing import Any, NamedTuple, Protocol

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

    def cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the cross entropy of each label, `[B, ...]`, nats."""

    def argmax(self, logits: jax.Array) -> jax.Array:
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

    def cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the cross entropy of each label, `[B, ...]`, nats, on every device."""
        wide = logits.astype(accumulation_dtype(logits.dtype))
        return _softmax(self, wide, labels).cross_entropy

    def argmax(self, logits: jax.Array) -> jax.Array:
        """Return the first label of the largest logit, int `[B, ...]`."""
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


def by_chunks(
    of_logits: Callable[..., jax.Array], logits: Logits, *rows: jax.Array
) -> jax.Array:
    """Apply a function to logits; to a product for some tokens at a time.

    Args:
        of_logits: maps logits `[n, vocabulary]` and rows `[n]` to `[n]`.
        logits: `[B, ..., vocabulary]`.
        rows: `[B, ...]` each.
    """
    if not isinstance(logits, LogitsProduct):
        return of_logits(logits, *rows)
    shape, flat = logits.shape[:-1], logits.reshape(-1)
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


class _Softmax(NamedTuple):
    """The softmax of logits `[..., vocabulary]`, and their loss."""

    powers: jax.Array
    """Exponentials of this device's logits, less the largest of all."""
    total: jax.Array
    """Their sum over the vocabulary, `[...]`."""
    place: jax.Array
    """Place of the label in this device's slice, any where it is in another's."""
    mine: jax.Array
    """Whether the label is in this device's slice."""
    cross_entropy: jax.Array
    """Of each label, `[...]`."""


def _softmax(split: VocabLogits, logits: jax.Array, labels: jax.Array) -> _Softmax:
    count = logits.shape[-1]
    place = labels - split.first_label(count, labels.dtype)
    mine = (place >= 0) & (place < count)
    place = jnp.clip(place, 0, count - 1)
    # The maximum keeps the exponentials small; the loss does not depend on it.
    largest = split.maximum(lax.stop_gradient(logits.max(-1)))
    apart = logits - largest[..., None]
    powers = jnp.exp(apart)
    # A label of another device's slice counts as zero here.
    chosen = jnp.take_along_axis(apart, place[..., None], -1)[..., 0]
    chosen = jnp.where(mine, chosen, jnp.zeros_like(chosen))
    # One all-reduce for both sums.
    total, found = split.total(jnp.stack([powers.sum(-1), chosen]))
    return _Softmax(powers, total, place, mine, jnp.log(total) - found)


def _chunk_loss(
    split: VocabLogits, logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the loss of logits `[n, vocabulary]`, and its gradient by them."""
    found, weight = _softmax(split, logits, labels), weights[:, None]
    columns = lax.broadcasted_iota(found.place.dtype, logits.shape, 1)
    is_label = (columns == found.place[:, None]) & found.mine[:, None]
    # weight softmax(l), by the sum over all slices of the vocabulary.
    gradient = found.powers * (weights / found.total)[:, None]
    return (weights * found.cross_entropy).sum(), gradient - jnp.where(
        is_label, weight, jnp.zeros_like(weight)
    )


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
        # The products of a gradient run in the dtype of the features; its sums do not.
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
    # None stands for a sum that nobody wants; the loss is always wanted.
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
    # The gradients are all that is kept for the backward pass: it multiplies nothing
    # out.
    return loss, replace(value, features=features, kernel=kernel, bias=bias)


def _backward(
    split: VocabLogits, gradients: Any, cotangent: jax.Array
) -> tuple[Any, None, None]:
    # Every device of tensor has the loss, and is asked for an equal share of it.
    scale = cotangent * split.devices()
    return jax.tree.map(lambda x: scale.astype(x.dtype) * x, gradients), None, None


_weighted_sum.defvjp(_forward, _backward, symbolic_zeros=True)
