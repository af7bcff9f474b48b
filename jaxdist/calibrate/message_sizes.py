"""Sizes: up to which bytes collectives are timed.

A library takes other algorithms for large sums, and gradients of large networks are
summed in buckets that are larger than most links of a test carry in a second.
"""

from collections.abc import Mapping
from typing import Final

ChainLengths = tuple[tuple[int, int], int]
"""Collectives in the shorter and in the longer chain, and rounds."""
_SIZE_FACTOR: Final = 4
_MIN_SIZE_RATIO: Final = 1.25
"""Times the one before that a size is at least: closer ones tell nothing new."""


def sizes_up_to(
    sizes: Mapping[int, ChainLengths], max_bytes: int | None
) -> dict[int, ChainLengths]:
    """Return the sizes below another, more by factors of four, and that one.

    Args:
        sizes: bytes, and how they are timed.
        max_bytes: bytes; None leaves the sizes as they are.

    >>> some = {1 << 20: ((1, 3), 9), 1 << 23: ((1, 3), 3)}
    >>> [size / 2**20 for size in sizes_up_to(some, 64 << 20)]
    [1.0, 8.0, 32.0, 64.0]
    >>> [size / 2**20 for size in sizes_up_to(some, 4 << 20)]
    [1.0, 4.0]
    """
    if max_bytes is None:
        return dict(sizes)
    last = size = max(sizes)
    more = dict(sizes)
    while (size := size * _SIZE_FACTOR) < max_bytes:
        more[size] = sizes[last]
    alike = min((size for size in sizes if size >= max_bytes), default=last)
    below = {
        size: how for size, how in more.items() if size * _MIN_SIZE_RATIO <= max_bytes
    }
    return {**below, max_bytes: sizes[alike]}
