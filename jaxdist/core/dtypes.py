"""Dtypes of accumulators: sums are at least float32."""

from typing import Any

import numpy as np


def accumulation_dtype(dtype: Any) -> np.dtype[Any]:
    """Return float32, or `dtype` where that is wider.

    >>> accumulation_dtype("float16"), accumulation_dtype("float64")
    (dtype('float32'), dtype('float64'))
    """
    # bfloat16 has 8 bits of mantissa: a sum of more than 256 equal terms stops growing.
    given = np.dtype(dtype)
    return given if given.itemsize > 4 else np.dtype(np.float32)
