"""Norms of each position by itself, over its features, whatever else is split."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers.tensor_role import Role, gather_tokens


class LayerNorm(nnx.LayerNorm):
    """`flax.nnx.LayerNorm`, its statistics in two passes and at least float32.

    y = (x - mean) / sqrt(var + epsilon) * scale + bias
    """

    scope: str = ""
    role: Role | None = None
    """`gather`: tokens are this device's own, and all of them behind it."""

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalise `x [..., C]` over its features.

        Raises:
            TypeError: a mask; a token is there whole or not at all.
        """
        _reject_mask(mask)
        with jax.named_scope(self.scope or "LayerNorm"):
            return gather_tokens(_normalise(self, x), self.role)


class RMSNorm(nnx.RMSNorm):
    """`flax.nnx.RMSNorm`, its statistics at least float32.

        y = x / sqrt(mean(x**2) + epsilon) * scale

    Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
    """

    scope: str = ""
    role: Role | None = None
    """`gather`: tokens are this device's own, and all of them behind it."""

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Normalise `x [..., C]` over its features.

        Raises:
            TypeError: a mask; a token is there whole or not at all.
        """
        _reject_mask(mask)
        with jax.named_scope(self.scope or "RMSNorm"):
            return gather_tokens(_normalise(self, x), self.role)


class LocalResponseNorm(nnx.Module):
    """Divide by a power of the sum of squares over neighbouring channels.

        y[c] = x[c] / (k + alpha sum_{|j - c| <= size / 2} x[j]^2) ^ beta

    Krizhevsky, Sutskever, Hinton 2012, section 3.3, whose constants are the defaults.
    Every position is by itself, so a split of positions changes nothing.
    """

    scope: str = ""

    def __init__(
        self, size: int = 5, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75
    ) -> None:
        self.size, self.k, self.alpha, self.beta = size, k, alpha, beta

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x [B, ..., C]`."""
        with jax.named_scope(self.scope or "LocalResponseNorm"):
            full, others = x.astype(accumulation_dtype(x.dtype)), (1,) * (x.ndim - 1)
            # A window over the channel dim alone; SAME padding adds zeros at its ends.
            near = lax.reduce_window(
                full * full,
                np.zeros((), full.dtype),
                lax.add,
                (*others, self.size),
                (1,) * x.ndim,
                "SAME",
            )
            return (full * (self.k + self.alpha * near) ** -self.beta).astype(x.dtype)


def _normalise(norm: LayerNorm | RMSNorm, x: jax.Array) -> jax.Array:
    """Divide by the root mean square, and scale; LayerNorm centres and shifts too.

    The backward pass reads the input and computes the rest again: arrays as large in
    float32, which no other layer needs.
    """
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    scale, shift = (None if p is None else p[...] for p in (norm.scale, bias))

    @jax.checkpoint
    def run(
        x: jax.Array, scale: jax.Array | None, shift: jax.Array | None
    ) -> jax.Array:
        y = x.astype(accumulation_dtype(x.dtype))
        if isinstance(norm, LayerNorm):
            # Two passes: mean(x**2) - mean(x)**2 would lose the digits of a small
            # variance beside a large mean.
            y = y - y.mean(-1, keepdims=True)
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + norm.epsilon)
        if scale is not None:
            y = y * scale.astype(y.dtype)
        if shift is not None:
            y = y + shift.astype(y.dtype)
        return y.astype(norm.dtype or x.dtype)

    made: jax.Array = run(x, scale, shift)
    return made


def _reject_mask(mask: jax.Array | None) -> None:
    if mask is not None:
        raise TypeError("a norm of tokens takes no mask")
