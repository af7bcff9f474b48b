"""Recipes: what is in the batch of a step, for the rows one host needs.

Pure functions of (step, rows) on NumPy arrays; no device is touched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.input.augment import shift_images
from jaxdist.input.order import SampleOrder
from jaxdist.input.sources import Arrays, EpochVaryingSource, Source

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
    max_shift: int = 0
    """Largest random shift of an image, pixels; an `EpochVaryingSource` has its own."""
    dtypes: Dtypes = field(default_factory=lambda: IMAGE_DTYPES)
    """What is read."""

    def __call__(self, step: int, rows: Rows) -> Batch:
        """Make the keys that are read and `id` of these rows of a step's batch."""
        ids, epochs = self.order.ids(step, rows), self.order.epochs(step, rows)
        if isinstance(self.source, EpochVaryingSource):
            seen = self.source.vary(ids, epochs, self.order.seed)
            return _cast(seen, ids, self.dtypes)
        batch = _cast(self.source.get(ids), ids, self.dtypes)
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
        real = ids < len(self.source)
        ids = np.minimum(ids, len(self.source) - 1)
        batch = _cast(self.source.get(ids), ids, self.dtypes)
        batch["id"] = np.where(real, batch["id"], np.int32(-1))
        return {**batch, "weight": real.astype(np.float32)}


def _cast(samples: Arrays, ids: NDArray[np.integer[Any]], dtypes: Dtypes) -> Batch:
    """Give samples the types every batch has, and their ids."""
    batch = {key: np.asarray(samples[key], dtype) for key, dtype in dtypes.items()}
    return {**batch, "id": ids.astype(np.int32)}
