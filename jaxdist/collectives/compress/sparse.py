"""Ok-Topk: a sparse all-reduce in two phases, of the largest elements.

    all-to-all   k / P values and indices to the owner of each part, who adds them
    all-gather   the k / P largest sums of each part, to everyone

Words a device sends: 4 k (P - 1) / P for k = density x n, whatever P is. What does not
fit into the slots is not sent: it is the residual of the device that has it, a sum that
of its owner.

Source: Li and Hoefler 2022, arXiv:2201.07598 (Ok-Topk: split, reduce, gather); parts
that take turns, in place of regions that are balanced again and again, are ours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.compress.all_to_all import all_to_all
from jaxdist.collectives.compress.method import (
    Axes,
    Payload,
    axis_rank,
    density_to_k,
    devices_along,
    nan_where_not_finite,
)
from jaxdist.collectives.compress.reduce_scatter_allgather import TwoPhaseAllReduce
from jaxdist.collectives.compress.top_k_codec import (
    TopKCodec,
    accumulate_sparse,
    decode_sparse,
    encode_sparse,
)
from jaxdist.collectives.compress.top_k_selection import (
    set_bit_positions,
    threshold_bitmask,
)

_STRETCH = 32  # the bits of a word, so that a mask is distributed by whole words


@dataclass(frozen=True, kw_only=True)
class OkTopK(TwoPhaseAllReduce):
    """The largest elements, summed by owners; a reduce-scatter keeps the given rows."""

    codec: TopKCodec = field(default_factory=TopKCodec)
    """How many elements are sent."""

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "sparse"

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Select, exchange, add, select again, and gather."""
        devices = lax.axis_size(axes)
        # Whole stretches for every owner.
        whole = jnp.pad(x, (0, -x.size % (devices * _STRETCH)))
        row, zeros = whole.size // devices, jnp.zeros_like(whole)

        # Indices in each owner's part that are sent, int32 [P, k / P].
        slots = density_to_k(self.codec.density, row)
        if slots == row:
            every = jnp.arange(row, dtype=jnp.int32)
            where = jnp.broadcast_to(every, (devices, row))
        else:
            words = threshold_bitmask(whole, devices * slots).reshape(-1, devices).T
            where = jax.vmap(lambda own: set_bit_positions(own, slots))(words)
        owners = jnp.arange(devices, dtype=jnp.int32)[:, None]
        there = _global_index(where, owners, devices)
        values = whole.at[there].get(mode="fill", fill_value=0)

        flags = jnp.broadcast_to(nan_where_not_finite(x), devices)
        got = all_to_all(encode_sparse(values, where, flags), axes)
        part = accumulate_sparse(jnp.zeros(row, x.dtype), got[0])
        part = lax.fori_loop(
            1, devices, lambda i, so_far: accumulate_sparse(so_far, got[i]), part
        )
        message = self.codec.encode(part[None])[0]
        told = lax.all_gather(message, axes)

        def put(r: jax.Array | int, total: jax.Array) -> jax.Array:
            sums, local, flag = decode_sparse(told[r], x.dtype)
            at = _global_index(local, r, devices)
            spread = total.at[at].add(sums, mode="drop", unique_indices=True)
            return spread + flag

        total = lax.fori_loop(1, devices, put, put(0, zeros))
        sent = zeros.at[there].set(values, mode="drop", unique_indices=True)
        # Sums that the owner received and did not gather are its own residual.
        late = accumulate_sparse(jnp.zeros_like(part), message) - part
        turns = sent.reshape(-1, devices, _STRETCH)
        sent = turns.at[:, axis_rank(axes)].add(late.reshape(-1, _STRETCH)).reshape(-1)
        return total[: x.size], sent[: x.size]

    def index_count(self, elements: int, sizes: Mapping[str, int]) -> int:
        """Return the padded elements, and the slots that may stay empty."""
        devices = devices_along(sizes)
        row = -(-elements // (devices * _STRETCH)) * _STRETCH
        # Indices of empty slots follow those of a row, up to a whole stretch.
        return devices * (row + density_to_k(self.codec.density, row) + _STRETCH)

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the two phases of the padded vector."""
        turn = devices_along(sizes) * _STRETCH
        yield from super().vector_payloads(-(-elements // turn) * turn, itemsize, sizes)


def _global_index(local: jax.Array, owner: jax.Array | int, devices: int) -> jax.Array:
    """Return the index in the vector of elements of an owner's part.

    >>> _global_index(jnp.array([0, 31, 32]), 1, 4).tolist()
    [32, 63, 160]
    """
    # Large elements lie together, as those of one layer do, and equal regions of the
    # vector would give one owner most of them. So owners take stretches in turn.
    block, place = local // _STRETCH, local % _STRETCH
    return (block * devices + owner) * _STRETCH + place
