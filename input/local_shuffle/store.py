"""Sample stores: the samples that a host keeps, in memory or on a local disk.

`ArrayStore` lays samples of one shape out in arrays; on disk these take all their room
at once, so that a disk which others fill up later is no matter. `ByteStore` holds
samples of any size, such as compressed images, on disk in a file each: ID.bin, its
checksum, then the bytes of each key with their length before them. What a full disk has
no room for, and what was damaged, is read where the data set is.
"""

import errno
import os
import struct
import threading
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, FatalError, JaxdistWarning
from jaxdist.core.files import write_atomic
from jaxdist.core.text.formatting import format_count
from jaxdist.core.validation import json_text
from jaxdist.input.sources import Arrays, SampleIds, Source

SampleBytes = dict[str, bytes]
_NO_SLOT: Final = -1
_DISK_FULL_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What a system says where there is no room."""
_INT64: Final = struct.Struct("<q")
_USABLE_FRACTION: Final = 0.9
"""Part of what is free that a smaller store takes: blocks are not filled to the end."""
_INDEX_ENTRY_BYTES: Final = 16
_DESCRIPTION: Final = "store.json"
"""File that says what a folder holds."""


class ArrayStore:
    """Samples of one shape, by id, in a fixed number of slots.

    A slot has a checksum of what was written to it. What is read from a disk is checked
    against it, and a sample that differs counts as missing. Several threads may use a
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
        shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            key: (x.dtype, (capacity, *x.shape[1:])) for key, x in example.items()
        }
        laid = {key: [str(x) for x in shape] for key, shape in shapes.items()}
        contents = {"samples": fingerprint, "arrays": laid}
        # The index has a row a slot: the sample's id + 1, and its checksum. Arrays
        # begin as zeros, so 0 marks a free slot.
        # A sample's own key may be called notes: the index then has another name.
        index = "notes"
        while index in shapes:
            index += "_"
        shapes[index] = np.dtype(np.int64), (capacity, 2)
        reuse = folder is not None and _open_folder(folder, contents, shapes)
        self._arrays: dict[str, NDArray[Any]] = {}
        for key, (dtype, shape) in shapes.items():
            if folder is None:
                self._arrays[key] = np.zeros(shape, dtype)
                continue
            path = folder / f"{key}.bin"
            if not reuse:
                # All of it now: a write to a mapped page for which the disk has no room
                # left would kill the process with SIGBUS.
                with path.open("wb") as file:
                    size = int(np.prod(shape)) * dtype.itemsize
                    # At least a byte: an empty file cannot be mapped.
                    os.posix_fallocate(file.fileno(), 0, max(size, 1))
            self._arrays[key] = np.memmap(path, dtype, "r+", shape=shape)
        if folder is not None and not reuse:
            _describe_folder(folder, contents)
        self._index = self._arrays.pop(index)
        held = np.nonzero(self._index[:, 0])[0]
        self._slots = {int(self._index[p, 0]) - 1: int(p) for p in held}
        # Taken from the end: the first slots first.
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
            FatalError: there is no place left.
        """
        with self._lock:
            for row, sample in enumerate(ids.tolist()):
                if sample in self._slots:
                    continue
                if not self._free_slots:
                    raise FatalError(
                        f"a host's store is full: {len(self._slots):,} samples, "
                        "none to drop"
                    )
                slot = self._free_slots.pop()
                for key, array in samples.items():
                    self._arrays[key][slot] = array[row]
                # The checksum is of what the store holds, in the dtypes of its arrays.
                # The id is written last: a process that dies before leaves a free slot.
                one = {key: x[slot : slot + 1] for key, x in self._arrays.items()}
                self._index[slot, 1] = checksums(one)[0]
                self._index[slot, 0] = sample + 1
                self._slots[sample] = slot
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
            # Slot -1 reads the last row, which `good` then rules out.
            arrays = {key: array[places] for key, array in self._arrays.items()}
            sums = self._index[places, 1]
        good = places != _NO_SLOT
        # Memory is trusted; a disk may have been damaged since the sample was written.
        if self._folder is not None:
            good &= checksums(arrays) == sums
            corrupt = ids[~good & (places != _NO_SLOT)]
            self.corrupt_count += len(corrupt)
            self.drop(corrupt.tolist())
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
                    # The bytes stay where they are until the slot is used again.
                    self._index[place, 0] = 0
                    self._free_slots.append(place)

    def ids(self) -> NDArray[np.int64]:
        """Return the samples that are here, sorted: int64 [n]."""
        with self._lock:
            return np.array(sorted(self._slots), np.int64)


class ByteStore:
    """Samples of which some keys are bytes of any length; used as an `ArrayStore` is.

    Args:
        example: one sample, `[1, ...]` a key; bytes have the dtype of objects.
        capacity: most samples at once.
        folder: where they lie on disk; none: in memory. What an earlier store of the
            same samples has left there is there again.
        fingerprint: name of the samples.
    """

    def __init__(
        self,
        example: Arrays,
        capacity: int,
        folder: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        self._specs = {
            key: (x.dtype, x.shape[1:]) for key, x in sorted(example.items())
        }
        self._capacity, self._folder, self._lock = capacity, folder, threading.Lock()
        self.corrupt_count = 0
        """Samples that were not what was put there."""
        self.peak_count = 0
        """Most samples that were ever held."""
        self._is_full = False
        self._checksums: dict[int, int] = {}
        self._samples: dict[int, SampleBytes] = {}
        if folder is not None:
            kinds = {k: [str(dtype), list(x)] for k, (dtype, x) in self._specs.items()}
            contents = {"samples": fingerprint, "bytes": kinds}
            if not _open_folder(folder, contents):
                _describe_folder(folder, contents)
            else:
                # Checksums are read with the samples: 0 until then.
                stems = [path.stem for path in folder.glob("*.bin")]
                self._checksums = {int(x): 0 for x in stems if x.isdecimal()}

    def __len__(self) -> int:
        return len(self._checksums)

    @property
    def free_slots(self) -> int:
        """Count the places that hold nothing."""
        return self._capacity - len(self._checksums)

    def is_missing(self, ids: SampleIds) -> NDArray[np.bool_]:
        """Tell which samples are not here: bool [n]."""
        with self._lock:
            return np.array([int(i) not in self._checksums for i in ids], bool)

    def put(self, ids: SampleIds, samples: Arrays) -> int:
        """Keep samples `[n, ...]`; return for how many there was room."""
        # Outside the lock: it takes longer than the rest.
        sums = checksums(samples).tolist() if len(ids) else []
        kept = 0
        with self._lock:
            for row, (sample, sum) in enumerate(zip(ids.tolist(), sums)):
                if sample not in self._checksums:
                    one = {key: sample_bytes(samples[key][row]) for key in self._specs}
                    if self._folder is None:
                        self._samples[sample] = one
                    elif not self._write_file(self._path(sample), sum, one):
                        continue
                    self._checksums[sample] = sum
                kept += 1
            self.peak_count = max(self.peak_count, len(self._checksums))
        return kept

    def get(self, ids: SampleIds) -> tuple[Arrays, NDArray[np.bool_]]:
        """Read samples: arrays `[n, ...]`, and which of their rows mean something."""
        read = [self._read(sample) for sample in ids.tolist()]
        arrays = {
            key: stack_bytes([one[key] if one else None for one in read], *kind)
            for key, kind in self._specs.items()
        }
        return arrays, np.array([one is not None for one in read], bool)

    def checksums(self, ids: SampleIds) -> NDArray[np.int64]:
        """Return the checksums that were written with samples, 0 for others: [n]."""
        with self._lock:
            return np.array([self._checksums.get(i, 0) for i in ids.tolist()], np.int64)

    def drop(self, ids: Iterable[int]) -> None:
        """Forget samples; those that are not here are no matter."""
        with self._lock:
            for sample in ids:
                self._checksums.pop(int(sample), None)
                self._samples.pop(int(sample), None)
                if self._folder is not None:
                    self._path(int(sample)).unlink(missing_ok=True)

    def ids(self) -> NDArray[np.int64]:
        """Return the samples that are here, sorted: int64 [n]."""
        with self._lock:
            return np.array(sorted(self._checksums), np.int64)

    def _write_file(self, path: Path, sum: int, one: SampleBytes) -> bool:
        """Write a sample's file; False where the disk has no room for it."""
        parts = (part for x in one.values() for part in (_INT64.pack(len(x)), x))
        try:
            # In place: a file that a kill has cut off does not have its checksum.
            path.write_bytes(_INT64.pack(sum) + b"".join(parts))
        except OSError as refused:
            path.unlink(missing_ok=True)
            if refused.errno not in _DISK_FULL_ERRNOS:
                raise
            if not self._is_full:
                self._is_full = True
                warnings.warn(
                    JaxdistWarning(
                        f"{path.parent} is full with {len(self._checksums):,} samples; "
                        "the others are read where the data set is"
                    ),
                    stacklevel=2,
                )
            return False
        return True

    def _read(self, sample: int) -> SampleBytes | None:
        """Return the bytes of a sample, by key, if it is here and whole."""
        with self._lock:
            if self._folder is None or sample not in self._checksums:
                return self._samples.get(sample)
            path = self._path(sample)

        # Read outside the lock: threads wait for a disk side by side.
        one: SampleBytes = {}
        try:
            data = memoryview(path.read_bytes())
            (sum,), at = _INT64.unpack_from(data), _INT64.size
            for key in self._specs:
                (size,) = _INT64.unpack_from(data, at)
                at += _INT64.size + size
                one[key] = bytes(data[at - size : at])
            rows = {k: stack_bytes([x], np.dtype(object), ()) for k, x in one.items()}
            whole = at == len(data) and checksums(rows)[0] == sum
        except (OSError, struct.error):
            sum, whole = 0, False

        with self._lock:
            if sample not in self._checksums:  # dropped meanwhile
                return None
            if whole:
                self._checksums[sample] = sum
                return one
            self.corrupt_count += 1
        self.drop([sample])
        return None

    def _path(self, sample: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{sample}.bin"


def make_store(
    source: Source, capacity: int, folder: Path | None
) -> ArrayStore | ByteStore:
    """Make a store for some samples of a source, or for as many as there is room for.

    Args:
        source: all samples.
        capacity: most samples at once.
        folder: where they lie on disk; none: in memory.

    Raises:
        BadInput: the folder cannot be written.
    """
    like = source.get(np.zeros(1, np.int64))
    has_bytes = any(array.dtype.hasobject for array in like.values())
    make: type[ArrayStore | ByteStore] = ByteStore if has_bytes else ArrayStore
    if folder is None:
        return make(like, capacity)
    try:
        return make(like, capacity, folder, source.fingerprint)
    except OSError as refused:
        if has_bytes or refused.errno not in _DISK_FULL_ERRNOS:
            raise BadInput(
                f"samples cannot be kept in {folder}",
                rule="data.cache_dir is a folder of this host's own that can be "
                "written",
                values=f"{refused.strerror or refused}",
                remedy=("data.cache_dir=FOLDER", "or data.cache=memory"),
            ) from refused

    # All arrays have no room: take what is free once the failed attempt is removed.
    try:
        for path in folder.glob("*.bin"):
            path.unlink()
        disk = os.statvfs(folder)
        each = _INDEX_ENTRY_BYTES + sum(array.nbytes for array in like.values())
        room = int(_USABLE_FRACTION * disk.f_bavail * disk.f_frsize) // each
        fewer = min(room, capacity - 1)
        store = ArrayStore(like, fewer, folder, source.fingerprint)
    except (OSError, ValueError):  # there is room for none, or others were faster
        fewer, store = 0, ArrayStore(like, 1)
    warnings.warn(
        JaxdistWarning(
            f"{folder} has room for {format_count(fewer)} of {format_count(capacity)} "
            "samples; the others are read where the data set is"
        ),
        stacklevel=2,
    )
    return store


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


def stack_bytes(
    rows: list[bytes | None], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Make an array `[n, ...]` of the bytes of samples; zeros where there are none."""
    if dtype.hasobject:
        # Assigned, not converted: NumPy would make fixed-width strings of bytes.
        found = np.empty(len(rows), object)
        found[:] = [row or b"" for row in rows]
        return found
    size = int(np.prod(shape)) * dtype.itemsize
    data = b"".join(row or bytes(size) for row in rows)
    return np.frombuffer(data, dtype).reshape(len(rows), *shape)


def _open_folder(
    folder: Path, contents: Mapping[str, Any], arrays: Iterable[str] = ()
) -> bool:
    """Make a folder for a store; tell whether it holds these contents already.

    Where it does not, it is empty, and `_describe_folder` is to be called once all
    files of the contents are whole.

    Args:
        folder: the store's own.
        contents: name and layout of the samples; JSON.
        arrays: names of files that the contents need.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said, head = json_text(contents), folder / _DESCRIPTION
    complete = all((folder / f"{name}.bin").is_file() for name in arrays)
    if complete and head.is_file() and head.read_text(encoding="utf-8") == said:
        return True
    files = list(folder.glob("*.bin"))
    if files and not head.is_file():
        raise BadInput(
            f"{folder} holds files of something else",
            rule="a folder of samples that are kept is empty, or has a store.json",
            values=", ".join(sorted(path.name for path in files)[:3]),
            remedy="data.cache_dir=FOLDER, another one",
        )
    # The description is emptied first and written last: a process that dies in between
    # leaves files that are not taken for samples, and yet known as a store's.
    write_atomic(head, "{}", durable=False)
    for path in files:
        path.unlink()
    return False


def _describe_folder(folder: Path, contents: Mapping[str, Any]) -> None:
    """Say what a folder holds from now on."""
    write_atomic(folder / _DESCRIPTION, json_text(contents), durable=False)
