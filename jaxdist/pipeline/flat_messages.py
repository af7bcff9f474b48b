"""Flat messages: what stages send each other, or keep, in one vector for each dtype.

Stages send each other arrays of different shapes; a device holds and sends vectors as
long as the longest message needs. A tree is written and read array by array, at the
front of a vector: a stage that keeps little does not pass over all that the largest
stage keeps, and what lies behind the front belongs to other trees.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FlatBuffers = dict[str, jax.Array]
"""{dtype: vector}, in the order of the names."""

BufferLengths = Mapping[str, int]
"""{dtype: number of elements}."""


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
        vectors = {d: jax.ShapeDtypeStruct((n,), d) for d, n in self.lengths.items()}
        return jax.eval_shape(self.read, vectors)

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
            place = (*row, jnp.int32(at))
            buffers[dtype] = lax.dynamic_update_slice(buffers[dtype], flat, place)
        return buffers

    def read(self, buffers: FlatBuffers, *row: jax.Array) -> Any:
        """Read a tree from the front of vectors, as `write` takes them."""
        leaves = []
        for shape, is_key, (dtype, at, length) in zip(
            self.shapes, self.is_prng_key, self._leaf_slices, strict=True
        ):
            place, size = (*row, jnp.int32(at)), (1,) * len(row) + (length,)
            leaf = lax.dynamic_slice(buffers[dtype], place, size).reshape(shape)
            leaves.append(jax.random.wrap_key_data(leaf) if is_key else leaf)
        return jax.tree.unflatten(self.tree, leaves)

    @property
    def _leaf_slices(self) -> Iterator[tuple[str, int, int]]:
        """Dtype, offset and length of each leaf in the vectors."""
        start: Counter[str] = Counter()
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            yield dtype, start[dtype], math.prod(shape)
            start[dtype] += math.prod(shape)


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


def zero_buffers(lengths: BufferLengths, *leading: int) -> FlatBuffers:
    """Return vectors of zeros, [*leading, n]."""
    return {dtype: jnp.zeros((*leading, n), dtype) for dtype, n in lengths.items()}


def buffer_bytes(lengths: BufferLengths) -> int:
    """Count the bytes of vectors of these lengths."""
    return sum(n * np.dtype(dtype).itemsize for dtype, n in lengths.items())


def write_row(ring: FlatBuffers, row: jax.Array, buffers: FlatBuffers) -> FlatBuffers:
    """Write vectors into a row of a ring."""
    return {
        dtype: lax.dynamic_update_slice(x, buffers[dtype][None], (row, jnp.int32(0)))
        for dtype, x in ring.items()
    }


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
    return {
        # The slice is empty where a dtype has no elements.
        dtype: lax.dynamic_update_slice(
            x, made.astype(x.dtype)[None, : x.shape[1]], place
        )
        for dtype, x in ring.items()
    }
