"""Volume source: samples whose arrays lie in files, read by id and by slab."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, SourceFailedError
from jaxdist.input.sources import Arrays, SampleIds, Slab
from jaxdist.input.volumes.stored_array import (
    RowReader,
    StoredArray,
    Wait,
    sampled_stamp,
)

ChannelForm = Literal["last", "first", "none", "single"]
"""Where a stored array has the channels of a sample: in its last dim, in its first,
in none (a sample gets one), or in a last dim of one, which a sample does not have.
"""
_STAMPED_FILES: Final = 16
"""Files of a key of which a few rows are in the fingerprint, evenly among all."""
_STAMPED_ROWS: Final = 64
"""The same of one array of all samples, in rows."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """The arrays of one key: one array a sample, or one of all samples."""

    arrays: Sequence[StoredArray]
    """One a sample, in order; one where `is_batched`."""
    is_batched: bool
    """Whether the first dim of the array counts samples."""
    channels: ChannelForm = "last"
    """Where channels are stored."""

    def __len__(self) -> int:
        return self.arrays[0].shape[0] if self.is_batched else len(self.arrays)

    def stored_shape(self, sample: int = 0) -> tuple[int, ...]:
        """Return the shape of a sample as it is stored."""
        return (
            self.arrays[0].shape[1:] if self.is_batched else self.arrays[sample].shape
        )

    def shape(self, sample: int = 0) -> tuple[int, ...]:
        """Return the shape of a sample as it is read."""
        stored = self.stored_shape(sample)
        forms = {
            "last": stored,
            "first": (*stored[1:], *stored[:1]),
            "none": (*stored, 1),
            "single": stored[:-1],
        }
        return forms[self.channels]

    @cached_property
    def row_reader(self) -> RowReader | None:
        """The array, where samples are rows of it and are read as they are stored."""
        (first, *_) = self.arrays
        as_stored = self.is_batched and self.channels == "last"
        return first if as_stored and isinstance(first, RowReader) else None

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that holds all files' numbers."""
        return np.result_type(*{array.dtype for array in self.arrays})

    def name(self, sample: int) -> str:
        """Name the file of a sample, and its row where it has several."""
        if self.is_batched:
            return f"{self.arrays[0].name}[{sample}]"
        return self.arrays[sample].name

    def read_into(self, sample: int, slab: Slab, out: NDArray[Any]) -> Wait:
        """Begin to read a part of a sample."""
        # A view in the order of the file: the reader writes through it, and nothing is
        # copied.
        match self.channels:
            case "first":
                slab, out = (slab[-1], *slab[:-1]), np.moveaxis(out, -1, 0)
            case "none":
                slab, out = slab[:-1], out[..., 0]
            case "single":
                slab, out = (*slab, slice(0, 1)), out[..., None]
        if self.is_batched:
            return self.arrays[0].read_into(
                (slice(sample, sample + 1), *slab), out[None]
            )
        return self.arrays[sample].read_into(slab, out)


