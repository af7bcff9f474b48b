"""Block codecs: 8 or 4 bits a number, and a float32 scale for each block of them.

    scale = max |x| / largest code,    code = round(x / scale)

Blocks of a row are of equal length, at most `block`; the last may be padded. A block
with a number that is not finite has the scale NaN, and is NaN where it is read.

Source: Wang et al. 2023, arXiv:2306.10209, section 3.1 (block quantisation).
"""

from dataclasses import dataclass
from typing import Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.codec import Codec
from jaxdist.core.errors import BadInput

_LARGEST: Final = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}


@dataclass(frozen=True, kw_only=True)
class BlockQuantizationCodec(Codec):
    """Numbers of few bits with a scale a block."""

    dtype: Literal["int8", "int4", "fp8"] = "int8"
    """What a number is sent as; fp8 has 4 bits of exponent and 3 of mantissa."""
    block_size: int = 256
    """Numbers that share a scale, at most."""

    def __post_init__(self) -> None:
        if self.dtype not in _LARGEST:
            raise BadInput(
                f"no block codec of {self.dtype}",
                rule="numbers travel as int8, int4 or fp8; int2 is not moved safely "
                "by XLA's CPU backend",
                values=f"kind = {self.dtype}",
                remedy="kind='int4'",
            )
        if self.block_size < 2 or self.block_size % 2:
            raise BadInput(
                "a block of quantised numbers has no such length",
                rule="a block has an even number of numbers",
                values=f"block = {self.block_size}",
                remedy="block=256",
            )

    @property
    def name(self) -> str:
        """The kind."""
        return self.dtype

    def encode(self, rows: jax.Array) -> jax.Array:
        """Quantise: codes [R, c b] first, then scales [R, 4 c], as bytes."""
        count, width = self._blocks(rows.shape[1])
        padded = jnp.pad(rows, ((0, 0), (0, count * width - rows.shape[1])))
        blocks = padded.reshape(len(rows), count, width)
        largest = jnp.max(jnp.abs(blocks), axis=-1).astype(jnp.float32)
        scale = largest / _LARGEST[self.dtype]
        scale = jnp.where(jnp.isfinite(scale), scale, jnp.nan)
        by = jnp.where(scale == 0, 1, scale)[..., None].astype(rows.dtype)
        codes = self._coded(blocks / by).reshape(len(rows), -1)
        ends = lax.bitcast_convert_type(scale, jnp.uint8).reshape(len(rows), -1)
        return jnp.concatenate([codes, ends], axis=1)

    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Multiply codes by their scales."""
        count, width = self._blocks(row_elements)
        split = messages.shape[1] - 4 * count
        ends = messages[:, split:].reshape(len(messages), count, 4)
        scale = lax.bitcast_convert_type(ends, jnp.float32).astype(dtype)
        codes = self._read(messages[:, :split]).astype(dtype)
        values = codes.reshape(len(messages), count, width) * scale[..., None]
        return values.reshape(len(messages), -1)[:, :row_elements]

    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return the bytes of codes and scales."""
        count, width = self._blocks(row_elements)
        return count * width // (2 if self.dtype == "int4" else 1) + 4 * count

    def _blocks(self, row: int) -> tuple[int, int]:
        """Return how many blocks a row has, and how long they are."""
        count = -(-row // self.block_size)
        width = -(-row // count)
        return count, width + width % 2

    def _coded(self, values: jax.Array) -> jax.Array:
        """Return the codes as bytes, two of 4 bits in one."""
        if self.dtype == "fp8":
            small = values.astype(jnp.float8_e4m3fn)
            return lax.bitcast_convert_type(small, jnp.uint8)
        # Undefined where the scale is NaN; whatever it is, NaN times it is NaN.
        whole = jnp.rint(values).astype(jnp.int8)
        if self.dtype == "int8":
            return lax.bitcast_convert_type(whole, jnp.uint8)
        codes = lax.bitcast_convert_type(whole, jnp.uint8)
        low, high = codes[..., ::2], codes[..., 1::2]
        return (low & np.uint8(15)) | (high << np.uint8(4))

    def _read(self, codes: jax.Array) -> jax.Array:
        """Return the codes [R, c b] as numbers."""
        if self.dtype == "fp8":
            return lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
        if self.dtype == "int8":
            return lax.bitcast_convert_type(codes, jnp.int8)
        # Shifted up and down as signed, so that the sign of 4 bits is kept.
        low = lax.bitcast_convert_type(codes << np.uint8(4), jnp.int8) >> np.int8(4)
        high = lax.bitcast_convert_type(codes, jnp.int8) >> np.int8(4)
        return jnp.stack([low, high], axis=-1).reshape(len(codes), -1)
