"""Codecs: rows of floats as messages of unsigned integers, and back.

Sources: Wang et al. 2023, arXiv:2306.10209, section 3.1 (block quantization); Bernstein
et al. 2018, arXiv:1802.04434 (signs); Karimireddy et al. 2019, arXiv:1901.09847,
section 4 (signs scaled by the mean magnitude).
"""

import abc
from dataclasses import dataclass
from typing import Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.core.errors import BadInput

# Of fp8 (e4m3fn) the largest number; integers have as many codes below zero as above,
# so -128 and -8 are not used.
_LARGEST: Final = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}


# Messages are unsigned integers because backends widen floats of 8 and 16 bits and
# integers of 4 before they move them (XLA's CPU backend bf16 to f32, fp8 to f16, int4
# to 8 bits), but never an unsigned integer of 8, 16 or 32.
class Codec(abc.ABC):
    """Rows [R, m] to messages [R, w] and back; a frozen dataclass."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the codec in a plan."""

    @abc.abstractmethod
    def encode(self, rows: jax.Array) -> jax.Array:
        """Encode each row [R, m] of floats as unsigned integers [R, w]."""

    @abc.abstractmethod
    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Decode rows of `row_elements` elements; what was not finite is NaN."""

    @abc.abstractmethod
    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return the bytes of the message of a row."""


@dataclass(frozen=True)
class Bf16Codec(Codec):
    """Floats rounded to bfloat16, which has the range of float32."""

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
        """Return two bytes an element."""
        return 2 * row_elements


