"""Batch assembly: what is in the batch of a step, for the rows one host needs.

Pure functions of (step, rows) on NumPy arrays; no device is touched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.input.augment import augment_batch, center_images
from jaxdist.input.augmentation import Augmentation
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


@dataclass(frozen=True, kw_only=True)
class TrainBatchAssembler:
    """Training batches: shuffled, augmented, endless."""

    source: Source
    """Where the samples are."""
    order: SampleOrder
    """Which samples a step takes."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """How images, and what lies on their pixels, are varied."""
    image_start: tuple[int, ...] = ()
    """Where what is read of an image begins in it; empty: it is read whole."""
    whole_image: tuple[int, ...] = ()
    """Shape of an image, where a part of it is read."""
    dtypes: Dtypes = field(default_factory=lambda: IMAGE_DTYPES)
    """What is read."""
    checks: SampleSpec = field(default_factory=SampleSpec)
    """What samples may hold."""

    def __call__(self, step: int, rows: Rows) -> Batch:
        """Make the keys that are read and `id` of these rows of a step's batch."""
        ids, epochs = self.order.ids(step, rows), self.order.epochs(step, rows)
        seed = self.order.seed
        # Such a source shows another part of a photograph in each epoch.
        if isinstance(self.source, EpochVaryingSource):
            samples = self.source.vary(ids, epochs, seed)
        else:
            samples = self.source.get(ids)
        return augment_batch(
            self.augmentation,
            _cast(samples, ids, self.dtypes, self.checks, step),
            ids,
            epochs,
            seed=seed,
            ignored=self.checks.ignore_values,
            start=self.image_start,
            whole=self.whole_image,
        )


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
    crop: Augmentation = field(default_factory=Augmentation)
    """Of which size the middle of an image is seen, if not the whole."""

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
        batch = center_images(self.crop, batch)
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