class VolumeSource:
    """Samples whose arrays lie in files; is a `SlabSource`.

    Args:
        columns: the arrays, by key; as many samples of each.
        kind: name of the format.
    """

    classes: int | None = None
    """Labels are from 0 to below this; None: samples have no label."""

    def __init__(self, columns: Mapping[str, Column], kind: str) -> None:
        self.columns, self._kind = dict(columns), kind
        self._slabs: dict[str, Slab] = {}
        for key, column in columns.items():
            shape = column.shape()
            self._slabs[key] = tuple(map(slice, (0,) * len(shape), shape))
        self._count = _ByteCount()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def bytes_read(self) -> int:
        """Bytes of the parts that were read so far, also by sources cut from this."""
        return self._count.total

    @property
    def template(self) -> Arrays:
        """Zeros like the arrays of a sample, [1, ...]; nothing is read."""
        # Broadcast from one zero: a volume of any size takes no memory.
        return {
            key: np.broadcast_to(np.zeros((), column.dtype), (1, *column.shape()))
            for key, column in self.columns.items()
        }

    def slab(self, slabs: Mapping[str, Slab]) -> "VolumeSource":
        """Return the same samples, of which these parts are read, by key."""
        cut = copy(self)
        cut._slabs = dict(slabs)
        return cut

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...].

        Raises:
            SourceFailedError: a file cannot be read any more, or is damaged.
        """
        samples, found = ids.tolist(), dict[str, NDArray[Any]]()
        together, waits = dict[str, Wait](), list[tuple[str, int, Wait]]()
        # All reads begin before the first is waited for: a store answers them at once.
        for key, slab in self._slabs.items():
            column = self.columns[key]
            sizes = [part.stop - part.start for part in slab]
            out = found[key] = np.empty((len(samples), *sizes), column.dtype)
            reader = column.row_reader
            if reader is None or not out.size:
                waits += self._begin_each(key, samples, out)
                continue
            with self._read_errors(key, samples[0]):
                together[key] = reader.read_rows_into(samples, slab, out)
        for key, wait in together.items():
            try:
                wait()
            except Exception:  # each library has exceptions of its own
                # Again one by one, so that the sample that cannot be read is named.
                waits += self._begin_each(key, samples, found[key])
        for key, sample, wait in waits:
            with self._read_errors(key, sample):
                wait()
        self._count.add(sum(array.nbytes for array in found.values()))
        return found

    def _begin_each(
        self, key: str, samples: list[int], out: NDArray[Any]
    ) -> Iterator[tuple[str, int, Wait]]:
        """Begin to read a key of samples one by one; yield what waits for each."""
        for row, sample in enumerate(samples if out.size else ()):
            with self._read_errors(key, sample):
                wait = self.columns[key].read_into(sample, self._slabs[key], out[row])
            yield key, sample, wait

    def sample_name(self, key: str, sample: int) -> str:
        """Name the file of a key of a sample, for errors."""
        return self.columns[key].name(sample)

    @cached_property
    def labels(self) -> NDArray[Any] | None:
        """The label of each sample, where samples have one whole number as theirs."""
        column = self.columns.get("label")
        if column is None or column.shape() or column.dtype.kind not in "iu":
            return None
        # One read for all labels, not one a sample.
        if column.is_batched:
            every = np.empty(len(self), column.dtype)
            with self._read_errors("label", 0):
                column.arrays[0].read_into((slice(0, len(self)),), every)()
            return every
        return self.slab({"label": ()}).get(np.arange(len(self)))["label"]

    @cached_property
    def fingerprint(self) -> str:
        """Digest of names, shapes, dtypes, and a few rows of up to 16 files a key.

        Raises:
            SourceFailedError: a file cannot be read.
        """
        digest = hashlib.sha256(self._kind.encode())
        for key, column in sorted(self.columns.items()):
            said = f"{key} {len(column)} {column.shape()} {column.dtype} "
            # Folders are left out: the same files are the same samples elsewhere.
            names = [each.name.rpartition("/")[2] for each in column.arrays]
            digest.update((said + " ".join(names)).encode("utf-8", "surrogateescape"))
            every = -(-len(column.arrays) // _STAMPED_FILES)
            for sample, array in list(enumerate(column.arrays))[::every]:
                with self._read_errors(key, sample):
                    digest.update(
                        sampled_stamp(array, _STAMPED_ROWS)
                        if column.is_batched
                        else array.stamp()
                    )
        return digest.hexdigest()

    @contextmanager
    def _read_errors(self, key: str, sample: int) -> Iterator[None]:
        try:
            yield
        except BadInput:
            raise
        except Exception as error:  # each library has exceptions of its own
            said = str(error) or type(error).__name__
            # Messages of TensorStore end with places in its own source.
            said = said.partition(" [source locations")[0].splitlines()[0]
            slab = self._slabs.get(key, ())
            shown = ", ".join(f"{part.start}:{part.stop}" for part in slab)
            raise SourceFailedError(
                f"{key} of sample {sample} cannot be read",
                rule="every chunk of a volume can be read and decoded",
                values=f"{self.columns[key].name(sample)}, [{shown}]: {said[:300]}",
                remedy=(
                    "put the file right, from another copy",
                    "or leave the sample out, for another run: this one continues with "
                    "the same samples alone",
                ),
            ) from error


class _ByteCount:
    """A sum that threads add to; a worker process begins its own."""

    def __init__(self) -> None:
        self.total, self._lock = 0, Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.total += count

    def __reduce__(self) -> tuple[Callable[[], "_ByteCount"], tuple[()]]:
        return _ByteCount, ()
