"""Dtypes of accumulators: sums are at least float32."""

from typing import Any

import numpy as np


def is_complex(dtype: Any) -> bool:
    """Tell whether numbers of a dtype have an imaginary part."""
    return bool(np.issubdtype(np.dtype(dtype), np.complexfloating))


def real_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of a number's real part.

    >>> real_dtype("complex64"), real_dtype("float16")
    (dtype('float32'), dtype('float16'))
    """
    return np.zeros((), dtype).real.dtype


def accumulation_dtype(dtype: Any) -> np.dtype[Any]:
    """Return float32, or `dtype` where that is wider.

    >>> accumulation_dtype("float16"), accumulation_dtype("float64")
    (dtype('float32'), dtype('float64'))
    """
    # bfloat16 has 8 bits of mantissa: a sum of more than 256 equal terms stops growing.
    given = np.dtype(dtype)
    return given if given.itemsize > 4 else np.dtype(np.float32)
