"""NIfTI files: `.nii` by memory map, `.nii.gz` unpacked whole for each read.

An array is `[Z, Y, X]`, slices first, as SimpleITK and nnU-Net read it: the transpose
of nibabel's `get_fdata()`. So slices that lie one after the other in the file are rows
of the first dim, and a slab along `spatial_d` is one stretch of it. A fourth dim of the
file is channels, `[Z, Y, X, C]`.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, decoder_errors
from jaxdist.input.sources import Slab
from jaxdist.input.volumes.npy import MappedArray
from jaxdist.input.volumes.requirements import require
from jaxdist.input.volumes.stored_array import StoredArray, Wait, check_numbers

SUFFIXES: Final = (".nii", ".nii.gz")
_GZIP_TRAILER: Final = 8
"""Bytes at the end of a gzip file: CRC-32 and length of the content (RFC 1952)."""


class GzippedNifti:
    """A `.nii.gz` file; is a `StoredArray`.

    Args:
        path: the file.
        image: nibabel's image of it.
    """

    def __init__(self, path: Path, image: Any) -> None:
        self.name, self._path = str(path), path
        self.shape = _sample_shape(image.shape)
        scaled = _scale(image.dataobj) is not None
        stored = np.dtype(image.dataobj.dtype).newbyteorder("=")
        self.dtype = np.dtype("f4") if scaled else stored

    def read_into(self, box: Slab, out: NDArray[Any]) -> Wait:
        """Unpack the whole file, and copy a part of it into `out`."""
        # A stream of gzip has no places to begin at: what is before is unpacked too.
        proxy = require("nibabel").load(self._path).dataobj
        out[...] = _slices_first(np.asanyarray(proxy))[box]
        return lambda: None

    def stamp(self) -> bytes:
        """Return the checksum of the content, which gzip keeps at its end."""
        with self._path.open("rb") as file:
            file.seek(-_GZIP_TRAILER, 2)
            return file.read()


def open_nifti(path: Path) -> StoredArray:
    """Open a NIfTI file; of a `.nii.gz` the header alone is unpacked.

    Raises:
        BadInput: it is none, it is cut short, it holds colours or complex numbers, or
            nibabel is not installed.
    """
    nibabel = require("nibabel")

    def refuse(said: str) -> BadInput:
        return BadInput(
            f"{path} is no whole NIfTI file",
            rule="a .nii or .nii.gz file has a header and all voxels that it says",
            values=said.splitlines()[0] if said else "it cannot be read",
            remedy="mend the file, or leave it out of the folder",
        )

    with decoder_errors(refuse):
        image = nibabel.load(path)
        proxy, shape = image.dataobj, image.shape
        check_numbers(proxy.dtype)
        if len(shape) not in (3, 4):
            raise ValueError(f"{len(shape)} dims, {list(shape)}; a volume has 3 or 4")
        if path.name.endswith(".gz"):
            return GzippedNifti(path, image)
        mapped = np.memmap(path, proxy.dtype, "r", proxy.offset, shape, "F")
        return MappedArray(path, mapped, _slices_first, _scale(proxy))


def _scale(proxy: Any) -> tuple[float, float] | None:
    """Return slope and intercept of a file's numbers; None where they are exact."""
    slope, intercept = float(proxy.slope), float(proxy.inter)
    return None if (slope, intercept) == (1.0, 0.0) else (slope, intercept)


def _slices_first(array: NDArray[Any]) -> NDArray[Any]:
    """Return nibabel's array [X, Y, Z] or [X, Y, Z, C] as [Z, Y, X] or [Z, Y, X, C]."""
    # The first dim is the fastest in the file, so the transpose is in C order.
    return np.moveaxis(array.T, 0, -1) if array.ndim == 4 else array.T


def _sample_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[2::-1], *shape[3:])
