"""Dtypes of sums: what is added up is at least float32."""

from typing import Any

import numpy as np


def accumulation_dtype(dtype: Any) -> np.dtype[Any]:
    """Return float32, or `dtype` where that is wider.

    >>> accumulation_dtype("float16"), accumulation_dtype("float64")
    (dtype('float32'), dtype('float64'))
    """
    given = np.dtype(dtype)
    return given if given.itemsize > 4 else np.dtype(np.float32)
