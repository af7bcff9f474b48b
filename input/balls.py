"""Balls: random discs or balls in noise, with the class of each pixel, or no noise.

The recipe of MONAI's `create_test_image_2d` and `create_test_image_3d`
(monai/data/synthetic.py): balls of random radius and place, later ones over earlier
ones, each of a class of its own brightness, under uniform noise. A sample is a function
of its id alone: the same in every run, host and thread.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.input.feature_spec import FeatureSpec, masked_image
from jaxdist.input.keyed_permutation import hash64
from jaxdist.input.sources import Arrays, SampleIds

_DOMAIN: Final = 0x42414C4C53
"""Keeps these draws apart from all others."""
_MAX_BALLS: Final = 6
_FIELD_CLASSES: Final = 5
"""Brightnesses of images whose target is the image without noise, black included."""
_NOISE: Final = 0.5
"""Brightest noise, in parts of the brightest class."""


class BallsSource:
    """Images of balls, and their masks or themselves without noise; a `Source`.

    Args:
        shape: of an image, `[..., C]`.
        classes: with the background, 0.
        samples: how many there are.
        first_id: number of the first one, so that two sources share no sample.
        target_channels: channels of the image without noise; 0 for a mask instead.

    >>> sample = BallsSource((16, 16, 1), 3, 10).get(np.array([4]))
    >>> sample["image"].shape, np.unique(sample["mask"]).tolist()
    ((1, 16, 16, 1), [0, 1])
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        samples: int,
        first_id: int = 0,
        *,
        target_channels: int = 0,
    ) -> None:
        self._shape, self._classes = shape, classes
        self._samples, self._first = samples, first_id
        self._target_channels = target_channels

    def __len__(self) -> int:
        return self._samples

    def get(self, ids: SampleIds) -> Arrays:
        """Draw samples: int [n] to `image` [n, ..., C], and what is to be said of it.

        Either `mask` [n, ...], int32, or `target` [n, ..., target_channels], the
        brightness without noise in each channel.
        """
        seeds = hash64(_DOMAIN, ids.astype(np.int64) + self._first)
        pairs = [self._draw(seed) for seed in seeds]
        images, masks = map(np.stack, zip(*pairs, strict=True))
        if not self._target_channels:
            return {"image": images, "mask": masks}
        level = self._level(masks)
        return {"image": images, "target": level.repeat(self._target_channels, -1)}

    @property
    def fingerprint(self) -> str:
        """Name the samples: all that they are made of."""
        name = f"balls {self._shape} {self._classes} {self._samples} {self._first}"
        return name + f" {self._target_channels}" * bool(self._target_channels)

    def _level(self, mask: NDArray[Any]) -> NDArray[np.float32]:
        """Return the brightness of classes [...], float32 [..., 1]."""
        return mask.astype(np.float32)[..., None] / np.float32(self._classes - 1)

    def _draw(self, seed: np.uint64) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draw one image and its mask."""
        draw = np.random.Generator(np.random.Philox(key=int(seed)))
        *sides, channels = self._shape
        mask = np.zeros(sides, np.int32)
        for _ in range(draw.integers(2, _MAX_BALLS + 1)):
            radius = draw.uniform(0.1, 0.3) * min(sides)
            center = [draw.uniform(0, side) for side in sides]
            # Sums of squares by broadcasting: no grid of all coordinates is made.
            axes = np.ogrid[tuple(slice(side) for side in sides)]
            squares = sum((x - c) ** 2 for x, c in zip(axes, center, strict=True))
            mask[squares < radius**2] = draw.integers(1, self._classes)
        noise = draw.random((*sides, channels), np.float32) * np.float32(_NOISE)
        # Noise shows between the balls alone, as in MONAI's recipe.
        return np.maximum(self._level(mask), noise), mask


def open_balls(features: FeatureSpec, samples: int) -> tuple[BallsSource, BallsSource]:
    """Return `samples` to train on, and an eighth as many others, held out.

    Raises:
        BadInput: the network reads no images with masks of two classes or more, and
            none with numbers for each pixel.
    """
    image, field = features.get("image"), features.get("target")
    if image and field and len(field.shape) == len(image.shape):
        shape, classes, channels = image.shape, _FIELD_CLASSES, field.shape[-1]
    else:
        shape, classes = masked_image(features, "balls", ", or numbers (model.loss=l2)")
        channels = 0
    # Ids of held-out samples follow those of training: none is in both.
    held_out = max(1, samples // 8)
    return (
        BallsSource(shape, classes, samples, target_channels=channels),
        BallsSource(
            shape, classes, held_out, first_id=samples, target_channels=channels
        ),
    )
