"""Random-k: indices that all devices draw alike, so that values alone are summed.

Bytes a device: 2 (P - 1) / P x k elements.

Source: Wangni et al. 2018, arXiv:1710.09854 (random sparsification).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.method import (
    Axes,
    Payload,
    ReduceScatterAllReduce,
    check_density,
    density_to_k,
    nan_where_not_finite,
)
from jaxdist.collectives.compress.top_k_selection import hash_uint32


@dataclass(frozen=True, kw_only=True)
class RandomK(ReduceScatterAllReduce):
    """A random part of the elements, drawn again at each step."""

    density: float = 0.01
    """Share of the elements that is sent."""
    seed: int = 0
    """Seed of the draws."""

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "random_k"

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Sum the values at indices that all devices know."""
        where = self._places(x.size, step)
        # The flag is summed with the values: NaN on one device is NaN on all.
        values = jnp.append(x[where], nan_where_not_finite(x))
        summed = lax.psum(values, axes)
        zeros = jnp.zeros_like(x)
        total = zeros.at[where].set(summed[:-1], unique_indices=True) + summed[-1]
        return total, zeros.at[where].set(values[:-1], unique_indices=True)

    def reduce_scatter(
        self, rows: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Sum the same indices of each row, to the owner of the row."""
        where = self._places(rows.shape[1], step)
        flags = jax.vmap(nan_where_not_finite)(rows)[:, None]
        values = jnp.concatenate([rows[:, where], flags], axis=1)
        summed = lax.psum_scatter(values, axes)
        part = jnp.zeros_like(rows[0]).at[where].set(summed[:-1], unique_indices=True)
        sent = jnp.zeros_like(rows).at[:, where].set(values[:, :-1])
        return part + summed[-1], sent

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the sum of values and flag."""
        size = itemsize * (density_to_k(self.density, elements) + 1)
        yield Payload(kind="all-reduce", axes=tuple(sizes), payload_bytes=size)

    def reduce_scatter_payloads(
        self, row: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the sum of the values of one row."""
        size = itemsize * (density_to_k(self.density, row) + 1)
        yield Payload(kind="reduce-scatter", axes=tuple(sizes), payload_bytes=size)

    def _places(self, size: int, step: jax.Array) -> jax.Array:
        """Draw different indices in a vector, int32 [k]."""
        # One somewhere in each stretch of n // k, and stretches are shifted by a random
        # amount, so that any element is as likely as any other. All follow from the
        # step: no device has to tell another.
        count = density_to_k(self.density, size)
        stride = size // count
        key = hash_uint32(step.astype(jnp.uint32) + np.uint32(self.seed))
        i = jnp.arange(count, dtype=jnp.uint32)
        inside = hash_uint32(i ^ key) % np.uint32(stride)
        shift = hash_uint32(key) % np.uint32(size)
        # The sum does not wrap at 2^32: place and shift are both below 2^31.
        place = (i * np.uint32(stride) + inside + shift) % np.uint32(size)
        return place.astype(jnp.int32)
