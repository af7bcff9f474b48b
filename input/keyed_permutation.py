"""Keyed hash and permutation: random numbers as pure functions of what they are for.

No state and no table: the value for one sample is known without computing any other,
so every host, thread and restart agrees. The numbers are frozen: changing any of them
changes the order in which every run sees its samples, and breaks its resume.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

UInt64Array = NDArray[np.uint64]
GridPermutation = Callable[[UInt64Array, UInt64Array, int, int], UInt64Array]
"""(keys, cells, rows, columns) to cells: a permutation of a grid."""

# The increment of SplitMix64: 2^64 over the golden section, made odd.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_CHAIN: Final = np.uint64(0xD6E8FEB86659FD93)
_ROUND_CONSTANTS: Final = np.arange(6, dtype=np.uint64)[:, None] * np.uint64(
    0xA24BAED4963EE407
)
"""What is added to the key in each round."""
_HALF_BITS: Final = np.uint64(32)
_CHUNK: Final = 1 << 15
"""Cells that are permuted at once."""


def hash64(*parts: ArrayLike) -> UInt64Array:
    """Hash integers to 64 bits, element by element where parts are arrays.

    Args:
        *parts: integers of any sign, or integer arrays that broadcast together.

    >>> bool(hash64(1, 2) == hash64(2, 1))
    False
    >>> hash64(0, [1, 2, 3]).shape
    (3,)
    """
    hashed = np.full(1, _GOLDEN)
    for part in parts:
        whole = np.uint64(part & (2**64 - 1)) if isinstance(part, int) else part
        # Arrays of one element, not scalars: arrays wrap around silently where
        # NumPy's scalars warn of an overflow.
        words = np.atleast_1d(np.asarray(whole)).astype(np.uint64) + _GOLDEN
        # The chain makes the hash depend on the order of the parts.
        words = _mix_upper(words ^ (hashed * _CHAIN))
        hashed = words ^ (words >> np.uint64(31))
    return hashed


def bounded_int(bound: int, hashes: UInt64Array) -> UInt64Array:
    """Map the upper 32 bits of hashes to [0, bound), evenly to a part in 2**32 / bound.

    >>> bounded_int(10, np.array([0, 2**63, 2**64 - 1], np.uint64)).tolist()
    [0, 5, 9]
    """
    # A product and a shift in place of a remainder (Lemire 2019, arXiv:1805.10941).
    return ((hashes >> _HALF_BITS) * np.uint64(bound)) >> _HALF_BITS


def permute(keys: UInt64Array, positions: ArrayLike, size: int) -> NDArray[np.int64]:
    """Permute [0, n) by a key, one position at a time.

    Alternating Feistel rounds on a grid of about sqrt(n) x sqrt(n); the few cells
    beyond n are permuted again until they are inside (cycle walking).

    Args:
        keys: one key a position, or one for all: uint64 [m] or [1].
        positions: int [m], each in [0, n).
        size: size of the permuted range.

    Returns:
        int64 [m]: distinct positions of one key get distinct values.

    >>> sorted(permute(hash64(7), range(5), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    return _cycle_walk(_feistel, keys, positions, size)


def inverse_permute(
    keys: UInt64Array, values: ArrayLike, size: int
) -> NDArray[np.int64]:
    """Return the positions that `permute` moved to these values.

    >>> inverse_permute(hash64(7), permute(hash64(7), range(5), 5), 5).tolist()
    [0, 1, 2, 3, 4]
    """
    return _cycle_walk(_inverse_feistel, keys, values, size)


def _cycle_walk(
    cipher: GridPermutation, keys: UInt64Array, cells: ArrayLike, n: int
) -> NDArray[np.int64]:
    """Apply a permutation of a grid until every cell is below n (cycle walking)."""
    places = np.asarray(cells).astype(np.uint64)
    keys = np.broadcast_to(keys, places.shape)
    # The smallest nearly square grid: fewer than `rows` cells lie beyond n, so hardly
    # any cell needs a second round.
    rows = int(np.ceil(np.sqrt(n)))
    columns = -(-n // rows)
    found = np.empty(places.shape, np.int64)
    # A chunk and its intermediate arrays fit into a core's cache: 2 million cells take
    # half of the time that they take at once.
    for first in range(0, places.size, _CHUNK):
        part = slice(first, first + _CHUNK)
        own, inside = keys[part], cipher(keys[part], places[part], rows, columns)
        while (outside := np.nonzero(inside >= n)[0]).size:
            inside[outside] = cipher(own[outside], inside[outside], rows, columns)
        found[part] = inside
    return found


def _feistel(
    keys: UInt64Array, cells: UInt64Array, rows: int, columns: int
) -> UInt64Array:
    """Permute the cells of a rows x columns grid."""
    tall, wide = np.uint64(rows), np.uint64(columns)
    high = cells // tall
    low = cells - high * tall  # faster than a remainder
    turns = keys + _ROUND_CONSTANTS
    # Each round adds a hash of one coordinate to the other, which is undone by
    # subtracting it: a permutation whatever the hash. Sums stay below twice the size.
    for even, odd in zip(turns[::2], turns[1::2]):
        low = _reduce_once(low + bounded_int(rows, _mix_upper(even + high)), tall)
        high = _reduce_once(high + bounded_int(columns, _mix_upper(odd + low)), wide)
    return high * tall + low


def _inverse_feistel(
    keys: UInt64Array, cells: UInt64Array, rows: int, columns: int
) -> UInt64Array:
    """Undo `_feistel`: the same rounds, last first."""
    tall, wide = np.uint64(rows), np.uint64(columns)
    high = cells // tall
    low = cells - high * tall  # faster than a remainder
    turns = keys + _ROUND_CONSTANTS
    # The size is added before the hash is taken away: unsigned numbers have no sign.
    for even, odd in zip(turns[-2::-2], turns[::-2]):
        high = _reduce_once(
            high + wide - bounded_int(columns, _mix_upper(odd + low)), wide
        )
        low = _reduce_once(
            low + tall - bounded_int(rows, _mix_upper(even + high)), tall
        )
    return high * tall + low


def _reduce_once(sums: UInt64Array, size: np.uint64) -> UInt64Array:
    """Reduce sums of two numbers below a size; faster than a remainder."""
    return np.where(sums >= size, sums - size, sums)


def _mix_upper(words: UInt64Array) -> UInt64Array:
    """Scramble the upper 32 bits: SplitMix64's finaliser without its last xor-shift."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