@dataclass(frozen=True, kw_only=True)
class BlockQuantizationCodec(Codec):
    """8 or 4 bits an element, and a float32 scale for each block of a row.

        scale = max |x| / largest code,    code = round(x / scale)

    Blocks of a row have equal lengths, at most `block_size`; the last may be padded. A
    block with an element that is not finite has the scale NaN, and decodes to NaN.
    """

    dtype: Literal["int8", "int4", "fp8"] = "int8"
    """Dtype of a code; fp8 has 4 bits of exponent and 3 of mantissa."""
    block_size: int = 256
    """Elements that share a scale, at most."""

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
        """The dtype."""
        return self.dtype

    def encode(self, rows: jax.Array) -> jax.Array:
        """Quantize: codes first, then scales [R, 4 c], as bytes."""
        count, width = self._blocks(rows.shape[1])
        padded = jnp.pad(rows, ((0, 0), (0, count * width - rows.shape[1])))
        blocks = padded.reshape(len(rows), count, width)
        largest = jnp.max(jnp.abs(blocks), axis=-1).astype(jnp.float32)
        scale = largest / _LARGEST[self.dtype]
        scale = jnp.where(jnp.isfinite(scale), scale, jnp.nan)
        # A block of zeros has the scale 0: divided by 1, its codes are 0 and not NaN.
        by = jnp.where(scale == 0, 1, scale)[..., None].astype(rows.dtype)
        values = blocks / by
        if self.dtype == "fp8":
            small = values.astype(jnp.float8_e4m3fn)
            codes = lax.bitcast_convert_type(small, jnp.uint8)
        else:
            # Undefined where the scale is NaN; whatever it is, NaN times it is NaN.
            whole = jnp.rint(values).astype(jnp.int8)
            codes = lax.bitcast_convert_type(whole, jnp.uint8)
        if self.dtype == "int4":
            low, high = codes[..., ::2], codes[..., 1::2]
            codes = (low & np.uint8(15)) | (high << np.uint8(4))
        ends = lax.bitcast_convert_type(scale, jnp.uint8).reshape(len(rows), -1)
        return jnp.concatenate([codes.reshape(len(rows), -1), ends], axis=1)

    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Multiply codes by their scales."""
        count, width = self._blocks(row_elements)
        # Four bytes of float32 for each scale, at the end.
        split = messages.shape[1] - 4 * count
        ends = messages[:, split:].reshape(len(messages), count, 4)
        scale = lax.bitcast_convert_type(ends, jnp.float32).astype(dtype)
        codes = messages[:, :split]
        if self.dtype == "fp8":
            read = lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
        elif self.dtype == "int8":
            read = lax.bitcast_convert_type(codes, jnp.int8)
        else:
            # Shifted up and down as signed, so that the sign of 4 bits is kept.
            low = lax.bitcast_convert_type(codes << np.uint8(4), jnp.int8) >> np.int8(4)
            high = lax.bitcast_convert_type(codes, jnp.int8) >> np.int8(4)
            read = jnp.stack([low, high], axis=-1).reshape(len(codes), -1)
        blocks = read.astype(dtype).reshape(len(messages), count, width)
        values = blocks * scale[..., None]
        return values.reshape(len(messages), -1)[:, :row_elements]

    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return the bytes of codes and scales."""
        count, width = self._blocks(row_elements)
        return count * width // (2 if self.dtype == "int4" else 1) + 4 * count

    def _blocks(self, row: int) -> tuple[int, int]:
        """Return how many blocks a row has, and their even length."""
        # Blocks of equal length, even, so that two codes of 4 bits fill a byte.
        count = -(-row // self.block_size)
        width = -(-row // count)
        return count, width + width % 2


@dataclass(frozen=True)
class SignCodec(Codec):
    """Signs, eight a byte, and the mean magnitude of a row; zero counts as positive."""

    @property
    def name(self) -> str:
        """The name of the method."""
        return "sign"

    def encode(self, rows: jax.Array) -> jax.Array:
        """Pack bits [R, ceil(m / 8)] and the scale [R, 4] as bytes."""
        packed = pack_bits((rows >= 0).astype(jnp.uint8), 1)
        scale = jnp.mean(jnp.abs(rows), axis=1).astype(jnp.float32)
        scale = jnp.where(jnp.isfinite(scale), scale, jnp.nan)
        ends = lax.bitcast_convert_type(scale, jnp.uint8)
        return jnp.concatenate([packed, ends], axis=1)

    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Return plus or minus the scale."""
        scale = lax.bitcast_convert_type(messages[:, -4:], jnp.float32).astype(dtype)
        bits = unpack_bits(messages[:, :-4], 1, row_elements)
        return (2 * bits.astype(dtype) - 1) * scale[:, None]

    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return the bytes of the bits and of the scale."""
        return -(-row_elements // 8) + 4


def pack_bits(numbers: jax.Array, bits: int) -> jax.Array:
    """Pack rows [R, m] of unsigned integers of so many bits into bytes [R, w].

    Bit i of a byte is bit i mod `bits` of a number: the lowest bits come first.

    >>> pack_bits(jnp.array([[5, 2, 7]], jnp.uint32), 3).tolist()
    [[213, 1]]
    """
    split = numbers[..., None] >> np.arange(bits, dtype=numbers.dtype)
    flat = (split & numbers.dtype.type(1)).astype(jnp.uint8).reshape(len(numbers), -1)
    flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % 8)))
    each = flat.reshape(len(numbers), -1, 8) << np.arange(8, dtype=np.uint8)
    return each.sum(-1, dtype=jnp.uint8)


def unpack_bits(packed: jax.Array, bits: int, count: int) -> jax.Array:
    """Return the uint32 numbers [R, count] of bytes that `pack_bits` made.

    >>> unpack_bits(jnp.array([[213, 1]], jnp.uint8), 3, 3).tolist()
    [[5, 2, 7]]
    """
    split = packed[..., None] >> np.arange(8, dtype=np.uint8) & np.uint8(1)
    flat = split.reshape(len(packed), -1)[:, : count * bits].astype(jnp.uint32)
    each = flat.reshape(len(packed), count, bits) << np.arange(bits, dtype=np.uint32)
    return each.sum(-1, dtype=jnp.uint32)
