"""The sparse codec: the largest elements of a row, each with its index.

A message is `[values, indices, flag]` in words of 32 bits; the flag is NaN where an
element of the row is not finite, and makes the whole row NaN.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.compress.method import (
    check_density,
    density_to_k,
    nan_where_not_finite,
)
from jaxdist.collectives.compress.top_k_selection import top_k


@dataclass(frozen=True, kw_only=True)
class TopKCodec(Codec):
    """The largest elements of a row."""

    density: float = 0.01
    """Share of a row that is sent, at most."""

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def name(self) -> str:
        """The name of the codec."""
        return "top_k"

    def encode(self, rows: jax.Array) -> jax.Array:
        """Select values and indices."""
        values, where = top_k(rows, density_to_k(self.density, rows.shape[1]))
        return encode_sparse(values, where, jax.vmap(nan_where_not_finite)(rows))

    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Scatter the values into zeros."""
        empty = jnp.zeros(row_elements, dtype)
        return jax.vmap(lambda message: accumulate_sparse(empty, message))(messages)

    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return the bytes of values, indices and flag."""
        slots = density_to_k(self.density, row_elements)
        return slots * (itemsize + 4) + itemsize


def encode_sparse(values: jax.Array, indices: jax.Array, flags: jax.Array) -> jax.Array:
    """Return messages [R, w] of values [R, k], indices [R, k] and flags [R]."""
    # Floats of 64 bits are two words each.
    words, flag_words = (
        lax.bitcast_convert_type(floats, jnp.uint32).reshape(len(floats), -1)
        for floats in (values, flags[:, None])
    )
    indices = lax.bitcast_convert_type(indices, jnp.uint32)
    return jnp.concatenate([words, indices, flag_words], axis=1)


def decode_sparse(
    message: jax.Array, dtype: np.dtype[np.generic]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return values [k], indices [k] and flag [1] of one message."""
    words = dtype.itemsize // 4
    # A message has (words + 1) k + words words.
    slots = message.size // (words + 1)
    values, flag = (
        lax.bitcast_convert_type(part.reshape(-1, 2) if words == 2 else part, dtype)
        for part in (message[: words * slots], message[-words:])
    )
    where = lax.bitcast_convert_type(message[words * slots : -words], jnp.int32)
    return values, where, flag


def accumulate_sparse(total: jax.Array, message: jax.Array) -> jax.Array:
    """Add a message to a vector of the encoded dtype."""
    values, where, flag = decode_sparse(message, total.dtype)
    # Indices differ, so that the sum does not depend on the order of the additions.
    return total.at[where].add(values, mode="drop", unique_indices=True) + flag
