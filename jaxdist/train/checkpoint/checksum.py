"""Digest: one hash by which two sets of parameters are the same or not.

It covers names, dtypes, shapes and every bit, and no layout changes it.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt

from jaxdist.train.state import named_leaves


def params_digest(params: Any) -> str:
    """Hash the parameters of a model: SHA-256 in hexadecimal.

    Args:
        params: a pytree of arrays in any layout. With several hosts every one of them
            must call it.

    >>> params_digest({"kernel": np.zeros((2, 2), np.float32)})[:16]
    '0cf749291760ae73'
    """
    return hash_arrays(
        (n, _gather_to_host(leaf)) for n, leaf in sorted(named_leaves(params).items())
    )


def hash_arrays(named_arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Hash arrays that come one by one in the order of their names."""
    total = hashlib.sha256()
    for name, array in named_arrays:
        total.update(f"{name} {array.dtype.name} {[*array.shape]}\\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def _gather_to_host(leaf: Any) -> np.ndarray:
    """Bring an array to this host, the parts of other hosts as well."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        from jax.experimental import multihost_utils

        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)


_GOLDEN: Final = 0x9E3779B9
_MASK: Final = 0xFFFFFFFF
_CHUNK_ELEMENTS: Final = 1 << 15
"""Elements mixed at a time, so that the work stays in the cache."""

Uint32Array = npt.NDArray[np.uint32]


def fingerprint(array: npt.NDArray[Any]) -> int:
    """Fingerprint an array held whole on this host.

    >>> a = np.arange(6, dtype=np.float32)
    >>> f"{fingerprint(a):08x}"
    'b6dcbfb5'
    >>> fingerprint(a) == fingerprint(-a)
    False
    """
    return block_fingerprint(array, array.shape, (0,) * array.ndim)


def sum_over_hosts(values: Uint32Array) -> Uint32Array:
    """Add one vector of each host, mod 2^32.

    Args:
        values: uint32 [leaves], the same leaves on every host.
    """
    if jax.process_count() == 1:
        return values
    from jax.experimental import multihost_utils

    gathered = np.asarray(multihost_utils.process_allgather(values))
    return gathered.reshape(-1, values.size).sum(axis=0, dtype=np.uint32)


def block_fingerprint(
    block: npt.NDArray[Any], shape: tuple[int, ...], start: tuple[int, ...]
) -> int:
    """Sum the terms of one block of an array.

    Args:
        block: the elements held here.
        shape: shape of the whole array.
        start: place of the block's first element in the whole array.
    """
    if not block.size:
        return 0
    words = max(block.dtype.itemsize // 4, 1)
    strides, stride = [words], words
    for size in reversed(shape[1:]):
        stride *= size
        strides.insert(0, stride)
    strides = strides[len(strides) - block.ndim :]
    offset = sum(s * at for s, at in zip(strides, start, strict=True))
    terms = (
        _sum_terms(piece, place, rest)
        for piece, place, rest in _chunks(block, offset, strides)
    )
    return sum(terms) & _MASK


def local_fingerprint(array: jax.Array) -> int:
    """Sum the terms of the blocks that this host answers for.

    The shares of all hosts, added by `sum_over_hosts`, are the fingerprint.

    Of the copies of a block over all hosts exactly one has replica 0.
    """
    total = 0
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            start = tuple(part.start or 0 for part in shard.index)
            total += block_fingerprint(np.asarray(shard.data), array.shape, start)
    return total & _MASK


def _chunks(
    block: npt.NDArray[Any], offset: int, strides: list[int]
) -> Iterator[tuple[npt.NDArray[Any], int, list[int]]]:
    """Cut a block along its first dims into pieces of `_CHUNK_ELEMENTS` at most."""
    if block.size <= _CHUNK_ELEMENTS:
        yield block, offset, strides
    elif len(block) == 1:
        yield from _chunks(block[0], offset, strides[1:])
    else:
        rows = max(len(block) * _CHUNK_ELEMENTS // block.size, 1)
        for row in range(0, len(block), rows):
            piece = block[row : row + rows]
            yield from _chunks(piece, offset + row * strides[0], strides)


def _sum_terms(block: npt.NDArray[Any], offset: int, strides: list[int]) -> int:
    words = _as_words(block)
    sizes, strides = _merge_dims([*block.shape, words.shape[-1]], [*strides, 1])
    terms = _scaled_positions(sizes, offset, strides)
    terms += words.reshape(sizes)
    _mix(terms)
    return int(terms.sum(dtype=np.uint64))


def _merge_dims(sizes: list[int], strides: list[int]) -> tuple[list[int], list[int]]:
    """Make one dim of dims that follow each other without a gap.

    >>> _merge_dims([4, 3, 2], [12, 2, 1])
    ([4, 6], [12, 1])
    """
    sizes_out, strides_out = [sizes[-1]], [strides[-1]]
    for size, stride in zip(sizes[-2::-1], strides[-2::-1], strict=True):
        if stride == sizes_out[0] * strides_out[0]:
            sizes_out[0] *= size
        else:
            sizes_out.insert(0, size)
            strides_out.insert(0, stride)
    return sizes_out, strides_out


def _as_words(block: npt.NDArray[Any]) -> Uint32Array:
    """View elements as 32-bit words, in one more dim: uint32 [..., words]."""
    size = block.dtype.itemsize
    if size not in (1, 2, 4, 8, 16):
        raise TypeError(f"no fingerprint for elements of {size} bytes: {block.dtype}")
    flat = np.ascontiguousarray(block).reshape(-1)
    bits = flat.view(f"u{min(size, 4)}").astype(np.uint32, copy=False)
    return bits.reshape(*block.shape, max(size // 4, 1))


def _scaled_positions(sizes: list[int], offset: int, strides: list[int]) -> Uint32Array:
    """Give `place * 0x9E3779B9 mod 2^32` of each word, small dims first."""
    places = np.full((1,) * len(sizes), (offset + 1) * _GOLDEN & _MASK, np.uint32)
    for dim, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        scale = np.array(stride * _GOLDEN & _MASK, np.uint32)
        along = np.arange(size, dtype=np.uint32)
        along *= scale
        places = places + along.reshape((-1,) + (1,) * (len(sizes) - dim - 1))
    return places


def _mix(words: Uint32Array) -> None:
    """Apply the 32-bit finalizer of MurmurHash3 in place (Appleby, 2011)."""
    words ^= words >> np.uint32(16)
    words *= np.uint32(0x85EBCA6B)
    words ^= words >> np.uint32(13)
    words *= np.uint32(0xC2B2AE35)
    words ^= words >> np.uint32(16)
