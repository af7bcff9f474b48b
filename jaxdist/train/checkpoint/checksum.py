"""Checksums: a SHA-256 digest of parameters, and a fingerprint of a leaf that sums.

A fingerprint is the sum mod 2^32 of mix(word + place * 0x9E3779B9) over the 32-bit
words of an array, with places from 1. Terms may be added in any order, so each host
computes those of its own blocks, whatever the layout, and none has to hold a whole
leaf.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt

from jaxdist.train.state import named_leaves


def params_digest(params: Any) -> str:
    """Hash the parameters of a model: SHA-256 in hexadecimal.

    It covers names, dtypes, shapes and every bit, and does not depend on the layout.

    Args:
        params: a pytree of arrays in any layout. With several hosts every one of them
            must call it.

    >>> params_digest({"kernel": np.zeros((2, 2), np.float32)})[:16]
    '0cf749291760ae73'
    """

    def on_host(leaf: Any) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            from jax.experimental import multihost_utils

            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    # One leaf at a time, so that this host need not hold all of them.
    return hash_arrays(
        (name, on_host(leaf)) for name, leaf in sorted(named_leaves(params).items())
    )


def hash_arrays(named_arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hash arrays, in the order of their names."""
    total = hashlib.sha256()
    for name, array in named_arrays:
        total.update(f"{name} {array.dtype.name} {[*array.shape]}\\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


_GOLDEN: Final = 0x9E3779B9
_MASK: Final = 0xFFFFFFFF
# Elements processed at a time, so that the work stays in the cache.
_CHUNK_ELEMENTS: Final = 1 << 15

_LEARNT_PREFIXES: Final = ("params/", "opt/", "average/params/", "replicas/params/")

Uint32Array = npt.NDArray[np.uint32]


def fingerprint(array: npt.NDArray[Any]) -> int:
    """Return the fingerprint of an array on this host.

    >>> a = np.arange(6, dtype=np.float32)
    >>> f"{fingerprint(a):08x}"
    'b6dcbfb5'
    >>> fingerprint(a) == fingerprint(-a)
    False
    """
    return block_fingerprint(array, array.shape, (0,) * array.ndim)


def sum_over_hosts(values: Uint32Array) -> Uint32Array:
    """Sum a vector over all hosts, mod 2^32; every host must call it.

    Args:
        values: uint32 [n], of the same length on every host.
    """
    if jax.process_count() == 1:
        return values
    from jax.experimental import multihost_utils

    gathered = np.asarray(multihost_utils.process_allgather(values))
    return gathered.reshape(-1, values.size).sum(axis=0, dtype=np.uint32)


def block_fingerprint(
    block: npt.NDArray[Any], shape: tuple[int, ...], start: tuple[int, ...]
) -> int:
    """Return the sum of the terms of one block of an array.

    Args:
        block: elements of the block.
        shape: shape of the whole array.
        start: index of the block's first element in the whole array.
    """
    if not block.size:
        return 0
    # Strides of the whole array, in words.
    words = max(block.dtype.itemsize // 4, 1)
    strides, stride = [words], words
    for size in reversed(shape[1:]):
        stride *= size
        strides.insert(0, stride)
    strides = strides[len(strides) - block.ndim :]
    offset = sum(s * at for s, at in zip(strides, start, strict=True))

    # Blocks are cut along their first dims until a piece is small enough.
    total, pieces = 0, [(block, offset, strides)]
    while pieces:
        piece, offset, strides = pieces.pop()
        if piece.size <= _CHUNK_ELEMENTS:
            total += _sum_terms(piece, offset, strides)
        elif len(piece) == 1:
            pieces.append((piece[0], offset, strides[1:]))
        else:
            rows = max(len(piece) * _CHUNK_ELEMENTS // piece.size, 1)
            pieces += [
                (piece[row : row + rows], offset + row * strides[0], strides)
                for row in range(0, len(piece), rows)
            ]
    return total & _MASK


def local_fingerprint(array: jax.Array) -> int:
    """Return this host's share of a fingerprint; `sum_over_hosts` adds the shares."""
    total = 0
    # In NumPy, of the copy that is on its way to the host: to compile a fingerprint
    # would take 2 s at each start (docs/adr/0004).
    for shard in array.addressable_shards:
        # Of the copies of a block over all hosts exactly one has replica 0.
        if shard.replica_id == 0:
            start = tuple(part.start or 0 for part in shard.index)
            total += block_fingerprint(np.asarray(shard.data), array.shape, start)
    return total & _MASK


def has_nonfinite(name: str, array: Any) -> bool:
    """Return whether a leaf holds, on this host, a number that it must not hold.

    NaN, and infinity where it is learnt; what a network keeps besides may hold infinity
    on purpose, as masks do.

    Args:
        name: of the leaf in a state.
        array: the leaf, in any layout.

    >>> has_nonfinite("params/bias", np.array([1.0, np.inf]))
    True
    >>> has_nonfinite("stats/mask", np.array([0.0, -np.inf]))
    False
    """
    if not jax.numpy.issubdtype(array.dtype, jax.numpy.inexact):
        return False
    # Copies of a block are alike, so one of them is enough.
    parts = (
        [np.asarray(x.data) for x in array.addressable_shards if x.replica_id == 0]
        if isinstance(array, jax.Array)
        else [np.asarray(array)]
    )
    if name.startswith(_LEARNT_PREFIXES):
        return any(not np.isfinite(x).all() for x in parts)
    return any(bool(np.isnan(x).any()) for x in parts)


def _sum_terms(block: npt.NDArray[Any], offset: int, strides: list[int]) -> int:
    # Elements as 32-bit words, in one more dim: smaller ones are a word each.
    size = block.dtype.itemsize
    if size not in (1, 2, 4, 8, 16):
        raise TypeError(f"no fingerprint for elements of {size} bytes: {block.dtype}")
    flat = np.ascontiguousarray(block).reshape(-1)
    words = flat.view(f"u{min(size, 4)}").astype(np.uint32, copy=False)
    shape, strides = [*block.shape, max(size // 4, 1)], [*strides, 1]

    # Neighbouring dims that are contiguous in the whole array are merged.
    sizes, merged = [shape[-1]], [strides[-1]]
    for length, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
        if stride == sizes[0] * merged[0]:
            sizes[0] *= length
        else:
            sizes.insert(0, length)
            merged.insert(0, stride)

    # place * 0x9E3779B9 of each word, as a broadcast sum over dims, small ones first.
    terms = np.full((1,) * len(sizes), (offset + 1) * _GOLDEN & _MASK, np.uint32)
    for dim, (length, stride) in enumerate(zip(sizes, merged, strict=True)):
        scale = np.array(stride * _GOLDEN & _MASK, np.uint32)
        along = np.arange(length, dtype=np.uint32)
        along *= scale
        terms = terms + along.reshape((-1,) + (1,) * (len(sizes) - dim - 1))
    terms += words.reshape(sizes)

    # The 32-bit finalizer of MurmurHash3 (Appleby, 2011), in place.
    terms ^= terms >> np.uint32(16)
    terms *= np.uint32(0x85EBCA6B)
    terms ^= terms >> np.uint32(13)
    terms *= np.uint32(0xC2B2AE35)
    terms ^= terms >> np.uint32(16)
    return int(terms.sum(dtype=np.uint64))
