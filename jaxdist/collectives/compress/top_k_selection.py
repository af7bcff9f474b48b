"""Top-k selection without sorting: the elements of largest absolute value of a row.

    threshold   the value that the right part of a sample reaches, found bit by bit:
                31 counts over at most 65,536 elements
    indices     a bit an element says whether it reaches the threshold; 32 bits a word
                are counted, counts are summed up (n / 32 of them), and slot j finds its
                word by bisection and its bit in five halvings

A sort of 4 M floats takes 400 times as long as reading them, a library's top_k 50, a
cumulative sum over all of them 30; this takes 3. The count of a row is near what was
asked for, not equal to it: what does not fit in the slots is left out, in order of
index.

Source of the bitwise search: rank and select on bit vectors (Jacobson 1989, "Space-
efficient static trees and graphs").
"""

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.method import check_index_count

SAMPLE_SIZE: Final = 1 << 16
"""Elements of a row that the threshold is read from, at most."""
_MARGIN: Final = 0.95
"""Part of the slots that a sampled threshold aims to fill: its count varies by 4 %."""


def top_k(rows: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Select about `k` elements of each row, the largest in absolute value.

    Args:
        rows: floats [R, m].
        k: at most so many of a row, 1 to m.

    Returns:
        Values [R, slots], 0 in empty slots, and indices [R, slots] int32 in ascending
        order; in an empty slot an index of m or more, a different one in each.

    Raises:
        BadInput: the row has more elements than int32 can index.
    """
    size = rows.shape[1]
    check_index_count("its largest elements", size + k)
    # All are sent: nothing to select, and indices are known.
    if k == size:
        every = jnp.arange(size, dtype=jnp.int32)
        return rows, jnp.broadcast_to(every, rows.shape)

    def select(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        place = set_bit_positions(threshold_bitmask(row, k), k)
        return row.at[place].get(mode="fill", fill_value=0), place

    return jax.vmap(select)(rows)


def top_k_threshold(row: jax.Array, k: int) -> jax.Array:
    """Return the magnitude that about `k` elements of a row reach: float32 scalar."""
    seen, wanted = jnp.abs(row).astype(jnp.float32), k
    if row.size > SAMPLE_SIZE:
        # One sample somewhere in each stretch of the row: equal steps would meet the
        # same channel of every pixel.
        stride, i = row.size // SAMPLE_SIZE, np.arange(SAMPLE_SIZE, dtype=np.uint32)
        inside = hash_uint32(jnp.asarray(i)) % np.uint32(stride)
        sample = i * np.uint32(stride) + inside
        seen = seen[lax.bitcast_convert_type(sample, jnp.int32)]
        wanted = max(1, round(_MARGIN * k * SAMPLE_SIZE / row.size))
    # Floats of one sign are ordered as their bits are.
    bits = lax.bitcast_convert_type(seen, jnp.uint32)

    def narrowed(i: jax.Array, low: jax.Array) -> jax.Array:
        tried = low | (np.uint32(1) << (np.uint32(30) - i.astype(jnp.uint32)))
        return jnp.where((bits >= tried).sum(dtype=jnp.int32) >= wanted, tried, low)

    # Zero, made of the row: a loop's start must vary over the axes that its end does.
    found = lax.fori_loop(0, 31, narrowed, bits[0] & np.uint32(0))
    return lax.bitcast_convert_type(found, jnp.float32)


def hash_uint32(numbers: jax.Array) -> jax.Array:
    """Hash uint32 numbers (Mueller 2011; the constants of `lowbias32`)."""
    x = numbers
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def threshold_bitmask(row: jax.Array, k: int) -> jax.Array:
    """Mark the elements that reach the threshold of `k`: uint32, 32 a word."""
    marks = jnp.abs(row).astype(jnp.float32) >= top_k_threshold(row, k)
    bits = jnp.pad(marks, (0, -marks.size % 32)).reshape(-1, 32).astype(jnp.uint32)
    return (bits << np.arange(32, dtype=np.uint32)).sum(-1, dtype=jnp.uint32)


def set_bit_positions(words: jax.Array, slots: int) -> jax.Array:
    """Return the positions of the first `slots` bits that are set, int32, ascending.

    Args:
        words: uint32 [w], the first position in the lowest bit of the first.
        slots: at most so many; an empty one gets a position of its own, 32 w or more.
    """
    counts = lax.population_count(words).astype(jnp.int32)
    # The cumulative sum, inside stretches of 128 and over them: much faster than one
    # over all words.
    padded = jnp.pad(counts, (0, -counts.size % 128)).reshape(-1, 128)
    inside = jnp.cumsum(padded, axis=1)
    before = jnp.cumsum(inside[:, -1]) - inside[:, -1]
    ends = (inside + before[:, None]).reshape(-1)[: counts.size]

    slot = jnp.arange(slots, dtype=jnp.int32)
    word = jnp.minimum(jnp.searchsorted(ends, slot, side="right"), words.size - 1)
    found, left = words[word], slot - (ends - counts)[word]
    # The bit of each word that `left` set bits come before, by halving the word.
    bit = jnp.zeros_like(left)
    for width in (16, 8, 4, 2, 1):
        low = found & np.uint32((1 << width) - 1)
        here = lax.population_count(low).astype(jnp.int32)
        above = left >= here
        found = jnp.where(above, found >> np.uint32(width), low)
        left = jnp.where(above, left - here, left)
        bit = jnp.where(above, bit + width, bit)
    return jnp.where(slot < ends[-1], 32 * word + bit, 32 * words.size + slot)
