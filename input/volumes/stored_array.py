"""Stored array: an array in a file or an object store, of which a part can be read."""

from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from jaxdist.input.sources import Slab

Wait = Callable[[], object]
"""Returns when a read is done, or raises what went wrong."""
NUMBER_KINDS: Final = "biuf"
"""Kinds of dtypes that are real numbers: no texts, records or complex ones."""


class StoredArray(Protocol):
    """An array in a file or an object store; any thread may read it."""

    @property
    def name(self) -> str:
        """File and, where it holds several arrays, which one: `a.h5:train/image`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Entries along each dim."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what is read."""

    def read_into(self, box: Slab, out: NDArray[Any]) -> Wait:
        """Begin to read a part, bounds from 0, to `out` of its shape."""

    def stamp(self) -> bytes:
        """Return what tells this content from another, at the cost of a small read."""


@runtime_checkable
class RowReader(Protocol):
    """A stored array that reads several rows by one request."""

    def read_rows_into(self, rows: list[int], box: Slab, out: NDArray[Any]) -> Wait:
        """Begin to read a part of each row to `out` `[rows, ...]`."""


def check_numbers(dtype: np.dtype[Any]) -> None:
    """Refuse arrays of anything but numbers.

    Raises:
        ValueError: naming the dtype.
    """
    if dtype.kind not in NUMBER_KINDS:
        raise ValueError(f"its dtype is {dtype}, which is no real number")


def sampled_stamp(array: StoredArray, places: int = 4) -> bytes:
    """Read a few rows of an array, evenly among all: a stamp of any format.

    A row is one entry along all dims but the last two.
    """
    if 0 in array.shape:
        return b""
    fixed, free = array.shape[:-2], array.shape[-2:]
    rows = int(np.prod(fixed, dtype=np.int64))
    out, found = np.empty((1,) * len(fixed) + free, array.dtype), b""
    for flat in sorted({rows * place // places for place in range(places)}):
        place = np.unravel_index(flat, fixed) if fixed else ()
        box = (*(slice(int(i), int(i) + 1) for i in place), *map(slice, (0,) * 2, free))
        array.read_into(box, out)()
        found += out.tobytes()
    return found
