"""ScaleCom: one device's top-k indices, used by all, so that sums stay sparse.

    all-reduce   k indices: those of device `step mod P`, zeros from the others
    all-reduce   k values at these indices

The bytes do not grow with P, 2 (P - 1) / P x 8 k. It is a good choice where gradients
of different devices are alike, as in large batches.

Source: Chen et al. 2020, arXiv:2104.11125, algorithm 1 (ScaleCom, CLT-k).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.compress.method import (
    Axes,
    FlatAllReduce,
    Payload,
    axis_rank,
    check_density,
    density_to_k,
    nan_where_not_finite,
)
from jaxdist.collectives.compress.top_k_selection import top_k


@dataclass(frozen=True, kw_only=True)
class SharedTopK(FlatAllReduce):
    """The indices of one device's largest elements, another device each step."""

    density: float = 0.01
    """Share of the elements that is sent."""

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "aligned"

    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Agree on indices, and sum the values there."""
        _, mine = top_k(x[None], density_to_k(self.density, x.size))
        # Devices lead in turn, so that no device's gradient decides alone. The indices
        # of the others are zeros, and the sum hands those of the leader out.
        leads = axis_rank(axes) == step % lax.axis_size(axes)
        where = lax.psum(jnp.where(leads, mine[0], 0), axes)
        values = x.at[where].get(mode="fill", fill_value=0)
        summed = lax.psum(jnp.append(values, nan_where_not_finite(x)), axes)
        # Empty slots have indices beyond the end, which are dropped.
        zeros = jnp.zeros_like(x)
        total, sent = (
            zeros.at[where].set(own, mode="drop", unique_indices=True)
            for own in (summed[:-1], values)
        )
        return total + summed[-1], sent

    def index_count(self, elements: int, sizes: Mapping[str, int]) -> int:
        """Return the elements, and the slots that may stay empty."""
        return elements + density_to_k(self.density, elements)

    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the sums of indices and of values."""
        count = density_to_k(self.density, elements)
        size = 4 * count + itemsize * (count + 1)
        yield Payload(kind="all-reduce", axes=tuple(sizes), payload_bytes=size)
