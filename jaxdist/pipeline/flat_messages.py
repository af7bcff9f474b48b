"""Flat messages: what stages send each other, or keep, in vectors of one dtype each.

Stages send each other arrays of different shapes; a device holds and sends vectors as
long as the longest message needs. A tree is written and read array by array, at the
front of a vector: a stage that keeps little does not pass over all that the largest
stage keeps, and what lies behind the front belongs to other trees.

A dtype has one vector, or several where int32 offsets cannot address one: then all but
the last are full, so that they have as many elements as one would have. An array may
begin in one vector and end in the next.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.core.dtypes import MAX_VECTOR_ELEMENTS

FlatBuffers = dict[str, tuple[jax.Array, ...]]
"""{dtype: its vectors}, in the order of the names."""

BufferLengths = Mapping[str, int]
"""{dtype: number of elements in all its vectors}."""


@dataclass(frozen=True, kw_only=True)
class FlatTreeSpec:
    """Structure, shapes and dtypes of a tree, in the manner of a message type."""

    tree: Any
    """Its structure."""
    shapes: tuple[tuple[int, ...], ...]
    """Shape of each leaf."""
    dtypes: tuple[str, ...]
    """Dtype of each leaf."""
    is_prng_key: tuple[bool, ...]
    """Whether each leaf is PRNG keys, which are sent as their raw data."""

    @property
    def lengths(self) -> BufferLengths:
        """Elements of each dtype."""
        total: Counter[str] = Counter()
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            total[dtype] += math.prod(shape)
        return dict(total)

    @property
    def abstract_tree(self) -> Any:
        """The tree with a `ShapeDtypeStruct` for each array."""
        return jax.eval_shape(self.read, buffer_shapes(self.lengths))

    def write(self, buffers: FlatBuffers, tree: Any, *row: jax.Array) -> FlatBuffers:
        """Write a tree of this structure over the front of vectors.

        Args:
            buffers: at least as long as `lengths`; [rows, n] where a row is given.
            tree: of this structure.
            row: of a ring, int32; none where vectors have no rows.
        """
        buffers = dict(buffers)
        # Array by array, in place: a concatenation would be written to memory once
        # more.
        for leaf, (dtype, at, _) in zip(
            jax.tree.leaves(tree), self._leaf_slices, strict=True
        ):
            flat = raw_array(leaf).reshape((1,) * len(row) + (-1,))
            vectors, start = list(buffers[dtype]), 0
            for k, offset, size in _spans(vectors, at, flat.shape[-1]):
                part, start = _part(flat, start, size), start + size
                place = (*row, jnp.int32(offset))
                vectors[k] = lax.dynamic_update_slice(vectors[k], part, place)
            buffers[dtype] = tuple(vectors)
        return buffers

    def read(self, buffers: FlatBuffers, *row: jax.Array) -> Any:
        """Read a tree from the front of vectors, as `write` takes them."""
        leaves = []
        for shape, is_key, (dtype, at, length) in zip(
            self.shapes, self.is_prng_key, self._leaf_slices, strict=True
        ):
            vectors, ones = buffers[dtype], (1,) * len(row)
            parts = [
                lax.dynamic_slice(vectors[k], (*row, jnp.int32(offset)), (*ones, size))
                for k, offset, size in _spans(vectors, at, length)
            ]
            # The few arrays that lie in several vectors are copied once more.
            flat = parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)
            leaf = flat.reshape(shape)
            leaves.append(jax.random.wrap_key_data(leaf) if is_key else leaf)
        return jax.tree.unflatten(self.tree, leaves)

    @property
    def _leaf_slices(self) -> Iterator[tuple[str, int, int]]:
        """Dtype, offset and length of each leaf in the vectors."""
        start: Counter[str] = Counter()
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            yield dtype, start[dtype], math.prod(shape)
            start[dtype] += math.prod(shape)


def _spans(
    vectors: Sequence[jax.Array], start: int, length: int
) -> Iterator[tuple[int, int, int]]:
    """Yield where elements lie: vector, offset in it, and how many of them."""
    # All vectors but the last are as long as the first. One span at least, since an
    # array may have no elements.
    full, stop = max(1, vectors[0].shape[-1]), start + length
    while True:
        k = min(start // full, len(vectors) - 1)
        offset = start - k * full
        size = min(stop - start, vectors[k].shape[-1] - offset)
        yield k, offset, size
        start += size
        if start == stop:
            return


def _part(flat: jax.Array, start: int, size: int) -> jax.Array:
    """Slice the last dim; a slice of everything is no operation."""
    if size == flat.shape[-1]:
        return flat
    return lax.slice_in_dim(flat, start, start + size, axis=-1)


def flat_tree_spec(tree: Any) -> FlatTreeSpec:
    """Return the structure of a tree of arrays or shapes."""
    leaves, structure = jax.tree.flatten(tree)
    # On shapes alone: the raw data of a key has another shape and dtype than the key.
    found = jax.eval_shape(
        lambda: [raw_array(jnp.empty(x.shape, x.dtype)) for x in leaves]
    )
    return FlatTreeSpec(
        tree=structure,
        shapes=tuple(tuple(x.shape) for x in found),
        dtypes=tuple(np.dtype(x.dtype).name for x in found),
        is_prng_key=tuple(_is_key(x) for x in leaves),
    )


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def raw_array(leaf: jax.Array) -> jax.Array:
    """Return an array itself, or the raw data of PRNG keys."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def max_lengths(specs: Iterable[FlatTreeSpec]) -> BufferLengths:
    """Return the lengths of vectors that fit each of some trees."""
    most: dict[str, int] = {}
    for spec in specs:
        for dtype, length in spec.lengths.items():
            most[dtype] = max(most.get(dtype, 0), length)
    # Sorted, as JAX orders the keys of a dict in a tree.
    return dict(sorted(most.items()))


