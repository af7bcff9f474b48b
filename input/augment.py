"""Augmented batches: crops, rotations, flips, moves and noise, from keyed numbers.

What happens to a sample is a function of (seed, epoch, sample id), and its noise of the
position, too: neither batch, host, process nor thread changes it, and a run that goes
on sees what it would have seen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.input.augmentation import Augmentation, pixel_keys
from jaxdist.input.keyed_permutation import UInt64Array, bounded_int, hash64
from jaxdist.input.sources import SampleIds

# Keys of the draws of each word, apart from those of the order, which have the same
# seed. Frozen: another key is another sample for every run that is resumed.
_SHIFT_DOMAIN: Final = 0x5348494654
_CROP_DOMAIN: Final = 0x57494E444F57
_ROTATE_DOMAIN: Final = 0x524F54415445
_FLIP_DOMAIN: Final = 0x464C4950
_NOISE_DOMAIN: Final = 0x4E4F495345
_UPPER: Final = np.uint64(32)
_CHUNK: Final = 1 << 16
"""Random numbers that are made at once: they fit into a core's cache."""


def augment_batch(
    augmentation: Augmentation,
    batch: Mapping[str, NDArray[Any]],
    ids: SampleIds,
    epochs: SampleIds,
    *,
    seed: int,
    ignored: Mapping[str, float],
    start: tuple[int, ...] = (),
    whole: tuple[int, ...] = (),
) -> dict[str, NDArray[Any]]:
    """Vary the images of a batch, and with them what lies on their pixels.

    Args:
        augmentation: what is asked for.
        batch: `image` [B, ..., C] and other arrays, [B, ...] each.
        ids: sample ids, [B].
        epochs: epoch of each sample, [B].
        seed: of the run.
        ignored: numbers that count for nothing, by key; they move in from outside.
        start: where `image` begins in an image of which a part was read.
        whole: shape of such an image.

    Returns:
        New arrays where anything changes, contiguous.
    """
    found = dict(batch)
    if "image" not in batch or augmentation == Augmentation():
        return found
    shapes = {key: array.shape[1:] for key, array in batch.items()}
    if augmentation.moves:
        draws = _draw_moves(augmentation, shapes["image"], ids, epochs, seed)
        sides = augmentation.sides(shapes["image"])
        for key in pixel_keys(shapes):
            array, rest = batch[key], shapes[key][len(sides) :]
            fill = ignored.get(key, 0) if key != "image" else 0
            # Pixels that are seen are written over what counts for nothing.
            moved = np.full((len(array), *sides, *rest), fill, array.dtype)
            for sample, target, each in zip(array, moved, draws, strict=True):
                each.copy(sample, target)
            found[key] = moved
    if augmentation.noise:
        keys = hash64(seed, _NOISE_DOMAIN, epochs, ids)
        images = found["image"]
        # By the position in the whole image: a part that is read alone has its own
        # noise.
        begins = start or (0,) * (images.ndim - 1)
        places = _positions(begins, images.shape[1:], whole or images.shape[1:])
        found["image"] = images.copy()
        for image, key in zip(found["image"], keys, strict=True):
            noise = augmentation.noise * _normal(key, places)
            np.add(image, noise.reshape(image.shape), out=image)
    return found


