"""Chunked top-k: of each chunk of a parameter the largest elements, in 2 bits each.

    all-gather   P messages; of each chunk of w elements k, each as an index of
                 ceil(log2 w) bits and a code of 2 bits: sign, and which of two levels

A chunk is 64 x 64 elements of a matrix whose sides 64 divides; the elements of other
arrays are cut in order into equal chunks of at most 4,096. The levels belong to the
array: the mean magnitude of those sent that lie below the mean of all that are sent,
and that of those above it. Bytes of a message:

    ceil(chunks k (2 + ceil(log2 w)) / 8) + 2 levels

for each array, so at k = 64 of 4,096 a number costs 0.22 bits. An element that is sent
by several devices is added up.

Source: Sarfi et al. 2025, arXiv:2508.15706, section 3 (SparseLoCo).
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.codec import pack_bits, unpack_bits
from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    AllReduceResult,
    Axes,
    Payload,
    Shape,
    check_density,
    check_index_count,
    density_to_k,
    devices_along,
    nan_where_not_finite,
)
from jaxdist.core.dtypes import accumulation_dtype

CHUNK_SIDE: Final = 64
"""Rows and columns of a chunk of a matrix; an index in it has 12 bits."""


@dataclass(frozen=True, kw_only=True)
class ChunkedTopK(AllReduceAlgorithm):
    """The largest elements of each chunk, by all-gather."""

    density: float = 1 / 64
    """Share of a chunk that is sent."""
    quantize: bool = True
    """Whether an element is sent in 2 bits, or whole."""

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "chunked_top_k"

    def all_reduce(
        self,
        leaves: Sequence[jax.Array],
        state: Sequence[jax.Array],
        step: jax.Array,
        axes: Axes,
    ) -> AllReduceResult:
        """Gather the messages of all devices and add them in rank order."""
        # Arrays of one shape are encoded at once: of equal blocks there are many.
        alike = defaultdict[Shape, list[int]](list)
        for place, leaf in enumerate(leaves):
            alike[leaf.shape].append(place)
        stacks = [jnp.stack([leaves[p] for p in places]) for places in alike.values()]
        messages = [jax.vmap(self._encode)(stack) for stack in stacks]
        message = jnp.concatenate([each.reshape(-1) for each in messages])
        told = lax.all_gather(message, axes)

        def decode(flat: jax.Array) -> list[jax.Array]:
            found, start = [], 0
            for stack, like in zip(stacks, messages, strict=True):
                part = flat[start : start + like.size].reshape(like.shape)
                start += like.size
                found.append(
                    jax.vmap(
                        lambda one, shape=stack.shape[1:], dtype=stack.dtype: (
                            self._decode(one, shape, dtype)
                        )
                    )(part)
                )
            return found

        # In rank order, from what was sent: all devices have the same bits.
        total = lax.fori_loop(
            1,
            len(told),
            lambda i, so_far: jax.tree.map(jnp.add, so_far, decode(told[i])),
            decode(told[0]),
        )
        totals, sent = list(leaves), list(leaves)
        for places, sums, own in zip(
            alike.values(), total, decode(message), strict=True
        ):
            for row, place in enumerate(places):
                totals[place], sent[place] = sums[row], own[row]
        return AllReduceResult(total=totals, contributions=sent, state=list(state))

    def payloads(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the gather.

        Raises:
            BadInput: an array has more elements than int32 can index.
        """
        itemsize = accumulation_dtype(dtype).itemsize
        for shape in shapes:
            check_index_count(self.name, math.prod(shape))
        size = sum(self.message_bytes(shape, itemsize) for shape in shapes)
        yield Payload(
            kind="all-gather",
            axes=tuple(sizes),
            payload_bytes=devices_along(sizes) * size,
        )

    def message_bytes(self, shape: Shape, itemsize: int) -> int:
        """Return the bytes of an array's message.

        >>> ChunkedTopK().message_bytes((512, 2048), 4)
        28680
        >>> 512 * 2048 // 64 * (12 + 2) // 8 + 2 * 4
        28680
        """
        chunks, width = _chunking(shape)
        sent = chunks * density_to_k(self.density, width)
        if self.quantize:
            return -(-sent * (self._index_bits(width) + 2) // 8) + 2 * itemsize
        return -(-sent * self._index_bits(width) // 8) + (sent + 1) * itemsize

    def _index_bits(self, width: int) -> int:
        """Return the bits of an index; where all is sent there is none."""
        return (width - 1).bit_length() if self._count(width) < width else 0

    def _count(self, width: int) -> int:
        return density_to_k(self.density, width)

    def _encode(self, x: jax.Array) -> jax.Array:
        """Return the message of an array, uint8."""
        rows = _to_chunks(x)
        width, flag = rows.shape[1], nan_where_not_finite(x)
        if self._count(width) == width:
            where = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), rows.shape)
        else:
            # Chunks are short, so the library's selection is exact and cheap: of equal
            # elements, as zeros are, the first.
            where = lax.top_k(jnp.abs(rows), self._count(width))[1]
        values = jnp.take_along_axis(rows, where, axis=1)
        bits = self._index_bits(width)
        fields = lax.bitcast_convert_type(where, jnp.uint32)
        if not self.quantize:
            words = [pack_bits(fields.reshape(1, -1), bits)[0]] if bits else []
            ends = jnp.append(values.reshape(-1), flag)
        else:
            size = jnp.abs(values)
            high = size > jnp.mean(size)
            below = (values < 0).astype(jnp.uint32)
            code = below << np.uint32(1) | high.astype(jnp.uint32)
            packed = fields << np.uint32(2) | code if bits else code
            words = [pack_bits(packed.reshape(1, -1), bits + 2)[0]]
            # The mean of a part is the level that errs least, and with it the mean
            # magnitude is sent exactly.
            levels = [
                jnp.sum(size, where=part)
                / jnp.maximum(jnp.sum(part, dtype=size.dtype), 1)
                for part in (~high, high)
            ]
            ends = (jnp.stack(levels) + flag).astype(x.dtype)
        return jnp.concatenate(
            [*words, lax.bitcast_convert_type(ends, jnp.uint8).reshape(-1)]
        )

    def _decode(self, message: jax.Array, shape: Shape, dtype: Any) -> jax.Array:
        """Return what a message says of an array; NaN if it was not finite."""
        chunks, width = _chunking(shape)
        count, bits = self._count(width), self._index_bits(width)
        sent = chunks * count
        floats = 2 if self.quantize else sent + 1
        split = message.size - floats * dtype.itemsize
        ends = lax.bitcast_convert_type(
            message[split:].reshape(floats, dtype.itemsize), dtype
        )
        extra = 2 if self.quantize else 0
        fields = jnp.zeros(sent, jnp.uint32)
        if bits + extra:
            fields = unpack_bits(message[None, :split], bits + extra, sent)[0]
        if self.quantize:
            level = jnp.where(fields & np.uint32(1) != 0, ends[1], ends[0])
            values = jnp.where(fields & np.uint32(2) != 0, -level, level)
        else:
            values = ends[:-1]
        values = values.reshape(chunks, count)
        if bits:
            where = lax.bitcast_convert_type(fields >> np.uint32(extra), jnp.int32)
            row = jnp.arange(chunks, dtype=jnp.int32)[:, None]
            rows = jnp.zeros((chunks, width), dtype)
            rows = rows.at[row, where.reshape(chunks, count)].set(
                values, mode="drop", unique_indices=True
            )
        else:
            rows = values
        return _from_chunks(rows, shape) + nan_where_not_finite(ends)


