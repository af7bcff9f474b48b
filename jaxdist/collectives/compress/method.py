"""Methods: ways to sum values over an axis, each with what it moves and what it leaves.

A lossy sum is known by two arrays: `total`, the same bits on every device, and `sent`,
what this device put into it. What a device keeps is its *residual*, `x - sent`; nothing
is lost where

    sum over devices of sent = total,

so total and residuals together are what there was. Error feedback adds the residual to
the next values (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", section 3).
Where the exact sum is not finite, `total` is NaN.
"""

import abc
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives.flat_buffer import concatenate_flat
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput

Axes = tuple[str, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What one collective brings to a device."""

    kind: str
    """Collective, as the compiler names it."""
    axes: Axes
    """Axes it runs over, outermost first."""
    payload_bytes: int
    """Bytes of its results on one device."""
    arrays: int = 1
    """How many follow one another: the permutes of a step list."""


@dataclass(frozen=True, kw_only=True)
class AllReduceResult:
    """Arrays summed over an axis."""

    total: list[jax.Array]
    """The sums, the same on every device along the axis."""
    contributions: list[jax.Array]
    """What this device put into them."""
    state: list[jax.Array]
    """What the method needs to know the next time."""


class AllReduceAlgorithm(abc.ABC):
    """A way to sum a list of arrays over an axis; a frozen dataclass."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What people call it: `int8`."""

    @property
    def lossless(self) -> bool:
        """Whether everything is sent, so that nothing is ever left."""
        return False

    @abc.abstractmethod
    def all_reduce(
        self,
        leaves: Sequence[jax.Array],
        state: Sequence[jax.Array],
        step: jax.Array,
        axes: Axes,
    ) -> AllReduceResult:
        """Sum each array over the axes, inside a `shard_map` that is manual over them.

        Args:
            leaves: this device's values, float32 or float64.
            state: what `init_state` or the last call gave.
            step: int32 scalar, how often the method was called before.
            axes: manual axes, outermost first, more than one device along them.
        """

    @abc.abstractmethod
    def payloads(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield what `all_reduce` moves.

        Args:
            shapes: of the arrays.
            dtype: of their numbers.
            sizes: {axis: devices along it} of the axes, outermost first.
        """

    def init_state(self, shapes: Sequence[Shape]) -> list[jax.Array]:
        """Return the memory before the first call; most methods have none."""
        del shapes
        return []


class FlatAllReduce(AllReduceAlgorithm):
    """A method that sees its arrays as one vector."""

    def all_reduce(
        self,
        leaves: Sequence[jax.Array],
        state: Sequence[jax.Array],
        step: jax.Array,
        axes: Axes,
    ) -> AllReduceResult:
        """Join the arrays, sum the vector, and cut it again."""
        whole = concatenate_flat(leaves)
        total, sent = self.all_reduce_vector(whole, step, axes)
        return AllReduceResult(
            total=unflatten(total, leaves),
            contributions=unflatten(sent, leaves),
            state=[],
        )

    def payloads(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield what a vector of all numbers moves."""
        numbers = sum(math.prod(shape) for shape in shapes)
        return self.vector_payloads(numbers, accumulation_dtype(dtype).itemsize, sizes)

    @abc.abstractmethod
    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Sum a vector [n]; return the total and what this device sent, [n] each."""

    @abc.abstractmethod
    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield what a vector of so many numbers moves."""


class ReduceScatterAllReduce(FlatAllReduce):
    """A method whose first half leaves each device its part of the sum."""

    @abc.abstractmethod
    def reduce_scatter(
        self, rows: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Sum rows [P, m] over P devices; return row `rank` of it, and what was sent.

        Returns:
            This device's part [m], and what it put into all parts, [P, m].
        """

    @abc.abstractmethod
    def reduce_scatter_payloads(
        self, row: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield what `reduce_scatter` moves for rows of so many numbers."""


def unflatten(flat: jax.Array, like: Sequence[jax.Array]) -> list[jax.Array]:
    """Cut a vector into arrays of the shapes that were joined."""
    parts, start = [], 0
    for x in like:
        parts.append(flat[start : start + x.size].reshape(x.shape))
        start += x.size
    return parts


def reduce_scatter_array(x: jax.Array, devices: int) -> jax.Array:
    """Pad a vector with zeros and deal it out in rows, one a device."""
    row = -(-x.size // devices)
    return jnp.pad(x, (0, devices * row - x.size)).reshape(devices, row)


def nan_where_not_finite(x: jax.Array) -> jax.Array:
    """Return a scalar that is 0, or NaN where a number of `x` is not finite.

    A sum of numbers that are each times zero: 0 x inf is NaN.
    """
    return jnp.max(jnp.abs(x), initial=0) * 0


def density_to_k(density: float, elements: int) -> int:
    """Return how many of so many numbers are sent, at least one where there are any.

    >>> density_to_k(0.01, 1000), density_to_k(0.01, 3), density_to_k(1.0, 3)
    (10, 1, 3)
    """
    return min(elements, max(1, round(density * elements)))


def check_density(density: float) -> None:
    """Refuse to send no number, or more than there are.

    Raises:
        BadInput: naming the legal range.
    """
    if not 0 < density <= 1:
        raise BadInput(
            "the density of a sparse sum is out of range",
            rule="0 < density <= 1: the part of the numbers that is sent",
            values=f"density = {density}",
            remedy="density=0.01",
        )


def devices_along(sizes: Mapping[str, int]) -> int:
    """Count the devices along all these axes."""
    return math.prod(sizes.values())


def axis_rank(axes: Axes) -> jax.Array:
    """Return this device's place along the axes, outermost first."""
    return lax.axis_index(axes)
