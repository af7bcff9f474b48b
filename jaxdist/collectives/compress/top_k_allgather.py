"""Top-k by all-gather: every device gets the largest elements of every other.

    all-gather   P messages of k values and k indices

The bytes a device receives grow with P, 8 (P - 1) k: where k > n / P this moves more
than a dense all-reduce does.

Source: Lin et al. 2018, arXiv:1712.01887 (deep gradient compression).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.compress.method import (
    Axes,
    FlatAllReduce,
    Payload,
    density_to_k,
    devices_along,
)
from jaxdist.collectives.compress.top_k_codec import TopKCodec, accumulate_sparse


@dataclass(frozen=True, kw_only=True)
class TopKAllGather(FlatAllReduce):
    """The largest elements of each device, by all-gather."""

    codec: TopKCodec = field(default_factory=TopKCodec)
    """How many elements are sent."""

    @property
    def name(self) -> str:
        """The codec's."""
        return self.codec.name

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Gather all messages and add them in rank order: all have the same bits."""
        message, zeros = self.codec.encode(x[None])[0], jnp.zeros_like(x)
        # Every device adds all messages itself, so nothing is encoded twice.
        got = lax.all_gather(message, axes)
        first = accumulate_sparse(zeros, got[0])
        total = lax.fori_loop(
            1, len(got), lambda i, so_far: accumulate_sparse(so_far, got[i]), first
        )
        return total, accumulate_sparse(zeros, message)

    def index_count(self, elements: int, sizes: Mapping[str, int]) -> int:
        """Return the elements, and the slots that may stay empty."""
        return elements + density_to_k(self.codec.density, elements)

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the gather."""
        size = devices_along(sizes) * self.codec.message_bytes(elements, itemsize)
        yield Payload(kind="all-gather", axes=tuple(sizes), payload_bytes=size)
