"""Dtypes of accumulators, which are at least float32, and what int32 can index."""

from typing import Any, Final

import numpy as np

# Without x64 JAX writes the offsets of slices and the indices of gathers as int32. An
# offset beyond it wraps without a word, and names another element.
MAX_VECTOR_ELEMENTS: Final = 2**31 - 1
"""Elements of a vector that int32 indices can address."""


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
