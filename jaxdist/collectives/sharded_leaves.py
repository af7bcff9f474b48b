"""All-gather and reduce-scatter of many leaves over one mesh axis.

Vectors of one dtype are sent as one array, and so are small gradients that are summed:
a collective of many small arrays would start as often.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.compress.exact import ExactAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm
from jaxdist.collectives.primitives import psum_scatter, resolve_algorithm
from jaxdist.core.axes import strided_axis_name, sub_axis_name
from jaxdist.core.dtypes import accumulation_dtype, is_complex

ShardDims = Sequence[int | None]
PACKED_BYTES: Final = 2**16
"""Gradients below this size are summed as one array: alone each would cost a latency,
and compilers pad dims of odd sizes."""


def all_gather(
    shards: Sequence[jax.Array],
    shard_dims: ShardDims,
    axis: str,
    codec: Codec | None = None,
    inner: int = 1,
) -> list[jax.Array]:
    """All-gather the shards that the devices along an axis hold.

    Args:
        shards: this device's parts.
        shard_dims: the sharded dim of each; None leaves it as it is.
        axis: a manual axis.
        codec: encodes matrices; none sends them as they are.
        inner: neighbours of the first step, before one over devices that are so far
            apart; 1 takes one step.
    """
    whole = list(shards)
    with jax.named_scope(f"join_{axis}"):
        for i in _matrices(shards, shard_dims):
            x, dim = shards[i], shard_dims[i] or 0
            # Codecs are of real numbers.
            if codec is None or is_complex(x.dtype):
                whole[i] = all_gather_array(x, axis, dim, inner)
                continue
            # One message for the whole shard, which is cut along its first dim.
            front, wide = jnp.moveaxis(x, dim, 0), accumulation_dtype(x.dtype)
            message = codec.encode(front.astype(wide).reshape(1, -1))[0]
            got = all_gather_array(message[None], axis, 0, inner)
            rows = codec.decode(got, x.size, wide).astype(x.dtype)
            whole[i] = jnp.moveaxis(rows.reshape(-1, *front.shape[1:]), 0, dim)
        # Shards of vectors side by side, one row a device.
        for places in _vectors(shards, shard_dims):
            packed = all_gather_array(
                jnp.concatenate([shards[i] for i in places])[None], axis, 0, inner
            )
            for i, part in _cut(packed, places, [shards[i].size for i in places]):
                whole[i] = part.reshape(-1)
    return whole


def reduce_scatter(
    whole: Sequence[jax.Array],
    shard_dims: ShardDims,
    axis: str,
    algorithm: AllReduceAlgorithm | str = "exact",
    inner: int = 1,
    lanes: int = 1,
) -> list[jax.Array]:
    """Sum each array over an axis, in at least float32, and keep this device's shard.

    Args:
        whole: this device's shares of the sums.
        shard_dims: the sharded dim of each; None leaves it as it is.
        axis: a manual axis.
        algorithm: how matrices are summed; vectors are summed exactly.
        inner: neighbours of the second step of exact sums, after one over devices that
            are so far apart; 1 takes one step.
        lanes: where parts of the last dim are no multiples of so many numbers, that
            dim is moved first before it is scattered.
    """
    devices, parts = lax.axis_size(axis), list(whole)
    method = resolve_algorithm(algorithm)
    # In at least float32: sums of 16 bits lose small gradients.
    full = [x.astype(accumulation_dtype(x.dtype)) for x in whole]
    packed = defaultdict[Any, list[int]](list)
    with jax.named_scope(f"deal_{axis}"):
        for i, x in enumerate(full):
            dim = shard_dims[i]
            if dim is None:
                continue
            is_exact = x.ndim == 1 or is_complex(x.dtype)
            if not is_exact and not isinstance(method, ExactAllReduce):
                parts[i] = psum_scatter(x, axis, method, dim)
            elif x.ndim == 1 or x.nbytes < PACKED_BYTES:
                packed[x.dtype].append(i)
            else:
                parts[i] = reduce_scatter_array(x, axis, dim, inner, lanes)
        for places in packed.values():
            # Row r has the shards of device r of all these leaves.
            front = {i: jnp.moveaxis(full[i], shard_dims[i] or 0, 0) for i in places}
            rows = [front[i].reshape(devices, -1) for i in places]
            sums = reduce_scatter_array(jnp.concatenate(rows, 1), axis, 0, inner)
            for i, part in _cut(sums, places, [row.shape[1] for row in rows]):
                mine = part.reshape(-1, *front[i].shape[1:])
                parts[i] = jnp.moveaxis(mine, 0, shard_dims[i] or 0)
    return parts


def local_shard(
    whole: Sequence[jax.Array], shard_dims: ShardDims, axis: str
) -> list[jax.Array]:
    """Slice this device's shard out of each array."""
    devices, me = lax.axis_size(axis), lax.axis_index(axis)
    shards = list(whole)
    for i, (x, dim) in enumerate(zip(whole, shard_dims, strict=True)):
        if dim is not None:
            size = x.shape[dim] // devices
            shards[i] = lax.dynamic_slice_in_dim(x, me * size, size, dim)
    return shards


