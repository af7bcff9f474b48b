"""The sparse codec: the largest numbers of a row, each with its place.

A message is `[values, places, flag]` in words of 32 bits; the flag is NaN where a
number of the row is not finite, and all of the row with it.
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
    """A part of the numbers."""

    density: float = 0.01
    """Which part of a row is sent, at most."""

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def name(self) -> str:
        """What it picks."""
        return "top_k"

    def encode(self, rows: jax.Array) -> jax.Array:
        """Pick values and places."""
        values, where = top_k(rows, density_to_k(self.density, rows.shape[1]))
        return encode_sparse(values, where, jax.vmap(nan_where_not_finite)(rows))

    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Put the values where they were, into zeros."""
        empty = jnp.zeros(row_elements, dtype)
        return jax.vmap(lambda message: accumulate_sparse(empty, message))(messages)

    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return the bytes of values, places and flag."""
        slots = density_to_k(self.density, row_elements)
        return slots * (itemsize + 4) + itemsize


def encode_sparse(values: jax.Array, indices: jax.Array, flags: jax.Array) -> jax.Array:
    """Return messages [R, w] of values [R, k], places [R, k] and flags [R]."""
    parts = _as_words(values), lax.bitcast_convert_type(indices, jnp.uint32)
    return jnp.concatenate([*parts, _as_words(flags[:, None])], axis=1)


def decode_sparse(
    message: jax.Array, dtype: np.dtype[np.generic]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Read values [k], places [k] and flag [1] of one message, of the packed dtype."""
    words = dtype.itemsize // 4
    slots = message.size // (words + 1)
    values = _as_floats(message[: words * slots], dtype)
    where = lax.bitcast_convert_type(message[words * slots : -words], jnp.int32)
    return values, where, _as_floats(message[-words:], dtype)


def accumulate_sparse(total: jax.Array, message: jax.Array) -> jax.Array:
    """Add what one message says to a vector of the dtype that was packed."""
    values, where, flag = decode_sparse(message, total.dtype)
    # Places differ, so that the sum does not depend on the order of the additions.
    return total.at[where].add(values, mode="drop", unique_indices=True) + flag


def _as_words(values: jax.Array) -> jax.Array:
    """Read floats [R, k] of 32 or 64 bits as words of 32."""
    return lax.bitcast_convert_type(values, jnp.uint32).reshape(len(values), -1)


def _as_floats(words: jax.Array, dtype: np.dtype[np.generic]) -> jax.Array:
    """Read a vector of words as floats."""
    pairs = words.reshape(-1, 2) if dtype.itemsize == 8 else words
    return lax.bitcast_convert_type(pairs, dtype)
