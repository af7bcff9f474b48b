"""Batch assembly: what is in the batch of a step, for the rows one host needs.

Pure functions of (step, rows) on NumPy arrays; no device is touched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from jaxdist.input.keyed_permutation import bounded_int, hash64
from jaxdist.input.order import SampleOrder
from jaxdist.input.sample_validation import SampleSpec, cast_checked
from jaxdist.input.sources import Arrays, EpochVaryingSource, SampleIds, Source

Rows = NDArray[np.int64]
"""Rows of the global batch, sorted."""
Batch = dict[str, NDArray[Any]]
BatchAssembler = Callable[[int, Rows], Batch]
"""(step, rows of the global batch) to the arrays of those rows."""
Dtypes = Mapping[str, str]
"""Keys that are read of a source, each with the dtype it has in a batch."""

IMAGE_DTYPES: Final[Dtypes] = MappingProxyType({"image": "float32", "label": "int32"})
"""What is read of images with a label each."""
_KEY_DOMAIN: Final = 0x5348494654
"""Keeps the draws of shifts apart from those of the order, which have the same seed."""


@dataclass(frozen=True, kw_only=True)
class TrainBatchAssembler:
    """Training batches: shuffled, augmented, endless."""

    source: Source
    """Where the samples are."""
    order: SampleOrder
    """Which samples a step takes."""
    max_shift: int = 0
    """Largest random shift of an image, pixels; an `EpochVaryingSource` has its own."""
    dtypes: Dtypes = field(default_factory=lambda: IMAGE_DTYPES)
    """What is read."""
    checks: SampleSpec = field(default_factory=SampleSpec)
    """What samples may hold."""

    def __call__(self, step: int, rows: Rows) -> Batch:
        """Make the keys that are read and `id` of these rows of a step's batch."""
        ids, epochs = self.order.ids(step, rows), self.order.epochs(step, rows)
        # Such a source augments by itself: its crops take the place of shifts.
        if isinstance(self.source, EpochVaryingSource):
            seen = self.source.vary(ids, epochs, self.order.seed)
            return _cast(seen, ids, self.dtypes, self.checks, step)
        batch = _cast(self.source.get(ids), ids, self.dtypes, self.checks, step)
        if "image" in batch:
            batch["image"] = shift_images(
                batch["image"],
                ids,
                epochs,
                seed=self.order.seed,
                max_shift=self.max_shift,
            )
        return batch


@dataclass(frozen=True, kw_only=True)
class EvalBatchAssembler:
    """Evaluation batches: every sample once, in order; the last one is filled up."""

    source: Source
    """Where the samples are."""
    batch: int
    """Samples a step, over all devices together."""
    dtypes: Dtypes = field(default_factory=lambda: IMAGE_DTYPES)
    """What is read."""
    checks: SampleSpec = field(default_factory=SampleSpec)
    """What samples may hold."""

    @property
    def steps(self) -> int:
        """Batches until every sample was read."""
        return -(-len(self.source) // self.batch)

    def __call__(self, step: int, rows: Rows) -> Batch:
        """Make what is read, `id` and `weight` of these rows of a step's batch.

        Beyond the last sample `weight` is 0, `id` is -1, and what is read repeats the
        last sample, so that no network sees anything unusual.
        """
        ids = step * self.batch + rows
        # Every step has a full batch: another shape would be compiled again, and
        # devices of other hosts would wait for theirs.
        real = ids < len(self.source)
        ids = np.minimum(ids, len(self.source) - 1)
        batch = _cast(self.source.get(ids), ids, self.dtypes, self.checks, step)
        batch["id"] = np.where(real, batch["id"], np.int32(-1))
        return {**batch, "weight": real.astype(np.float32)}


def _cast(
    samples: Arrays, ids: SampleIds, dtypes: Dtypes, checks: SampleSpec, step: int
) -> Batch:
    """Give samples the types every batch has, and their ids."""
    floats = checks.checks_floats(step)
    batch = {
        key: cast_checked(key, samples[key], dtype, ids, checks, floats)
        for key, dtype in dtypes.items()
    }
    return {**batch, "id": ids.astype(np.int32)}


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
    # One gather cuts every image's window out of a frame of zeros around it.
    framed = np.zeros(
        (samples, height + 2 * max_shift, width + 2 * max_shift, channels), images.dtype
    )
    framed[:, max_shift:-max_shift, max_shift:-max_shift] = images
    # A view: no window is copied before it is chosen.
    windows = sliding_window_view(framed, (height, width), axis=(1, 2))
    # A window that starts further up shows the image further down.
    moved = windows[np.arange(samples), max_shift - down, max_shift - right]
    # The view has the channels before rows and columns; devices take contiguous arrays.
    return np.ascontiguousarray(np.moveaxis(moved, 1, -1))


def draw_shifts(
    ids: NDArray[np.int32], epochs: NDArray[np.int64], *, seed: int, max_shift: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw how far each sample moves (down, right): pixels in [-shift, shift], [B]."""
    keys = hash64(seed, _KEY_DOMAIN, epochs, ids)
    width = 2 * max_shift + 1
    # bounded_int uses the upper half of a hash: one hash gives two numbers.
    down, right = bounded_int(width, keys), bounded_int(width, keys << np.uint64(32))
    return down.astype(np.int64) - max_shift, right.astype(np.int64) - max_shift
