"""Store: the samples that a host keeps for itself, in memory or on a local disk."""

import json
import os
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import FatalError
from jaxdist.input.sources import Arrays

SampleIds = NDArray[np.integer[Any]]
_NO_SLOT: Final = -1


class ArrayStore:
    """Samples of one shape, by id, in as many places as they can ever need.

    A place has a checksum of what was put into it. What is read from a disk is held
    against it, and a sample that differs is taken for gone. Several threads may use a
    store at once.

    Args:
        example: one sample, `[1, ...]` a key: the shapes and dtypes of all.
        capacity: most samples at once.
        folder: where they lie on disk; none: in memory. What an earlier store has left
            in the folder is there again, as far as it is whole.
        fingerprint: name of the samples; what is left of others is not taken for them.

    Raises:
        OSError: there is no room on the disk for so many.
    """

    def __init__(
        self,
        example: Arrays,
        capacity: int,
        folder: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self.corrupt_count = 0
        """Samples that were not what was put there."""
        self.peak_count = 0
        """Most samples that were ever held."""
        shapes = {k: (x.dtype, (capacity, *x.shape[1:])) for k, x in example.items()}
        kept = folder is not None and _open_folder(folder, shapes, fingerprint)
        self._arrays = {
            k: self._make_array(k, *shape, kept) for k, shape in shapes.items()
        }
        # Of each place the id and 1, and the checksum: one of zeros is free.
        self._index = self._make_array("notes", np.dtype(np.int64), (capacity, 2), kept)
        held = np.nonzero(self._index[:, 0])[0]
        self._slots = {int(self._index[p, 0]) - 1: int(p) for p in held}
        self._free_slots = sorted(set(range(capacity)) - set(self._slots.values()))[
            ::-1
        ]

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def free_slots(self) -> int:
        """Count the places that hold nothing."""
        with self._lock:
            return len(self._free_slots)

    def is_missing(self, ids: SampleIds) -> NDArray[np.bool_]:
        """Tell which samples are not here: bool [n]."""
        with self._lock:
            return np.array([int(i) not in self._slots for i in ids], bool)

    def put(self, ids: SampleIds, samples: Arrays) -> int:
        """Keep samples `[n, ...]`; those that are here already stay as they are.

        Returns:
            For how many there was room: all.

        Raises:
            Failed: there is no place left.
        """
        with self._lock:
            for row, sample in enumerate(ids.tolist()):
                if sample not in self._slots:
                    self._insert(sample, {k: x[row] for k, x in samples.items()})
            self.peak_count = max(self.peak_count, len(self._slots))
        return len(ids)

    def get(self, ids: SampleIds) -> tuple[Arrays, NDArray[np.bool_]]:
        """Read samples.

        Returns:
            Arrays `[n, ...]`, and which of their rows mean something: bool [n].
        """
        with self._lock:
            found = [self._slots.get(sample, _NO_SLOT) for sample in ids.tolist()]
            places = np.array(found, np.int64)
            arrays = {key: array[places] for key, array in self._arrays.items()}
            sums = self._index[places, 1]
        good = places != _NO_SLOT
        if self._folder is not None:
            good &= checksums(arrays) == sums
            self._drop_corrupt(ids[~good & (places != _NO_SLOT)])
        return arrays, good

    def checksums(self, ids: SampleIds) -> NDArray[np.int64]:
        """Return the checksums that were written with samples, 0 for others: [n]."""
        with self._lock:
            places = [self._slots.get(sample, _NO_SLOT) for sample in ids.tolist()]
            found: NDArray[np.int64] = self._index[places, 1]
            return np.where(np.array(places) == _NO_SLOT, 0, found)

    def drop(self, ids: Iterable[int]) -> None:
        """Forget samples; those that are not here are no matter."""
        with self._lock:
            for sample in ids:
                place = self._slots.pop(int(sample), None)
                if place is not None:
                    self._index[place, 0] = 0
                    self._free_slots.append(place)

    def ids(self) -> NDArray[np.int64]:
        """Return the samples that are here, sorted: int64 [n]."""
        with self._lock:
            return np.array(sorted(self._slots), np.int64)

    def _insert(self, sample: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        if not self._free_slots:
            raise FatalError(
                f"a host's store is full: {len(self._slots):,} samples, none to drop"
            )
        place = self._free_slots.pop()
        for key, array in arrays.items():
            self._arrays[key][place] = array
        one = {key: array[place : place + 1] for key, array in self._arrays.items()}
        # The id is written last: a place without one is free.
        self._index[place, 1] = checksums(one)[0]
        self._index[place, 0] = sample + 1
        self._slots[sample] = place

    def _drop_corrupt(self, ids: SampleIds) -> None:
        self.corrupt_count += len(ids)
        self.drop(ids.tolist())

    def _make_array(
        self, key: str, dtype: np.dtype[Any], shape: tuple[int, ...], kept: bool
    ) -> NDArray[Any]:
        if self._folder is None:
            return np.zeros(shape, dtype)
        path = self._folder / f"{key}.bin"
        if not kept:
            # All of it now: a disk that fills up later would kill the process.
            with path.open("wb") as file:
                size = int(np.prod(shape)) * dtype.itemsize
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
        return np.memmap(path, dtype, "r+", shape=shape)


def checksums(samples: Arrays) -> NDArray[np.int64]:
    """Return a CRC-32 of each sample over its keys, in the order of their names.

    >>> checksums({"x": np.array([b"a", b"b", b"a"])}).tolist()
    [3904355907, 1908338681, 3904355907]
    """
    rows = [np.ascontiguousarray(samples[key]) for key in sorted(samples)]
    found = [0] * len(rows[0])
    for array in rows:
        found = [zlib.crc32(sample_bytes(row), sum) for row, sum in zip(array, found)]
    return np.array(found, np.int64)


def sample_bytes(row: Any) -> bytes:
    """Return the bytes of one key of a sample: numbers, or bytes as they are."""
    return row if isinstance(row, bytes) else np.asarray(row).tobytes()


def _open_folder(folder: Path, shapes: Mapping[str, Any], of: str) -> bool:
    """Make a folder for arrays of these shapes; tell whether it has them already."""
    folder.mkdir(parents=True, exist_ok=True)
    laid = {key: [str(x) for x in shape] for key, shape in shapes.items()}
    said = json.dumps({"samples": of, "arrays": laid})
    head = folder / "store.json"
    made = all((folder / f"{key}.bin").is_file() for key in (*shapes, "notes"))
    if made and head.is_file() and head.read_text(encoding="utf-8") == said:
        return True
    head.unlink(missing_ok=True)
    for path in folder.glob("*.bin"):
        path.unlink()
    head.write_text(said, encoding="utf-8")
    return False
