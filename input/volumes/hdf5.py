"""HDF5 files: the chunks that a part lies in are read, through h5py."""

from pathlib import Path
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, decoder_errors
from jaxdist.input.sources import Slab
from jaxdist.input.volumes.requirements import require
from jaxdist.input.volumes.stored_array import NUMBER_KINDS, Wait, sampled_stamp


class Hdf5Array:
    """A data set of an HDF5 file; is a `StoredArray`.

    Args:
        path: the file.
        key: path of the data set inside it.
        dataset: h5py's object of it.
        keep_open: whether the file stays open between reads. Of one file for each
            sample there may be more than a process can hold open.
    """

    def __init__(self, path: Path, key: str, dataset: Any, *, keep_open: bool) -> None:
        self.name, self._path, self._key = f"{path}:{key}", path, key
        self.shape, self.dtype = dataset.shape, dataset.dtype.newbyteorder("=")
        self._keep_open, self._open, self._lock = keep_open, None, Lock()

    def read_into(self, box: Slab, out: NDArray[Any]) -> Wait:
        """Read a part into `out`."""
        # h5py has one lock for the library: threads take turns in it.
        if not self._keep_open:
            with open_hdf5(self._path) as file:
                _read(file[self._key], box, out)
        else:
            with self._lock:
                if self._open is None:
                    self._open = open_hdf5(self._path)[self._key]
            _read(self._open, box, out)
        return lambda: None

    def stamp(self) -> bytes:
        """Return a few rows."""
        return sampled_stamp(self)

    # A worker process opens the file for itself.
    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_open", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _open=None, _lock=Lock())


def _read(dataset: Any, box: Slab, out: NDArray[Any]) -> None:
    if dataset.shape == ():
        out[...] = dataset[()]
    elif out.flags.c_contiguous:
        dataset.read_direct(out, box)
    else:  # channels are moved
        out[...] = dataset[box]


def open_hdf5(path: Path) -> Any:
    """Open an HDF5 file to read it.

    Raises:
        BadInput: it is none, or h5py is not installed.
    """
    h5py = require("h5py")

    def refuse(said: str) -> BadInput:
        return BadInput(
            f"{path} cannot be read as HDF5",
            rule="a file of HDF5 is whole, and no other program writes it",
            values=said,
            remedy="mend the file, or end the program that writes it",
        )

    with decoder_errors(refuse):
        # Many file systems of clusters have no locks, which is no reason to refuse.
        return h5py.File(path, "r", locking="best-effort")


def numeric_datasets(path: Path, *, keep_open: bool) -> dict[str, Hdf5Array]:
    """List the arrays of numbers in a file, by their path inside it.

    Raises:
        BadInput: it is no HDF5 file.
    """
    h5py, found = require("h5py"), {}

    def visit(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in NUMBER_KINDS:
            found[key] = Hdf5Array(path, key, item, keep_open=keep_open)

    with open_hdf5(path) as file:
        file.visititems(visit)
    return found
