"""Augmentation: small random shifts, a function of (seed, epoch, sample id) alone.

What a sample looks like in an epoch does not depend on its batch, host or thread.
"""

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from jaxdist.input.keyed_permutation import bounded_int, hash64

_KEY_DOMAIN: Final = 0x5348494654
"""Keeps these draws apart from those of the order, which have the same seed."""


def shift_images(
    images: NDArray[np.float32],
    ids: NDArray[np.int32],
    epochs: NDArray[np.int64],
    *,
    seed: int,
    max_shift: int,
) -> NDArray[np.float32]:
    """Move each image by up to `max_shift` pixels along both dims; zeros move in.

    Args:
        images: [B, H, W, C].
        ids: sample ids, [B].
        epochs: epoch of each sample, [B].
        seed: another seed is another shift for every sample.
        max_shift: largest shift, pixels; 0 returns the images themselves.

    Returns:
        [B, H, W, C], a new array where `max_shift` is positive.
    """
    if max_shift == 0:
        return images
    down, right = draw_shifts(ids, epochs, seed=seed, max_shift=max_shift)
    samples, height, width, channels = images.shape
    framed = np.zeros(
        (samples, height + 2 * max_shift, width + 2 * max_shift, channels), images.dtype
    )
    framed[:, max_shift:-max_shift, max_shift:-max_shift] = images
    windows = sliding_window_view(framed, (height, width), axis=(1, 2))
    moved = windows[np.arange(samples), max_shift - down, max_shift - right]
    return np.ascontiguousarray(np.moveaxis(moved, 1, -1))


def draw_shifts(
    ids: NDArray[np.int32], epochs: NDArray[np.int64], *, seed: int, max_shift: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw how far each sample moves (down, right): pixels in [-shift, shift], [B]."""
    keys = hash64(seed, _KEY_DOMAIN, epochs, ids)
    width = 2 * max_shift + 1
    down, right = bounded_int(width, keys), bounded_int(width, keys << np.uint64(32))
    return down.astype(np.int64) - max_shift, right.astype(np.int64) - max_shift
