"""Real rows: how many rows of a split image are its own, where the others are padding.

N rows lie on n devices as blocks of b rows, and n b may be larger than N. The rows from
N on are padding: they hold any finite numbers, as what a layer makes of padding is
padding. A layer whose windows or sums would meet them replaces them first, so nothing
real ever depends on them, and their gradients are zero.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.layers.manual import manual_sizes, split_dims
from jaxdist.layers.window import Windows, cut, whole_shape

Rows = tuple[int, ...]
"""Real rows of an image along each dim between batch and channels."""


class Windowed(Protocol):
    """A layer that passes a window over its input."""

    scope: str
    rows: Rows | None
    fill: float

    def windows(self, rows: Rows) -> Windows:
        """Return the window over each dim of the whole image."""
        ...


def real_rows(x: jax.Array, rows: Rows | None) -> Rows:
    """Return the real rows of the whole image that `x [B, ..., C]` is a block of.

    Args:
        x: the block.
        rows: what the layer was told; None where all rows are real.
    """
    return rows or whole_shape(x.shape, split_dims(x), manual_sizes())[1:-1]


def fill_padding(x: jax.Array, rows: Mapping[int, int], fill: float = 0.0) -> jax.Array:
    """Replace the padding of a block; without padding `x` itself.

    Args:
        x: block `[B, ..., C]`.
        rows: real rows along those dims whose padding is replaced.
        fill: by what.
    """
    split = split_dims(x)
    for dim, real in rows.items():
        block = x.shape[dim]
        if real < block * lax.axis_size(split[dim]):
            along = [block if d == dim else 1 for d in range(x.ndim)]
            here = lax.broadcasted_iota(jnp.int32, along, dim)
            first = lax.axis_index(split[dim]).astype(jnp.int32) * block
            x = jnp.where(here + first < real, x, jnp.asarray(fill, x.dtype))
    return x


def local_sum(x: jax.Array, rows: Rows | None) -> tuple[jax.Array, float]:
    """Sum a block's real positions, all samples.

    Args:
        x: block `[B, ..., C]`.
        rows: what the layer was told.

    Returns:
        The sum `[C]`, and how many positions a device has on average.
    """
    split, sizes, real = split_dims(x), manual_sizes(), real_rows(x, rows)
    filled = fill_padding(x, {dim: real[dim - 1] for dim in split})
    shards = math.prod(sizes[axis] for axis in split.values())
    return filled.sum(tuple(range(x.ndim - 1))), x.shape[0] * math.prod(real) / shards


def cut_windows(layer: Windowed, x: jax.Array) -> tuple[jax.Array, Windows]:
    """Prepare a block for a layer's windows.

    Returns:
        The block, its padding replaced where a window meets it, and the window over
        each of its dims.

    Raises:
        BadInput: blocks without whole strides; or the outputs are not one for each
            stride of rows, and the layer was not told its real rows.
    """
    split, sizes = split_dims(x), manual_sizes()
    whole = layer.windows(real_rows(x, layer.rows))
    if layer.rows is None:
        for dim, axis in split.items():
            whole[dim - 1].check_even(axis, sizes[axis], layer.scope)
    meets = {dim: whole[dim - 1].rows for dim in split if whole[dim - 1].overhang}
    return fill_padding(x, meets, layer.fill), cut(whole, split, x.shape, layer.scope)