def all_gather_array(
    x: jax.Array, axis: str, dim: int = 0, inner: int = 1
) -> jax.Array:
    """All-gather one array along a dim.

    Args:
        x: this device's part.
        axis: a manual axis.
        dim: the dim that is sliced.
        inner: neighbours of the first step, as of `all_gather`.
    """
    # Floats of 16 bits are sent as bits: a backend might widen them on the way.
    is_short = x.dtype.itemsize == 2
    whole = lax.bitcast_convert_type(x, jnp.uint16) if is_short else x
    # First among neighbours, whose parts lie side by side.
    steps = _step_groups(axis, inner)[::-1] if inner > 1 else [None]
    for groups in steps:
        whole = lax.all_gather(
            whole, axis, axis=dim, tiled=True, axis_index_groups=groups
        )
    return lax.bitcast_convert_type(whole, x.dtype) if is_short else whole


def reduce_scatter_array(
    x: jax.Array, axis: str, dim: int, inner: int = 1, lanes: int = 1
) -> jax.Array:
    """Sum one array over an axis, in at least float32, scattered along a dim.

    Args:
        x: this device's share of the sum.
        axis: a manual axis.
        dim: the dim that is scattered.
        inner: neighbours of the second step, as of `reduce_scatter`.
        lanes: numbers of the last dim, as of `reduce_scatter`.
    """
    full = x.astype(accumulation_dtype(x.dtype))
    part = x.shape[dim] // lax.axis_size(axis)
    if dim == x.ndim - 1 > 0 and part % lanes:
        # Moved first in memory too: a compiler sees through a transpose.
        rows = with_layout_constraint(
            jnp.moveaxis(full, dim, 0), Layout(tuple(range(x.ndim)))
        )
        # In a dim of their own, so that no part begins inside of a tile of 8 rows.
        blocks = rows.reshape(-1, part, *rows.shape[1:])
        mine = reduce_scatter_array(blocks, axis, 0, inner)
        return jnp.moveaxis(mine.reshape(part, *rows.shape[1:]), 0, dim)
    if inner == 1:
        return lax.psum_scatter(full, axis, scatter_dimension=dim, tiled=True)
    # First over devices that are `inner` apart: then neighbours have the parts of one
    # place, and each ends with the part of its own index.
    for groups in _step_groups(axis, inner):
        full = lax.psum_scatter(
            full, axis, scatter_dimension=dim, tiled=True, axis_index_groups=groups
        )
    return full


def step_axes(axis: str, inner: int) -> tuple[str, str]:
    """Return the parts of an axis over which the two steps of a scatter go.

    Those of a gather are the same, in reverse.

    >>> step_axes("fsdp", 4)
    ('fsdp[::4]', 'fsdp[4]')
    """
    return strided_axis_name(axis, inner), sub_axis_name(axis, inner)


def _step_groups(axis: str, inner: int) -> list[list[list[int]]]:
    """Return the groups of devices of both steps: `inner` apart, and neighbours."""
    devices = lax.axis_size(axis)
    far = [list(range(start, devices, inner)) for start in range(inner)]
    near = [list(range(i, i + inner)) for i in range(0, devices, inner)]
    return [far, near]


def _cut(
    packed: jax.Array, places: list[int], sizes: list[int]
) -> Iterator[tuple[int, jax.Array]]:
    """Yield the columns of each packed vector, with its index."""
    start = 0
    for place, size in zip(places, sizes, strict=True):
        yield place, packed[:, start : start + size]
        start += size


def _matrices(leaves: Sequence[Any], dims: ShardDims) -> list[int]:
    return [i for i, x in enumerate(leaves) if dims[i] is not None and x.ndim > 1]


def _vectors(leaves: Sequence[Any], dims: ShardDims) -> list[list[int]]:
    """List the indices of sharded vectors, grouped by dtype."""
    places = defaultdict(list)
    for i, x in enumerate(leaves):
        if dims[i] is not None and x.ndim == 1:
            places[x.dtype].append(i)
    return list(places.values())
