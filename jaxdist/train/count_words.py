"""Counts in two words: whole numbers beyond int32 that devices without int64 add.

A batch of eight volumes of 1024 x 1024 x 1024 voxels has 2^33 of them, and jax has no
int64 unless `jax_enable_x64` is set. So a count leaves a device as two int32 words,

    count = 2^16 high + low        0 <= low < 2^16

which add word by word, over devices and microbatches. The host makes int64 of them.
Exact while

    a device's part of one sample has fewer than 2^31 numbers to count,
    2^15 words are added at most: 32,768 devices, or microbatches times devices,
    a batch has fewer than 2^47 of them.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

_BITS: Final = 16
_LOW: Final = 2**_BITS - 1


def count_words(counts: jax.Array) -> jax.Array:
    """Add the counts of samples; they become two words.

    Args:
        counts: int32 [B, ...], none below 0: of each sample.

    Returns:
        int32 [2, ...], high and low.

    >>> words = count_words(jnp.array([2**31 - 1, 2**31 - 1, 3]))
    >>> int(words_total(words)) - 2**32
    1
    """
    low = (counts & _LOW).sum(0, dtype=jnp.int32)
    high = (counts >> _BITS).sum(0, dtype=jnp.int32)
    # What the low words of many samples carry goes to the high one, so that the low
    # words of many devices have room.
    return jnp.stack([high + (low >> _BITS), low & _LOW])


def count_true(found: jax.Array) -> jax.Array:
    """Count what is true: bool [B, ...], one or several a sample, to two words [2]."""
    each = found.reshape(len(found), -1)
    return count_words(each.sum(1, dtype=jnp.int32))


def words_total(words: Any) -> NDArray[np.int64]:
    """Return counts as int64 [...], of int32 [2, ...], high and low; on the host."""
    high, low = np.asarray(words, np.int64)
    return np.asarray((high << _BITS) + low)
