"""Files of named arrays in the format `safetensors`, read and written in parts.

    8 bytes    N, the length of the header, little-endian
    N bytes    JSON: {"a": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]}}
    the rest   the arrays, row by row, little-endian

An array is read and written a slice at a time, so that no process holds a whole model:
the package of that name writes a file from all arrays at once.
"""

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import json_text, parse_json

DTYPES: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "F64": np.dtype("<f8"),
        "F32": np.dtype("<f4"),
        "F16": np.dtype("<f2"),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "I64": np.dtype("<i8"),
        "I32": np.dtype("<i4"),
        "I16": np.dtype("<i2"),
        "I8": np.dtype("i1"),
        "U8": np.dtype("u1"),
        "BOOL": np.dtype("?"),
    }
)
"""NumPy's dtype by the name of the format."""
_MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""
_CHUNK_BYTES: Final = 1 << 24
"""Bytes of rows that are read at a time where only some columns are wanted."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """An array of a file, not read yet."""

    path: Path
    """The file."""
    dtype: str
    """As the format names it: `BF16`."""
    shape: tuple[int, ...]
    """Shape of the whole array."""
    offset: int
    """Of its first byte in the file."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def read(self, index: Sequence[slice] = ()) -> np.ndarray:
        """Read a slice of the array, in its own dtype.

        Args:
            index: a slice with step 1 for each dim; none reads all.

        Raises:
            BadInput: the file ends before the array does.
        """
        dtype = DTYPES[self.dtype]
        index = tuple(index) or (slice(None),) * len(self.shape)
        bounds = [one.indices(n) for one, n in zip(index, self.shape, strict=True)]
        sizes = tuple(max(stop - start, 0) for start, stop, _ in bounds)
        found = np.empty(sizes, dtype)
        if not found.size:
            return found
        if not self.shape:
            found[...] = self._rows(0, 1, ()).reshape(())
            return found
        # Whole rows are one range of bytes. Of other slices rows are read some at a
        # time, and the columns that are wanted are copied out of them.
        row, others = self.shape[1:], tuple(slice(a, b) for a, b, _ in bounds[1:])
        row_bytes = max(math.prod(row) * dtype.itemsize, 1)
        step = max(_CHUNK_BYTES // row_bytes, 1)
        first, last, _ = bounds[0]
        for at in range(first, last, step):
            end = min(at + step, last)
            rows = self._rows(at, end, row)
            found[at - first : end - first] = rows[(slice(None), *others)]
        return found

    def _rows(self, start: int, stop: int, row: tuple[int, ...]) -> np.ndarray:
        dtype = DTYPES[self.dtype]
        count = math.prod(row)
        place = self.offset + start * count * dtype.itemsize
        # Read and not mapped: mapped pages count as the process's memory
        # (docs/adr/0098).
        array = np.fromfile(
            self.path, np.uint8, (stop - start) * count * dtype.itemsize, offset=place
        )
        if array.size != (stop - start) * count * dtype.itemsize:
            raise _damaged(self.path, "it has been cut off while it was read")
        return array.view(dtype).reshape(stop - start, *row)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the arrays of a file by name; nothing of them is read.

    Raises:
        BadInput: it is no such file, or it is cut off.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            # A file too short for a length has one here that the next line refuses.
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size - 8, _MAX_HEADER_BYTES):
                raise _damaged(path, f"{size:,} bytes, with a header of {length:,}")
            tree = parse_json(file.read(length))
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read",
            rule="weights are files of the format safetensors",
            values=error.strerror or str(error),
            remedy=f"ls -l {path.parent}",
        ) from error
    except ValueError as error:
        if isinstance(error, BadInput):
            raise
        raise _damaged(path, f"a header that is no JSON: {error}") from error
    found = {}
    # Offsets count from behind the header.
    room = size - 8 - length
    try:
        for name, entry in tree.items():
            if name == "__metadata__":
                continue
            shape = tuple(int(n) for n in entry["shape"])
            begin, end = (int(n) for n in entry["data_offsets"])
            kind = str(entry["dtype"])
            if kind not in DTYPES:
                raise BadInput(
                    f"{name} has a dtype that is not read",
                    rule=f"weights are {', '.join(DTYPES)}",
                    values=f"{name} in {path} is {kind}",
                    remedy="model.to(torch.bfloat16).save_pretrained(FOLDER)",
                )
            one = StoredTensor(
                path=path, dtype=kind, shape=shape, offset=8 + length + begin
            )
            if min(shape, default=0) < 0 or begin < 0 or end - begin != one.nbytes:
                raise _damaged(path, f"{name} {[*shape]} has {end - begin:,} bytes")
            if end > room:
                missing = f"{end - room:,} bytes of {name} are missing"
                raise _damaged(path, f"cut off at {size:,} bytes: {missing}")
            found[name] = one
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise _damaged(path, f"a header of another form: {error!r}") from error
    return found


def _damaged(path: Path, said: str) -> BadInput:
    return BadInput(
        f"{path} is damaged",
        rule="a file of the format safetensors has a header in JSON, and each array "
        "that it names",
        values=said,
        remedy="copy or download the file again",
    )


class TensorWriter:
    """A new file, whose arrays are written one after the other.

    Args:
        path: file to make.
        tensors: dtype (`BF16`) and shape of each array by name.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    ) -> None:
        # Wide numbers first, as the format's own package does: all are aligned.
        names = sorted(tensors, key=lambda n: (-DTYPES[tensors[n][0]].itemsize, n))
        # transformers asks which framework has written a file.
        tree: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        place = 0
        for name in names:
            dtype, shape = tensors[name]
            end = place + math.prod(shape) * DTYPES[dtype].itemsize
            tree[name] = {
                "dtype": dtype,
                "shape": list(shape),
                "data_offsets": [place, end],
            }
            place = end
        header = json_text(tree).encode()
        # JSON may end in blanks: arrays begin at a multiple of 8 bytes.
        header += b" " * (-len(header) % 8)
        with path.open("xb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            # The space is taken now: a full disk is met before anything is computed.
            if place:
                os.posix_fallocate(file.fileno(), 8 + len(header), place)
        self._stored = {
            name: StoredTensor(
                path=path,
                dtype=tree[name]["dtype"],
                shape=tuple(tree[name]["shape"]),
                offset=8 + len(header) + tree[name]["data_offsets"][0],
            )
            for name in names
        }

    def write(self, name: str, array: np.ndarray, first_column: int = 0) -> None:
        """Write an array, or some of its last columns, cast to its dtype.

        Args:
            name: of the array in the file.
            array: all rows; of the last dim those from `first_column` on.
            first_column: where they begin.
        """
        one = self._stored[name]
        if not array.size:
            return
        # Mapped, since some columns of an array lie apart in the file.
        mapped = np.memmap(
            one.path, DTYPES[one.dtype], "r+", one.offset, one.shape or (1,)
        )
        columns = slice(first_column, first_column + (array.shape or (1,))[-1])
        mapped[..., columns] = array
        mapped.flush()
