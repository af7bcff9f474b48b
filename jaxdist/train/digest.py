"""Digest: one hash by which two sets of parameters are the same or not.

It covers names, dtypes, shapes and every bit, and no layout changes it.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jaxdist.train.state import named_leaves


def params_digest(params: Any) -> str:
    """Hash the parameters of a model: SHA-256 in hexadecimal.

    Args:
        params: a pytree of arrays in any layout. With several hosts every one of them
            must call it.

    >>> params_digest({"kernel": np.zeros((2, 2), np.float32)})[:16]
    '0cf749291760ae73'
    """
    return digest((n, _whole(leaf)) for n, leaf in sorted(named_leaves(params).items()))


def digest(leaves: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hash arrays that come one by one in the order of their names."""
    total = hashlib.sha256()
    for name, array in leaves:
        total.update(f"{name} {array.dtype.name} {[*array.shape]}\\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def _whole(leaf: Any) -> np.ndarray:
    """Bring an array to this host, the parts of other hosts as well."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        from jax.experimental import multihost_utils

        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)