def _chunking(shape: Shape) -> tuple[int, int]:
    """Return how many chunks an array has, and the elements of one.

    >>> _chunking((512, 2048)), _chunking((100, 100)), _chunking((3,))
    ((256, 4096), (3, 3334), (1, 3))
    """
    size = math.prod(shape)
    chunks = -(-size // CHUNK_SIDE**2)
    return chunks, -(-size // chunks)


def _tiles(shape: Shape) -> tuple[int, int, int, int] | None:
    """Return a matrix's rows of tiles, rows in one, and the same of columns."""
    # Of a convolution kernel the columns are its outputs.
    rows, cols = math.prod(shape[:-1]), shape[-1] if shape else 1
    if rows % CHUNK_SIDE or cols % CHUNK_SIDE:
        return None
    return rows // CHUNK_SIDE, CHUNK_SIDE, cols // CHUNK_SIDE, CHUNK_SIDE


def _to_chunks(x: jax.Array) -> jax.Array:
    """Return the chunks of an array, [chunks, w]; zeros fill the last."""
    chunks, width = _chunking(x.shape)
    if tiles := _tiles(x.shape):
        return x.reshape(tiles).swapaxes(1, 2).reshape(chunks, width)
    return jnp.pad(x.reshape(-1), (0, chunks * width - x.size)).reshape(chunks, width)


def _from_chunks(rows: jax.Array, shape: Shape) -> jax.Array:
    """Return the array of its chunks."""
    if tiles := _tiles(shape):
        down, high, across, wide = tiles
        return rows.reshape(down, across, high, wide).swapaxes(1, 2).reshape(shape)
    return rows.reshape(-1)[: math.prod(shape)].reshape(shape)
