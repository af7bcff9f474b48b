"""Codecs: rows of numbers as rows of bytes or words, and back.

What travels is unsigned integers: backends widen floats of 8 and 16 bits and integers
of 4 before they move them (XLA's CPU backend bf16 to f32, fp8 to f16, int4 to 8 bits),
but never an unsigned integer of 8, 16 or 32.
"""

import abc

import jax
import numpy as np


class Codec(abc.ABC):
    """Rows [R, m] to messages [R, w] and back; a frozen dataclass."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What people call it."""

    @abc.abstractmethod
    def encode(self, rows: jax.Array) -> jax.Array:
        """Make a message of each row [R, m] of floats: unsigned integers [R, w]."""

    @abc.abstractmethod
    def decode(
        self, messages: jax.Array, row_elements: int, dtype: np.dtype[np.generic]
    ) -> jax.Array:
        """Decode rows of `row_elements` elements; what was not finite is NaN."""

    @abc.abstractmethod
    def message_bytes(self, row_elements: int, itemsize: int) -> int:
        """Return the bytes of the message of a row of so many numbers."""
