"""Two workers that take the same pieces one after the other: how long both are busy.

The makespan of the two-machine flow shop (Johnson 1954, "Optimal two- and three-stage
production schedules") is the longest path through its pieces.
"""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def concurrent_time(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the seconds in which two workers work at the same time.

    Args:
        first: seconds of each piece at the first worker, [..., pieces].
        second: seconds at the second, which takes a piece when the first is done.

    >>> float(concurrent_time(np.ones(4), np.ones(4)))
    3.0
    """
    # The makespan is the longest path: pieces up to k at the first worker, then from k
    # on at the second.
    behind = np.cumsum(second[..., ::-1], axis=-1)[..., ::-1]
    longest = (np.cumsum(first, axis=-1) + behind).max(axis=-1)
    return np.maximum(0.0, first.sum(axis=-1) + second.sum(axis=-1) - longest)
