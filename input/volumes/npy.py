"""`.npy` files by memory map: a part of a volume is the pages that it lies on."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, decoder_errors
from jaxdist.input.sources import Slab
from jaxdist.input.volumes.stored_array import Wait, sampled_stamp


class MappedArray:
    """An array that lies uncompressed in a file; is a `StoredArray`.

    Args:
        path: the file.
        mapped: the array, mapped into memory.
        scale: slope and intercept by which its numbers are read, as real numbers.
    """

    def __init__(
        self,
        path: Path,
        mapped: NDArray[Any],
        scale: tuple[float, float] | None = None,
    ) -> None:
        self.name, self.shape = str(path), mapped.shape
        self._mapped, self._scale = mapped, scale
        self.dtype = np.dtype("f4") if scale else mapped.dtype.newbyteorder("=")

    def read_into(self, box: Slab, out: NDArray[Any]) -> Wait:
        """Read a part into `out`."""
        if self._scale is None:
            out[...] = self._mapped[box]
        else:
            out[...] = self._mapped[box] * self._scale[0] + self._scale[1]
        return lambda: None

    def stamp(self) -> bytes:
        """Return a few rows."""
        return sampled_stamp(self)


def open_npy(path: Path) -> MappedArray:
    """Map an `.npy` file.

    Raises:
        BadInput: it is none, is cut short, or holds objects.
    """

    def refuse(said: str) -> BadInput:
        return BadInput(
            f"{path} is no whole .npy file",
            rule="a .npy file holds one array of numbers, as np.save writes it",
            values=said,
            remedy=f"np.save('{path}', array)",
        )

    with decoder_errors(refuse):
        return MappedArray(path, np.load(path, mmap_mode="r"))
