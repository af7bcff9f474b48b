"""`.npy` files by memory map: a part of a volume is the pages that it lies on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, decoder_errors
from jaxdist.input.sources import Slab
from jaxdist.input.volumes.stored_array import Wait, check_numbers, sampled_stamp

View = Callable[[NDArray[Any]], NDArray[Any]]


def whole_view(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as it lies in its file."""
    return array


class MappedArray:
    """An array that lies uncompressed in a file; is a `StoredArray`.

    Args:
        path: the file.
        mapped: the array as it lies there, mapped into memory.
        view: the same as it is read, with other dims.
        scale: slope and intercept by which its numbers are read, as real numbers.
    """

    def __init__(
        self,
        path: Path,
        mapped: np.memmap[Any, Any],
        view: View = whole_view,
        scale: tuple[float, float] | None = None,
    ) -> None:
        self.name, self.shape = str(path), view(mapped).shape
        self.dtype = np.dtype("f4") if scale else mapped.dtype.newbyteorder("=")
        self._view, self._scale = view, scale
        # Mapped anew for each read: a map holds its file open, and there may be more
        # files than a process can hold.
        self._place: dict[str, Any] = {
            "dtype": mapped.dtype,
            "offset": mapped.offset,
            "shape": mapped.shape,
            "order": "C" if mapped.flags.c_contiguous else "F",
        }

    def read_into(self, box: Slab, out: NDArray[Any]) -> Wait:
        """Read a part into `out`."""
        part = self._view(np.memmap(self.name, mode="r", **self._place))[box]
        if self._scale is None:
            out[...] = part
        else:
            out[...] = part * self._scale[0] + self._scale[1]
        return lambda: None

    def stamp(self) -> bytes:
        """Return a few rows."""
        return sampled_stamp(self)


def open_npy(path: Path) -> MappedArray:
    """Map an `.npy` file.

    Raises:
        BadInput: it is none, is cut short, or holds anything but numbers.
    """

    def refuse(said: str) -> BadInput:
        return BadInput(
            f"{path} is no whole .npy file",
            rule="a .npy file holds one array of numbers, as np.save writes it",
            values=said,
            remedy=f"np.save('{path}', array)",
        )

    with decoder_errors(refuse):
        mapped = np.load(path, mmap_mode="r")
        check_numbers(mapped.dtype)
        return MappedArray(path, mapped)
