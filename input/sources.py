"""Sources: random access to samples by id, a batch at a time."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput

Arrays = Mapping[str, NDArray[Any]]
SampleIds = NDArray[np.integer[Any]]
Slab = tuple[slice, ...]
"""A part of one sample's array: first and last entry of each dim, in steps of 1."""


class Source(Protocol):
    """Random access to samples; ids are 0 ... len - 1."""

    def __len__(self) -> int:
        """Count the samples."""

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...], for one `image` and `label`.

        May be called from several threads at once.
        """

    @property
    def fingerprint(self) -> str:
        """Name the samples and their order: another content, another fingerprint."""


@runtime_checkable
class EpochVaryingSource(Protocol):
    """What a source has besides, where its samples differ between epochs."""

    def vary(self, ids: SampleIds, epochs: SampleIds, seed: int) -> Arrays:
        """Read samples as they are in their epochs, a function of (seed, epoch, id).

        May be called from several threads at once.
        """


@runtime_checkable
class DecodingSource(Protocol):
    """What a source has besides, where hosts keep something else than its samples.

    Compressed images are kept as they are, and cut when they are read.
    """

    @property
    def stored(self) -> Source:
        """What is kept: the same in every epoch, under the same ids."""

    def over(self, stored: Source) -> Source:
        """Return the same samples, made of what another source stores."""


@runtime_checkable
class SlabSource(Protocol):
    """What a source has besides, where a part of a sample can be read alone.

    A process whose devices hold a part of each sample reads that part.
    """

    @property
    def template(self) -> Arrays:
        """Return arrays [1, ...] like those of a sample; their numbers mean nothing."""

    def slab(self, slabs: Mapping[str, Slab]) -> Source:
        """Return the same samples with these parts of their arrays, and no others."""


def sample_template(source: Source) -> Arrays:
    """Return arrays [1, ...] with keys, shapes and dtypes of a source's samples.

    The first sample is read, unless the source knows them without.
    """
    if isinstance(source, SlabSource):
        return source.template
    return source.get(np.zeros(1, np.int64))


class ArraySource:
    """Samples held in memory, read by one gather a batch.

    Args:
        arrays: one array a key, [N, ...], all of one length N > 0.

    Raises:
        BadInput: there is no sample, or the lengths differ.

    >>> source = ArraySource({"label": np.arange(5)})
    >>> len(source), source.get(np.array([4, 0]))["label"].tolist()
    (5, [4, 0])
    """

    def __init__(self, arrays: Arrays) -> None:
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            least = min(lengths.values(), default=0)
            longer = next((key for key, n in lengths.items() if n > least), "")
            raise BadInput(
                "these arrays are no data set",
                rule="every array has one entry a sample, and there is a sample",
                values=", ".join(f"{k}: {v}" for k, v in lengths.items()) or "no array",
                remedy=f"{longer}[:{least}], if those are the same samples"
                if longer and least
                else "arrays [N, ...] with N above zero",
            )
        self._arrays, self._length = dict(arrays), next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    @property
    def arrays(self) -> Arrays:
        """All samples: one array a key, [N, ...]."""
        return self._arrays

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...]."""
        return {name: array[ids] for name, array in self._arrays.items()}

    @property
    def template(self) -> Arrays:
        """The first sample: one array a key, [1, ...]."""
        return {name: array[:1] for name, array in self._arrays.items()}

    def slab(self, slabs: Mapping[str, Slab]) -> "ArraySource":
        """Return the same samples, cut to these parts; nothing is copied."""
        # Views: of a file that is mapped, only the pages of the parts are read.
        whole = (slice(None),)
        return ArraySource(
            {name: self._arrays[name][whole + slab] for name, slab in slabs.items()}
        )

    @cached_property
    def fingerprint(self) -> str:
        """Digest of names, types, shapes and every byte."""
        digest = hashlib.sha256()
        # In the order of the names: that of a dict is no part of the content.
        for name, array in sorted(self._arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            # The bytes of an array, without a copy of them as `bytes`.
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


class TfdsSource:
    """A split of a TFDS data set in a random-access format, read where it lies.

    Args:
        split: what `tfds.data_source` or `builder.as_data_source` returned.
        decode: turns the stacked features into the arrays of a batch.
    """

    def __init__(
        self,
        split: Sequence[Mapping[str, Any]],
        decode: Callable[[Arrays], Arrays] = dict,
    ) -> None:
        self._split: Any = split
        self._decode = decode

    def __len__(self) -> int:
        return len(self._split)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n], n > 0, to new arrays [n, ...]."""
        # One call reads a batch: TFDS's source reads records together.
        rows = self._split.__getitems__(ids.tolist())
        return self._decode(
            {name: np.stack([r[name] for r in rows]) for name in rows[0]}
        )

    @property
    def fingerprint(self) -> str:
        """Digest of name, version, split and shards; no record is read."""
        return split_fingerprint(self._split)


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
        # As one dtype: equal ids are one order, whatever holds them.
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
    # Where the labels can be read alone, a volume beside each is not.
    alone = source
    if isinstance(source, SlabSource) and "label" in source.template:
        alone = source.slab({"label": ()})
    every = alone.get(np.arange(len(source)))
    label = every.get("label")
    if label is None or label.ndim != 1:
        raise BadInput(
            "these samples cannot be sorted by label",
            rule="data.order=label is for samples of one label each",
            values=f"a sample has {', '.join(every)}",
            remedy="data.order=stored",
        )
    # Only where the other can: a batch assembler asks a source whether it varies.
    kind = (
        EpochVaryingPermutedSource
        if isinstance(source, EpochVaryingSource)
        else PermutedSource
    )
    return kind(source, np.argsort(label, kind="stable"))


def source_fingerprint(source: Source) -> str:
    """Return the fingerprint of a source that may be of one's own.

    Raises:
        BadInput: it has none, or it is no text.
    """
    found = getattr(source, "fingerprint", None)
    if not isinstance(found, str):
        raise BadInput(
            "this source has no fingerprint",
            rule="a source names its samples: another content, another text",
            values=f"{type(source).__name__}.fingerprint = {found!r}",
            remedy='self.fingerprint = "scans, version 1"',
        )
    return found


def split_fingerprint(split: Any) -> str:
    """Digest name, version, split and shards of a TFDS data source; reads no record."""
    # A prepared data set never changes: its version names its content, and the shards'
    # sizes tell two preparations apart.
    info = split.dataset_info
    shards = {k: (v.shard_lengths, v.num_bytes) for k, v in info.splits.items()}
    text = f"{info.full_name} {split.split} {sorted(shards.items())}"
    return hashlib.sha256(text.encode()).hexdigest()


def load_into_memory(source: Source) -> ArraySource:
    """Decode every sample of a small source once: a batch is then one gather."""
    return ArraySource(source.get(np.arange(len(source))))
