"""Sliding windows: where they lie in an image, and how what they say is put together.

Isensee et al. 2021, doi:10.1038/s41592-020-01008-z, inference; as nnU-Net and MONAI's
`sliding_window_inference` do it. What windows say of a pixel is blended,

    y(x) = sum_s w(x - s) y_s(x) / sum_s w(x - s)      over windows that begin at s

and since windows lie on a grid and w is a product over dims, so are the sums below: the
weights of a dim are divided by theirs beforehand.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput

Blend = Literal["gaussian", "constant", "center"]
Place = tuple[int, ...]
"""First pixel of a window along each dim."""

_SIGMA: Final = 1 / 8
"""Standard deviation of a window's weights, in parts of its side, as in nnU-Net."""
_GRID: Final = 16
"""Windows begin at multiples of it where they can: a network that halves an image up to
four times then pairs the same rows in a window and in the whole."""


@dataclass(frozen=True, kw_only=True)
class SlidingWindow:
    """Windows of one size that overlap.

    >>> SlidingWindow(sides=(32,), overlap=0.5).starts(80, 0)
    (0, 16, 32, 48)
    """

    sides: tuple[int, ...]
    """Rows of a window along each dim."""
    overlap: float = 0.5
    """Part of a window that the next one sees as well."""
    blend: Blend = "gaussian"
    """Weights of a window's pixels: most in its middle, all the same, or each pixel's
    from the one window in which it is farthest from the edges."""

    def __post_init__(self) -> None:
        # Written with `not`, so that nan is refused as well.
        if not 0 <= self.overlap < 1 or min(self.sides, default=0) < 1:
            raise BadInput(
                "windows cannot lie so",
                rule="a window has a row or more along each dim, and overlaps the next "
                "by 0 or more of it, below 1",
                values=f"window {'x'.join(map(str, self.sides))}, overlap "
                f"{self.overlap:g}",
                remedy="--window 64,64,64 --overlap 0.5",
            )

    def starts(self, rows: int, dim: int) -> tuple[int, ...]:
        """Return where windows begin along a dim.

        Args:
            rows: of an image; less than a window count as a window's.
            dim: which one.
        """
        side = self.sides[dim]
        last = max(rows - side, 0)
        step = max(int(side * (1 - self.overlap)), 1)
        # The last one begins where it ends with the image: also on that grid, if rows
        # and window are.
        unit = math.gcd(side, last, _GRID)
        while unit > step:
            unit //= 2
        # Rounded down: windows overlap by at least what was asked for.
        step = step // unit * unit
        return (*range(0, last, step), last)

    def places(self, image: tuple[int, ...]) -> list[Place]:
        """Return where all windows begin, in the order of their first rows.

        Args:
            image: rows of an image along each dim.
        """
        dims = [self.starts(rows, dim) for dim, rows in enumerate(image)]
        return list(product(*dims))

    def weights(self, image: tuple[int, ...]) -> list[dict[int, NDArray[np.float64]]]:
        """Return the weight of each row of each window, by dim and by first row.

        Those of all windows that see a row are 1 together.

        Args:
            image: rows of an image along each dim.
        """
        found = []
        for dim, rows in enumerate(image):
            side, starts = self.sides[dim], self.starts(rows, dim)
            # Distance of each row from the window's middle.
            far = np.arange(side) - (side - 1) / 2
            own = np.ones(side)
            if self.blend == "gaussian":
                own = np.exp(-0.5 * (far / (_SIGMA * side)) ** 2)
            table = np.zeros((len(starts), max(rows, side)))
            for row, start in zip(table, starts, strict=True):
                row[start : start + side] = own
            if self.blend == "center":
                # Each row is taken from the window with the nearest middle, the first
                # of equal ones.
                middles = np.array(starts)[:, None] + (side - 1) / 2
                nearest = np.abs(np.arange(table.shape[1]) - middles).argmin(0)
                table = (np.arange(len(starts))[:, None] == nearest).astype(np.float64)
            # Every row is in some window, and a Gaussian of sigma = side / 8 is exp(-8)
            # at its edges, so no sum is 0.
            table /= table.sum(0)
            found.append(
                {s: w[s : s + side] for s, w in zip(starts, table, strict=True)}
            )
        return found


class BlendedPlanes:
    """What windows say of one image, plane by plane along its first dim.

    A plane is done when no later window sees it: so there are never more than a window
    has, and those by which windows that are added together begin apart.

    Args:
        window: how windows lie.
        image: rows of the image along each dim.
    """

    def __init__(self, window: SlidingWindow, image: tuple[int, ...]) -> None:
        self._image, self._weights = image, window.weights(image)
        self._planes: deque[NDArray[Any]] = deque()
        self._first = 0
        self.max_bytes = 0
        """Most bytes that planes took at once."""

    def add(self, place: Place, outputs: NDArray[Any]) -> None:
        """Add what a window says, [..., n], that begins at a place."""
        dims = [table[start] for table, start in zip(self._weights, place, strict=True)]
        # Sums of 16 bits would be off by parts in a hundred.
        full = accumulation_dtype(outputs.dtype)
        each = reduce(np.multiply.outer, dims).astype(full)
        said = outputs * each[..., None]
        behind = place[0] + len(said) - self._first
        shape = (*self._image[1:], outputs.shape[-1])
        while len(self._planes) < min(behind, self._image[0] - self._first):
            self._planes.append(np.zeros(shape, full))
        self.max_bytes = max(self.max_bytes, len(self._planes) * self._planes[0].nbytes)
        sides = zip(place[1:], outputs.shape[1:-1], self._image[1:], strict=True)
        # An image smaller than a window was padded: what is said behind its edge is
        # dropped.
        there = [slice(begin, min(begin + n, rows)) for begin, n, rows in sides]
        real = tuple(slice(part.stop - part.start) for part in there)
        for row, plane in enumerate(said, place[0] - self._first):
            if row < len(self._planes):
                self._planes[row][tuple(there)] += plane[real]

    def take(self, end: int) -> Iterator[NDArray[Any]]:
        """Yield the planes before one, and forget them."""
        while self._planes and self._first < end:
            self._first += 1
            yield self._planes.popleft()
