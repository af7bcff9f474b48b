"""Auto: the algorithm that is fastest on a measured link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jaxdist.collectives.compress.exact import ExactAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm, Shape
from jaxdist.collectives.link import Link

TIE_TOLERANCE: Final = 1.03
"""Algorithms tie where one takes at most so many times as long as the other."""


@dataclass(frozen=True, kw_only=True)
class AutoAlgorithm:
    """A choice of algorithms; without a link, the exact sum of the backend."""

    candidates: tuple[AllReduceAlgorithm, ...] = (ExactAllReduce(),)
    """Algorithms by preference: the first of those that tie is taken."""
    link: Link | None = None
    """Measurements of all of them."""

    def select(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> AllReduceAlgorithm:
        """Return the algorithm for arrays of these shapes; integers are summed exactly.

        Args:
            shapes: of the arrays, which are summed as one.
            dtype: of the arrays.
            sizes: {axis: devices along it}, outermost first.

        Raises:
            BadInput: an algorithm or a number of devices that was not measured.
        """
        # Lossy algorithms are for floats.
        floats = np.issubdtype(dtype, np.floating)
        if self.link is None or not (shapes and sizes and floats):
            return ExactAllReduce()
        return select_fastest(self.candidates, [shapes], dtype, sizes, self.link)


def select_fastest(
    candidates: Sequence[AllReduceAlgorithm],
    reductions: Sequence[Sequence[Shape]],
    dtype: Any,
    sizes: Mapping[str, int],
    link: Link,
) -> AllReduceAlgorithm:
    """Return the algorithm that is fastest for several reductions in turn.

    Args:
        candidates: by preference.
        reductions: shapes of the arrays of each.
        dtype: of the arrays.
        sizes: {axis: devices along it}, outermost first.
        link: the measurements.

    Raises:
        BadInput: an algorithm or a number of devices that was not measured.
    """
    seconds = [
        sum(link.estimate_seconds(way, shapes, dtype, sizes) for shapes in reductions)
        for way in candidates
    ]
    # By preference among near equals, so that noise in the measurement does not choose.
    near = TIE_TOLERANCE * min(seconds)
    return next(way for way, s in zip(candidates, seconds, strict=True) if s <= near)
