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
            # Two passes: mean(x**2) - mean(x)**2 would lose the digits of a small
            # variance beside a large mean.
            full = x.astype(accumulation_dtype(x.dtype))
            centred = full - full.mean(-1, keepdims=True)
            return gather_tokens(_rms_scale(self, centred, x.dtype), self.role)


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
            y = _rms_scale(self, x.astype(accumulation_dtype(x.dtype)), x.dtype)
            return gather_tokens(y, self.role)


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


def _rms_scale(norm: LayerNorm | RMSNorm, x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Divide by the root of the mean square, then scale, and shift where it does."""
    square = jnp.square(x).mean(-1, keepdims=True)
    y = x * lax.rsqrt(square + norm.epsilon)
    if norm.scale is not None:
        y = y * norm.scale[...].astype(x.dtype)
    if isinstance(norm, LayerNorm) and norm.bias is not None:
        y = y + norm.bias[...].astype(x.dtype)
    return y.astype(norm.dtype or dtype)


def _reject_mask(mask: jax.Array | None) -> None:
    if mask is not None:
        raise TypeError("a norm of tokens takes no mask")
