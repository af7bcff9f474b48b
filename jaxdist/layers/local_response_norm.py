"""Local response normalisation: each value is damped by those of nearby channels."""

import jax
import numpy as np
from flax import nnx
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype


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
            near = lax.reduce_window(
                full * full,
                np.zeros((), full.dtype),
                lax.add,
                (*others, self.size),
                (1,) * x.ndim,
                "SAME",
            )
            return (full * (self.k + self.alpha * near) ** -self.beta).astype(x.dtype)
