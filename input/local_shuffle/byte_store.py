"""Byte store: samples of any size that a host keeps, such as compressed images.

On disk each sample is a file of its own, ID.bin: its checksum, then the bytes of each
key with their length before them. A file that cannot be written for want of room is
left out, and one that is not whole is taken for gone.
"""

import errno
import json
import struct
import threading
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import JaxdistWarning
from jaxdist.input.local_shuffle.store import SampleIds, checksums, sample_bytes
from jaxdist.input.sources import Arrays

SampleBytes = dict[str, bytes]
DISK_FULL_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What a system says where there is no room."""
_INT64: Final = struct.Struct("<q")


class ByteStore:
    """Samples of which some keys are bytes of any length; used as a `Store` is.

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
            self._checksums = dict.fromkeys(
                _open_folder(folder, fingerprint, self._specs), 0
            )

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
        sums = checksums(samples).tolist() if len(ids) else []
        kept = 0
        with self._lock:
            for row, (sample, sum) in enumerate(zip(ids.tolist(), sums)):
                one = {key: sample_bytes(samples[key][row]) for key in self._specs}
                kept += sample in self._checksums or self._insert(sample, sum, one)
            self.peak_count = max(self.peak_count, len(self._checksums))
        return kept

    def get(self, ids: SampleIds) -> tuple[Arrays, NDArray[np.bool_]]:
        """Read samples: arrays `[n, ...]`, and which of their rows mean something."""
        read = [self._read(sample) for sample in ids.tolist()]
        arrays = {
            key: _stack_bytes([one[key] if one else None for one in read], *kind)
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

    def _insert(self, sample: int, sum: int, one: SampleBytes) -> bool:
        if self._folder is None:
            self._samples[sample] = one
        elif not self._write_file(self._path(sample), sum, one):
            return False
        self._checksums[sample] = sum
        return True

    def _write_file(self, path: Path, sum: int, one: SampleBytes) -> bool:
        parts = (part for x in one.values() for part in (_INT64.pack(len(x)), x))
        try:
            path.write_bytes(_INT64.pack(sum) + b"".join(parts))
        except OSError as refused:
            path.unlink(missing_ok=True)
            if refused.errno not in DISK_FULL_ERRNOS:
                raise
            if not self._is_full:
                self._is_full = True
                says = (
                    f"{path.parent} is full with {len(self._checksums):,} samples; the "
                )
                warnings.warn(
                    JaxdistWarning(f"{says}others are read where the data set is"),
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
        found = _read_sample_file(path, self._specs)
        with self._lock:
            if sample not in self._checksums:  # dropped meanwhile
                return None
            if found is not None:
                self._checksums[sample] = found[0]
                return found[1]
            self.corrupt_count += 1
        self.drop([sample])
        return None

    def _path(self, sample: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{sample}.bin"


def _read_sample_file(
    path: Path, keys: Iterable[str]
) -> tuple[int, SampleBytes] | None:
    """Read a sample's file; None where it is not what was written."""
    try:
        data = memoryview(path.read_bytes())
        (sum,), at, one = _INT64.unpack_from(data), _INT64.size, {}
        for key in keys:
            (size,) = _INT64.unpack_from(data, at)
            at += _INT64.size + size
            one[key] = bytes(data[at - size : at])
    except (OSError, struct.error):
        return None
    rows = {key: _stack_bytes([x], np.dtype(object), ()) for key, x in one.items()}
    return (sum, one) if at == len(data) and checksums(rows)[0] == sum else None


def _stack_bytes(
    rows: list[bytes | None], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Make an array of samples of their bytes; those that are not here are zeros."""
    if dtype.hasobject:
        found = np.empty(len(rows), object)
        found[:] = [row or b"" for row in rows]
        return found
    size = int(np.prod(shape)) * dtype.itemsize
    data = b"".join(row or bytes(size) for row in rows)
    return np.frombuffer(data, dtype).reshape(len(rows), *shape)


def _open_folder(folder: Path, of: str, like: Mapping[str, Any]) -> list[int]:
    """Make a folder for samples; name those of the same kind that it has already."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {key: [str(dtype), list(shape)] for key, (dtype, shape) in like.items()}
    said = json.dumps({"samples": of, "bytes": kinds})
    head = folder / "store.json"
    files = [path for path in folder.glob("*.bin") if path.stem.isdecimal()]
    if head.is_file() and head.read_text(encoding="utf-8") == said:
        return [int(path.stem) for path in files]
    head.unlink(missing_ok=True)
    for path in folder.glob("*.bin"):
        path.unlink()
    head.write_text(said, encoding="utf-8")
    return []
