"""All-reduce in two phases: rows to their owners, summed there, and gathered again.

    all-to-all   P messages, one of each row; the owner of a row decodes and adds them
    all-gather   the owner's sum, encoded once more

so an element is encoded twice however many devices there are. Bytes a device:
2 (P - 1) messages of n / P elements.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.compress.all_to_all import all_to_all, all_to_all_payload
from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.compress.method import (
    Axes,
    Payload,
    ReduceScatterAllReduce,
    axis_rank,
    devices_along,
    reduce_scatter_array,
)


@dataclass(frozen=True, kw_only=True)
class TwoPhaseAllReduce(ReduceScatterAllReduce):
    """Messages of a codec in two phases."""

    codec: Codec
    """How rows are encoded."""

    @property
    def name(self) -> str:
        """The codec's."""
        return self.codec.name

    def reduce_scatter(
        self, rows: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Exchange the messages and add the decoded rows."""
        messages, row = self.codec.encode(rows), rows.shape[1]
        sent = self.codec.decode(messages, row, rows.dtype)
        got = all_to_all(messages, axes)

        def read(i: jax.Array | int) -> jax.Array:
            one = lax.dynamic_slice_in_dim(got, i, 1)
            return self.codec.decode(one, row, rows.dtype)[0]

        # In a loop: XLA's CPU backend takes ten times as long to sum a leading dim.
        return lax.fori_loop(1, len(got), lambda i, s: s + read(i), read(0)), sent

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Scatter, encode the own part of the sum, and gather."""
        rows = reduce_scatter_array(x, lax.axis_size(axes))
        part, sent = self.reduce_scatter(rows, step, axes)
        whole = self._gathered(part, axes)
        # What the second encoding changes is the owner's residual: it goes into what
        # the owner sent.
        me = axis_rank(axes)
        sent = sent.at[me].add(whole[me] - part)
        return whole.reshape(-1)[: x.size], sent.reshape(-1)[: x.size]

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the two phases."""
        row = -(-elements // devices_along(sizes))
        yield from self.reduce_scatter_payloads(row, itemsize, sizes)
        size = devices_along(sizes) * self.codec.message_bytes(row, itemsize)
        yield Payload(kind="all-gather", axes=tuple(sizes), payload_bytes=size)

    def reduce_scatter_payloads(
        self, row: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the first phase."""
        yield all_to_all_payload(self.codec.message_bytes(row, itemsize), sizes)

    def _gathered(self, part: jax.Array, axes: Axes) -> jax.Array:
        """Return the parts of all devices [P, m], each decoded from one message."""
        message = self.codec.encode(part[None])[0]
        whole = lax.all_gather(message, axes)
        return self.codec.decode(whole, part.size, part.dtype)


@dataclass(frozen=True, kw_only=True)
class MajorityVote(TwoPhaseAllReduce):
    """The sign that most devices have, times the sum of their mean magnitudes.

    Residuals are a device's own: x - scale sign(x).

    Source: Bernstein et al. 2018, arXiv:1802.04434, algorithm 1 (majority vote).
    """

    def reduce_scatter(
        self, rows: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Exchange signs and count votes."""
        messages, row = self.codec.encode(rows), rows.shape[1]
        sent = self.codec.decode(messages, row, rows.dtype)
        got = all_to_all(messages, axes)

        def read(i: jax.Array | int) -> tuple[jax.Array, jax.Array]:
            one = lax.dynamic_slice_in_dim(got, i, 1)
            voted = self.codec.decode(one, row, rows.dtype)[0]
            return jnp.sign(voted), jnp.abs(voted)

        # Magnitudes are summed, signs are voted on.
        votes, lengths = lax.fori_loop(
            1, len(got), lambda i, s: jax.tree.map(jnp.add, s, read(i)), read(0)
        )
        # A tie has no majority: even and odd elements win in turn, step by step, so
        # that ties add no bias.
        turn = (jnp.arange(row, dtype=jnp.int32) + step) % 2
        winner = jnp.where(votes == 0, 1 - 2 * turn.astype(rows.dtype), jnp.sign(votes))
        return winner * lengths, sent

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Count votes, and gather the winners."""
        rows = reduce_scatter_array(x, lax.axis_size(axes))
        part, sent = self.reduce_scatter(rows, step, axes)
        whole = self._gathered(part, axes).reshape(-1)
        return whole[: x.size], sent.reshape(-1)[: x.size]
