"""Crops: which part of a photograph a network sees, a function of (seed, epoch, id).

In training a random part of random shape, flipped half of the time (Szegedy et al.
2014, arXiv:1409.4842, section 6: 8 to 100 % of the area, sides of 3:4 to 4:3); in
evaluation the square in the middle, 7/8 of the shorter side.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jaxdist.input.keyed_permutation import hash64

_KEY_DOMAIN: Final = 0x43524F50
"""Keeps these draws apart from those of the order, which have the same seed."""
_AREA_RANGE: Final = (0.08, 1.0)
_MAX_LOG_ASPECT: Final = math.log(4 / 3)
"""Largest logarithm of width by height, and of height by width."""
_MAX_ATTEMPTS: Final = 10
_CENTER_FRACTION: Final = 7 / 8
"""224 of 256 rows, as in Krizhevsky et al. 2012."""


@dataclass(frozen=True, kw_only=True)
class Crop:
    """A part of an image, in its own pixels; parts of a pixel are allowed."""

    left: float
    """First column."""
    top: float
    """First row."""
    width: float
    """Columns."""
    height: float
    """Rows."""
    flip: bool = False
    """Whether left and right change places."""

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        return (self.left, self.top, self.left + self.width, self.top + self.height)


def center_crop(width: int, height: int) -> Crop:
    """Return the square in the middle of an image.

    >>> center_crop(500, 400).box
    (75.0, 25.0, 425.0, 375.0)
    """
    return _center_square(width, height, _CENTER_FRACTION * min(width, height))


def random_resized_crop(
    width: int, height: int, *, seed: int, epoch: int, sample: int
) -> Crop:
    """Draw the part that a sample shows in an epoch.

    Args:
        width: columns of the image.
        height: rows of the image.
        seed: of the run.
        epoch: from 0.
        sample: its id.

    >>> first = random_resized_crop(500, 400, seed=0, epoch=0, sample=3)
    >>> first == random_resized_crop(500, 400, seed=0, epoch=0, sample=3)
    True
    """
    # Philox is counter-based: a generator of its own for each image costs little, and
    # its numbers depend on the key alone.
    draw = np.random.Generator(
        np.random.Philox(key=int(hash64(seed, _KEY_DOMAIN, epoch, sample)[0]))
    )
    # Drawn first and always: the number of attempts must not change it.
    flip = bool(draw.random() < 0.5)
    for _ in range(_MAX_ATTEMPTS):
        # The area evenly, the ratio of the sides evenly on a logarithmic scale: tall
        # parts are as frequent as wide ones.
        part = width * height * draw.uniform(*_AREA_RANGE)
        ratio = math.exp(draw.uniform(-_MAX_LOG_ASPECT, _MAX_LOG_ASPECT))
        across, down = math.sqrt(part * ratio), math.sqrt(part / ratio)
        if across <= width and down <= height:
            return Crop(
                left=(width - across) * draw.random(),
                top=(height - down) * draw.random(),
                width=across,
                height=down,
                flip=flip,
            )
    # The image is long and thin: no such shape fits.
    return replace(_center_square(width, height, min(width, height)), flip=flip)


def _center_square(width: int, height: int, side: float) -> Crop:
    """Return a square in the middle."""
    left, top = (width - side) / 2, (height - side) / 2
    return Crop(left=left, top=top, width=side, height=side)