def center_images(
    crop: Augmentation, batch: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Cut the middle out of images, and of what lies on their pixels.

    Args:
        crop: says of which size; nothing else of it counts.
        batch: `image` [B, ..., C] and other arrays, [B, ...] each.
    """
    if not crop.crop:
        return batch
    shapes = {key: array.shape[1:] for key, array in batch.items()}
    sides = crop.sides(shapes["image"])
    starts = [(whole - n) // 2 for whole, n in zip(shapes["image"], sides)]
    part = tuple(slice(first, first + n) for first, n in zip(starts, sides))
    middle = {key: batch[key][:, *part] for key in pixel_keys(shapes)}
    return {**batch, **middle}


@dataclass(kw_only=True)
class _Move:
    """Where the pixels of one sample go.

    Pixel `o` along dim i is that of place `sign[i] * o + offset[i]` along dim
    `source[i]` of the sample.
    """

    source: list[int]
    sign: list[int]
    offset: list[int]
    sides: list[int]
    wraps: bool
    """Whether places outside of the sample count on from its other side."""

    def mirror(self, dim: int) -> None:
        """Turn a dim around."""
        # Pixel o is read where sides - 1 - o was.
        self.offset[dim] += self.sign[dim] * (self.sides[dim] - 1)
        self.sign[dim] *= -1

    def exchange(self, dims: tuple[int, ...]) -> None:
        """Let dim i be what `dims[i]` was."""
        for name in ("source", "sign", "offset", "sides"):
            old = getattr(self, name)
            setattr(self, name, [old[i] for i in dims])

    def copy(self, sample: NDArray[Any], target: NDArray[Any]) -> None:
        """Copy the pixels that are seen; others of the target stay as they are."""
        rank = len(self.source)
        seen = sample.transpose(*self.source, *range(rank, sample.ndim))
        parts = [list(self._segments(i, seen.shape[i])) for i in range(rank)]
        for part in product(*parts):
            there, here = zip(*part, strict=True)
            target[there] = seen[here]

    def _segments(self, dim: int, rows: int) -> Iterator[tuple[slice, slice]]:
        """Yield rows of the target along a dim, each with those of the sample."""
        sign, size = self.sign[dim], self.sides[dim]
        offset = self.offset[dim] % rows if self.wraps else self.offset[dim]
        # Places outside count on from the other side, as if copies of the sample lay
        # beside it.
        for first in (offset - rows, offset, offset + rows) if self.wraps else [offset]:
            # Rows o of the target whose place first + sign o is in the sample.
            begin = max(0, -first if sign > 0 else first - rows + 1)
            end = min(size, rows - first if sign > 0 else first + 1)
            if begin < end:
                low = min(first + sign * begin, first + sign * (end - 1))
                here = slice(low, low + end - begin)
                if sign < 0:  # a slice that counts down to row 0 has no end
                    here = slice(here.stop - 1, low - 1 if low else None, -1)
                yield slice(begin, end), here


def _draw_moves(
    augmentation: Augmentation,
    image: tuple[int, ...],
    ids: SampleIds,
    epochs: SampleIds,
    seed: int,
) -> list[_Move]:
    """Draw what happens to the pixels of each sample."""
    sides, rank = augmentation.sides(image), len(image) - 1
    far = augmentation.shift or augmentation.roll

    def draw(domain: int, bounds: list[int]) -> list[list[int]]:
        """Draw for each sample a number below each bound."""
        found = []
        for n, bound in enumerate(bounds):
            # Two numbers a hash: its halves.
            part = (n // 2,) if n > 1 else ()
            hashes = hash64(seed, domain, epochs, ids, *part)
            found.append(bounded_int(bound, hashes << _UPPER if n % 2 else hashes))
        return np.stack(found, -1).astype(np.int64).tolist()

    moves = [
        _Move(
            source=list(range(rank)),
            sign=[1] * rank,
            offset=[0] * rank,
            sides=list(sides),
            wraps=augmentation.roll > 0,
        )
        for _ in ids
    ]
    # In this order, whichever was typed first: cut, and then turned, so that only the
    # sides of the crop must be equal.
    if augmentation.crop:
        bounds = [whole - side + 1 for whole, side in zip(image, sides)]
        for move, offset in zip(moves, draw(_CROP_DOMAIN, bounds)):
            move.offset = offset
    if turned := augmentation.dims("rotate90", rank):
        turns = _rotations(rank, turned)
        for move, (n,) in zip(moves, draw(_ROTATE_DOMAIN, [len(turns)])):
            dims, mirrored = turns[n]
            move.exchange(dims)
            for dim in mirrored:
                move.mirror(dim)
    if flipped := augmentation.dims("flip", rank):
        for move, coins in zip(moves, draw(_FLIP_DOMAIN, [2] * len(flipped))):
            for dim, coin in zip(flipped, coins):
                if coin:
                    move.mirror(dim)
    if far:
        for move, steps in zip(moves, draw(_SHIFT_DOMAIN, [2 * far + 1] * rank)):
            for dim, step in enumerate(steps):
                move.offset[dim] -= move.sign[dim] * (step - far)
    return moves


def _rotations(
    rank: int, turned: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the rotations by right angles: 4 in a plane, 24 in space.

    Each is a permutation of the dims, and dims that are then mirrored: of those the
    ones whose determinant is 1.
    """
    found = []
    for order in permutations(turned):
        dims = list(range(rank))
        for dim, source in zip(turned, order):
            dims[dim] = source
        # The parity of the inversions is the sign of the permutation.
        swaps = sum(a > b for i, a in enumerate(order) for b in order[i + 1 :])
        for signs in product((False, True), repeat=len(turned)):
            if (swaps + sum(signs)) % 2 == 0:
                mirrored = tuple(d for d, sign in zip(turned, signs) if sign)
                found.append((tuple(dims), mirrored))
    return found


def _positions(
    start: tuple[int, ...], shape: tuple[int, ...], whole: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return the flat positions of a part in the whole, int64, in the part's order."""
    found = np.zeros(1, np.int64)
    for first, size, rows in zip(start, shape, whole, strict=True):
        found = (found[:, None] * rows + np.arange(first, first + size)).ravel()
    return found


def _normal(key: np.uint64, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return normal numbers of positions, float32.

    Box and Muller 1958, doi:10.1214/aoms/1177706645: two numbers of two that are even
    between 0 and 1, the halves of a hash. Cosine and sine are those of neighbours.
    """
    found = np.empty(places.size, np.float32)
    for first in range(0, places.size, _CHUNK):
        part = places[first : first + _CHUNK]
        # Positions 2 k and 2 k + 1 share a hash.
        hashes: UInt64Array = hash64(np.array([key]), part >> 1)
        # Never 0: its logarithm is taken.
        radius = np.sqrt(-2 * np.log(((hashes >> _UPPER) + 0.5) / 2**32))
        angle = (hashes & np.uint64(2**32 - 1)) * (2 * np.pi / 2**32)
        # cos(x - pi/2) is sin x: odd positions have the sine.
        angle -= (part & 1) * (np.pi / 2)
        found[first : first + _CHUNK] = radius * np.cos(angle)
    return found
