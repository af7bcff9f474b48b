"""Vessels: trees of tubes that branch by Murray's law, in noise, with their masks.

A vessel of radius r carries a flow of r^3 at the least work (Murray 1926,
doi:10.1073/pnas.12.3.207). So a branching keeps

    r0^3 = r1^3 + r2^3

and its branches leave the old direction at the angles of least work (Murray 1926,
doi:10.1085/jgp.9.6.835)

    cos a1 = (r0^4 + r1^4 - r2^4) / (2 r0^2 r1^2)      cos a2 with 1 and 2 exchanged

Brightness of vessels and of what is between them is drawn for each image, under
Gaussian noise, in the manner of the synthetic volumes of Tetteh et al. 2020,
doi:10.3389/fnins.2020.592352. A sample is a function of its id alone: the same in every
run, host and thread.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.input.feature_spec import FeatureSpec, masked_image
from jaxdist.input.keyed_permutation import hash64
from jaxdist.input.sources import Arrays, SampleIds

_DOMAIN: Final = 0x56455353454C
"""Keeps these draws apart from all others."""
_TREES: Final = 2
"""Trees of an image."""
_ROOT: Final = (0.06, 0.09)
"""Radius of a tree's first vessel, in parts of the shortest side."""
_LEAST_RADIUS: Final = 1.25
"""A vessel that would be thinner is not drawn, pixels: no image would show it."""
_LENGTH: Final = (6.0, 10.0)
"""Length of a vessel between two branchings, in radii."""
_FLOW: Final = (0.25, 0.75)
"""Part of the flow that the first of two branches takes."""
_MAX_VESSELS: Final = 400
"""Vessels of a tree at most; where it ends they are thin anyway."""
_BACKGROUND, _CONTRAST, _NOISE = (0.1, 0.4), (0.3, 0.6), (0.05, 0.15)
"""Brightness between vessels, how much brighter they are, and deviation of the noise.
"""


class VesselsSource:
    """Images of vessels and their masks, 1 in a vessel; a `Source`.

    Args:
        shape: of an image, `[..., C]`, of 2 or 3 dims beside channels.
        samples: how many there are.
        first_id: number of the first one, so that two sources share no sample.

    >>> sample = VesselsSource((16, 16, 16, 1), 10).get(np.array([4]))
    >>> sample["image"].shape, np.unique(sample["mask"]).tolist()
    ((1, 16, 16, 16, 1), [0, 1])
    """

    classes = 2

    def __init__(self, shape: tuple[int, ...], samples: int, first_id: int = 0) -> None:
        self._shape, self._samples, self._first = shape, samples, first_id

    def __len__(self) -> int:
        return self._samples

    def get(self, ids: SampleIds) -> Arrays:
        """Draw samples: int [n] to `image` [n, ..., C] and `mask` [n, ...], int32."""
        seeds = hash64(_DOMAIN, ids.astype(np.int64) + self._first)
        images, masks = zip(*map(self._draw, seeds), strict=True)
        return {"image": np.stack(images), "mask": np.stack(masks)}

    @property
    def fingerprint(self) -> str:
        """Name the samples: all that they are made of."""
        return f"vessels {self._shape} {self._samples} {self._first}"

    def _draw(self, seed: np.uint64) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draw one image and its mask."""
        draw = np.random.Generator(np.random.Philox(key=int(seed)))
        mask = np.zeros(self._shape[:-1], np.int32)
        for _ in range(_TREES):
            _draw_tree(draw, mask)
        dark, contrast, deviation = (
            draw.uniform(*bounds) for bounds in (_BACKGROUND, _CONTRAST, _NOISE)
        )
        noise = draw.standard_normal(self._shape, np.float32) * np.float32(deviation)
        level = np.where(mask, dark + contrast, dark).astype(np.float32)
        return level[..., None] + noise, mask


def _draw_tree(draw: np.random.Generator, mask: NDArray[np.int32]) -> None:
    """Draw a tree that grows into an image from one of its faces."""
    sides = np.array(mask.shape, float)
    radius = draw.uniform(*_ROOT) * sides.min()
    begin = draw.uniform(0.25, 0.75, mask.ndim) * sides
    face = draw.integers(mask.ndim)
    begin[face] = 0.0
    direction = draw.normal(0, 0.3, mask.ndim)
    direction[face] = 1.0
    if draw.random() < 0.5:  # from the face across
        begin[face], direction[face] = sides[face], -1.0
    growing = [(begin, direction / np.linalg.norm(direction), radius)]
    for _ in range(_MAX_VESSELS):
        if not growing:
            return
        begin, direction, radius = growing.pop(0)
        end = begin + direction * radius * draw.uniform(*_LENGTH)
        _fill_tube(mask, begin, end, radius)
        # One that has left the image does not come back.
        if ((end < 0) | (end > sides)).any():
            continue
        flow = draw.uniform(*_FLOW)
        # The flow goes with the cube of the radius.
        radii = radius * flow ** (1 / 3), radius * (1 - flow) ** (1 / 3)
        # Both branches lie in one plane with the vessel, to both sides of it.
        beside = draw.normal(size=mask.ndim)
        beside -= beside.dot(direction) * direction
        beside /= np.linalg.norm(beside)
        for own, other, side in ((*radii, 1), (*radii[::-1], -1)):
            powers = radius**4 + own**4 - other**4
            cosine = min(powers / (2 * radius**2 * own**2), 1.0)
            sine = side * np.sqrt(1 - cosine**2)
            if own >= _LEAST_RADIUS:
                growing.append((end, cosine * direction + sine * beside, own))


def _fill_tube(
    mask: NDArray[np.int32],
    begin: NDArray[np.float64],
    end: NDArray[np.float64],
    radius: float,
) -> None:
    """Set pixels to 1 that are nearer than a radius to the line between two points."""
    low = np.maximum(np.floor(np.minimum(begin, end) - radius), 0).astype(int)
    high = np.minimum(np.ceil(np.maximum(begin, end) + radius) + 1, mask.shape)
    part = tuple(slice(int(a), int(b)) for a, b in zip(low, high, strict=True))
    # Coordinates by broadcasting, of the box around the tube alone.
    along = end - begin
    axes = [x - first for x, first in zip(np.ogrid[part], begin, strict=True)]
    if not all(x.size for x in axes):
        return
    # Where the line is nearest to each pixel, in parts of its length.
    share = sum(x * a for x, a in zip(axes, along, strict=True)) / along.dot(along)
    share = np.clip(share, 0, 1)
    squares = sum((x - share * a) ** 2 for x, a in zip(axes, along, strict=True))
    mask[part][squares < radius**2] = 1


def open_vessels(
    features: FeatureSpec, samples: int
) -> tuple[VesselsSource, VesselsSource]:
    """Return `samples` to train on, and an eighth as many others, held out.

    Raises:
        BadInput: the network reads no images with masks of two classes or more.
    """
    shape, _ = masked_image(features, "vessels")
    # Ids of held-out samples follow those of training: none is in both.
    held_out = max(1, samples // 8)
    return (
        VesselsSource(shape, samples),
        VesselsSource(shape, held_out, first_id=samples),
    )
