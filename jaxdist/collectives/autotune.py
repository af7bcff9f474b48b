"""Auto: the way to sum that a measured link makes the fastest, out of those allowed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jaxdist.collectives.compress.exact import ExactAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm, Shape
from jaxdist.collectives.link import Link

TIE_TOLERANCE: Final = 1.03
"""Ways are equally fast where one takes at most so many times as long as the other."""


@dataclass(frozen=True, kw_only=True)
class AutoAlgorithm:
    """A choice of ways; without a link, the exact sum as the backend likes."""

    candidates: tuple[AllReduceAlgorithm, ...] = (ExactAllReduce(),)
    """What may be chosen, by preference: the first of those that are equally fast."""
    link: Link | None = None
    """What was measured of all of them."""

    def select(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> AllReduceAlgorithm:
        """Return the way for arrays of these shapes; integers are summed exactly.

        Args:
            shapes: of the arrays, which are summed as one.
            dtype: of their numbers.
            sizes: {axis: devices along it}, outermost first.

        Raises:
            BadInput: a way or a number of devices that was not measured.
        """
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
    """Return the way that sums one list of arrays after another the fastest.

    Args:
        candidates: what may be chosen, by preference.
        reductions: shapes of the arrays of each sum.
        dtype: of their numbers.
        sizes: {axis: devices along it}, outermost first.
        link: what was measured.

    Raises:
        BadInput: a way or a number of devices that was not measured.
    """
    seconds = [
        sum(link.estimate_seconds(way, shapes, dtype, sizes) for shapes in reductions)
        for way in candidates
    ]
    near = TIE_TOLERANCE * min(seconds)
    return next(way for way, s in zip(candidates, seconds, strict=True) if s <= near)
