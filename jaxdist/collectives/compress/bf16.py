"""The cast codec: numbers as bfloat16, which keeps the range of float32."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.codec import Codec


@dataclass(frozen=True)
class Bf16Codec(Codec):
    """Numbers rounded to bfloat16, 8 bits of mantissa."""

    @property
    def name(self) -> str:
        """The dtype."""
        return "bf16"

    def encode(self, rows: jax.Array) -> jax.Array:
        """Round; infinities and NaN stay what they are."""
        return lax.bitcast_convert_type(rows.astype(jnp.bfloat16), jnp.uint16)

    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Widen."""
        del row_elements
        return lax.bitcast_convert_type(messages, jnp.bfloat16).astype(dtype)

    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return two bytes a number."""
        return 2 * row_elements
