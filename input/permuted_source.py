"""Reordered: the samples of a source under other ids."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.sources import Arrays, EpochVaryingSource, Source

SampleIds = NDArray[np.integer[Any]]


class PermutedSource:
    """A source whose i-th sample is the `ids[i]`-th of another.

    Args:
        source: the other.
        ids: one id of it for each of its samples.
    """

    def __init__(self, source: Source, ids: SampleIds) -> None:
        self._source, self._ids = source, ids

    def __len__(self) -> int:
        return len(self._ids)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...]."""
        return self._source.get(self._ids[ids])

    @property
    def fingerprint(self) -> str:
        """Digest of the source's own and of the ids."""
        digest = hashlib.sha256(self._source.fingerprint.encode())
        digest.update(np.ascontiguousarray(self._ids, np.int64).data)
        return digest.hexdigest()


class EpochVaryingPermutedSource(PermutedSource):
    """The same of a source whose samples differ between epochs."""

    def vary(self, ids: SampleIds, epochs: SampleIds, seed: int) -> Arrays:
        """Read samples as they are in their epochs."""
        assert isinstance(self._source, EpochVaryingSource)
        return self._source.vary(self._ids[ids], epochs, seed)


def sort_by_label(source: Source) -> PermutedSource:
    """Sort a source's samples by their label, those of one label as they were.

    The worst order there is for samples that stay near to where they are stored: with
    as many partitions as labels each would see one. Every sample is read once.

    Raises:
        BadInput: samples without a label.
    """
    every = source.get(np.arange(len(source)))
    label = every.get("label")
    if label is None or label.ndim != 1:
        raise BadInput(
            "these samples cannot be sorted by label",
            rule="data.order=label is for samples of one label each",
            values=f"a sample has {', '.join(every)}",
            remedy="data.order=stored",
        )
    kind = (
        EpochVaryingPermutedSource
        if isinstance(source, EpochVaryingSource)
        else PermutedSource
    )
    return kind(source, np.argsort(label, kind="stable"))
