"""The sign codec: one bit a number, and the mean length of a row's numbers.

Source: Bernstein et al. 2018, arXiv:1802.04434 (signs); Karimireddy et al. 2019,
arXiv:1901.09847, section 4 (scaled by the mean length).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.codec import Codec


@dataclass(frozen=True)
class SignCodec(Codec):
    """Signs, eight a byte; zero counts as positive."""

    @property
    def name(self) -> str:
        """What it sends."""
        return "sign"

    def encode(self, rows: jax.Array) -> jax.Array:
        """Pack bits [R, ceil(m / 8)] and the scale [R, 4] as bytes."""
        width = -rows.shape[1] % 8
        up = jnp.pad(rows >= 0, ((0, 0), (0, width)))
        bits = up.reshape(len(rows), -1, 8).astype(jnp.uint8)
        packed = (bits << np.arange(8, dtype=np.uint8)).sum(-1, dtype=jnp.uint8)
        scale = jnp.mean(jnp.abs(rows), axis=1).astype(jnp.float32)
        scale = jnp.where(jnp.isfinite(scale), scale, jnp.nan)
        ends = lax.bitcast_convert_type(scale, jnp.uint8)
        return jnp.concatenate([packed, ends], axis=1)

    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Return plus or minus the scale."""
        scale = lax.bitcast_convert_type(messages[:, -4:], jnp.float32).astype(dtype)
        bits = messages[:, :-4, None] >> np.arange(8, dtype=np.uint8) & np.uint8(1)
        signs = 2 * bits.reshape(len(messages), -1)[:, :row_elements].astype(dtype) - 1
        return signs * scale[:, None]

    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return the bytes of the bits and of the scale."""
        return -(-row_elements // 8) + 4
