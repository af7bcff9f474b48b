"""Logits that are not multiplied out: the features of tokens, and a vocabulary's table.

The logits of a batch are the largest array of a language model's step. A loss that
multiplies them out for some tokens at a time never holds them all.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype

MAX_CHUNK_TOKENS: Final = 4096
"""Most tokens whose logits are multiplied out at a time: products of this many rows are
as fast as larger ones, and the kernel's gradient is added to once a chunk."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("features", "kernel", "bias"),
    meta_fields=("kernel_dim", "scope", "precision"),
)
@dataclass(frozen=True, kw_only=True)
class LogitsProduct:
    """Logits `[B, ..., vocabulary]` as a product, in the place of their array."""

    features: jax.Array
    """What the last layer is given, `[B, ..., C]`."""
    kernel: jax.Array
    """Its weights, `[vocabulary, C]` of a table or `[C, vocabulary]` of a layer."""
    bias: jax.Array | None = None
    """Its biases, `[vocabulary]`."""
    kernel_dim: int
    """The dim of `kernel` that is summed over: that of C."""
    scope: str
    """The layer's path."""
    precision: Any = None
    """Precision of its products."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the logits."""
        return (*self.features.shape[:-1], self.kernel.shape[1 - self.kernel_dim])

    @property
    def ndim(self) -> int:
        """Number of dims of the logits."""
        return self.features.ndim

    def reshape(self, *samples: int) -> Self:
        """Return the product with its tokens in dims of these sizes."""
        width = self.features.shape[-1]
        return replace(self, features=self.features.reshape(*samples, width))

    def logits(self) -> jax.Array:
        """Multiply out `[B, ..., vocabulary]`, in float32 or wider."""
        kernel = ((self.features.ndim - 1,), (self.kernel_dim,))
        with jax.named_scope(self.scope):
            y = lax.dot_general(
                self.features,
                self.kernel,
                (kernel, ((), ())),
                precision=self.precision,
                preferred_element_type=accumulation_dtype(self.features.dtype),
            )
            return y if self.bias is None else y + self.bias.astype(y.dtype)

    def feature_gradient(self, gradient: jax.Array) -> jax.Array:
        """Return the gradient of the features from that of logits `[n, vocabulary]`."""
        with jax.named_scope(self.scope):
            return lax.dot_general(
                gradient,
                self.kernel,
                (((1,), (1 - self.kernel_dim,)), ((), ())),
                precision=self.precision,
                preferred_element_type=gradient.dtype,
            )

    def kernel_gradient(self, gradient: jax.Array) -> jax.Array:
        """Return the gradient of the kernel from that of logits `[n, vocabulary]`."""
        pair = gradient, self.features
        with jax.named_scope(self.scope):
            return lax.dot_general(
                # In the order that gives the kernel's layout: no transposed copy.
                *(pair if self.kernel_dim == 1 else pair[::-1]),
                (((0,), (0,)), ((), ())),
                precision=self.precision,
                # Added up over chunks, where a narrow sum would lose the small ones.
                preferred_element_type=accumulation_dtype(self.features.dtype),
            )


def chunk_count(tokens: int) -> int:
    """Return in how many chunks the logits of so many tokens are multiplied out.

    At least two, all of a size; one where only far smaller chunks would be equal.

    >>> chunk_count(65_536), chunk_count(6_000), chunk_count(100), chunk_count(8_191)
    (16, 2, 2, 1)
    """
    least = -(-tokens // min(MAX_CHUNK_TOKENS, max(tokens // 2, 1)))
    # Far smaller chunks would be slow products, and add to the kernel's gradient more
    # often.
    return next((n for n in range(least, 4 * least + 1) if tokens % n == 0), 1)


def row_chunks(x: jax.Array, count: int) -> jax.Array:
    """Cut rows `[n, ...]` into chunks `[count, n / count, ...]`."""
    return jnp.reshape(x, (count, x.shape[0] // count, *x.shape[1:]))