def zero_buffers(
    lengths: BufferLengths, *leading: int, max_elements: int = MAX_VECTOR_ELEMENTS
) -> FlatBuffers:
    """Return vectors of zeros, [*leading, n].

    Args:
        lengths: elements of each dtype.
        leading: dims before the elements.
        max_elements: elements of a vector, at most; more are split into several.
    """
    return {
        dtype: tuple(
            jnp.zeros((*leading, min(n - start, max_elements)), dtype)
            # One vector at least: a dtype may have no elements.
            for start in range(0, max(1, n), max_elements)
        )
        for dtype, n in lengths.items()
    }


def buffer_shapes(lengths: BufferLengths, *leading: int) -> Any:
    """Return shapes and dtypes of vectors, which take no memory."""
    return jax.eval_shape(partial(zero_buffers, lengths, *leading))


def buffer_bytes(lengths: BufferLengths) -> int:
    """Count the bytes of vectors of these lengths."""
    return sum(n * np.dtype(dtype).itemsize for dtype, n in lengths.items())


def write_row(ring: FlatBuffers, row: jax.Array, buffers: FlatBuffers) -> FlatBuffers:
    """Write vectors into a row of a ring."""
    written: FlatBuffers = jax.tree.map(
        lambda x, new: lax.dynamic_update_slice(x, new[None], (row, jnp.int32(0))),
        ring,
        buffers,
    )
    return written


def overwrite_row(ring: FlatBuffers, row: jax.Array, dependents: Any) -> FlatBuffers:
    """Write over a row that has been read for the last time.

    Args:
        ring: vectors, [rows, n].
        row: of the ring.
        dependents: arrays that were computed from the row.
    """
    # Readers that change nothing may run before or after writers, for all the compiler
    # knows, and then it copies the whole ring. This write is computed from the results
    # of all readers, so it comes after every use, and later writers after it.
    made = sum(
        x.real.reshape(-1)[:1].astype(jnp.float32)
        for x in jax.tree.leaves(dependents)
        if x.size
    )
    place = row, jnp.int32(0)
    written: FlatBuffers = jax.tree.map(
        # The slice is empty where a dtype has no elements.
        lambda x: lax.dynamic_update_slice(
            x, made.astype(x.dtype)[None, : x.shape[1]], place
        ),
        ring,
    )
    return written
