"""All-reduce algorithms: what each moves, and what a lossy one leaves out.

A lossy all-reduce is known by two arrays: `total`, the same bits on every device, and
`sent`, this device's contribution to it. What a device keeps is its *residual*,
`x - sent`; nothing is lost where

    sum over devices of sent = total,

so total and residuals together are the exact sum. Error feedback adds the residual to
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

from jaxdist.core.dtypes import MAX_VECTOR_ELEMENTS, accumulation_dtype
from jaxdist.core.errors import BadInput

Axes = tuple[str, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The result of one collective on a device."""

    kind: str
    """Kind of collective, as the compiler names it."""
    axes: Axes
    """Axes it runs over, outermost first."""
    payload_bytes: int
    """Bytes of its results on one device."""
    arrays: int = 1
    """Number of collectives that share the bytes: the permutes of a schedule."""


@dataclass(frozen=True, kw_only=True)
class AllReduceResult:
    """Arrays summed over an axis."""

    total: list[jax.Array]
    """The sums, the same on every device along the axis."""
    contributions: list[jax.Array]
    """What this device contributed to them."""
    state: list[jax.Array]
    """State of the algorithm for the next call."""


class AllReduceAlgorithm(abc.ABC):
    """A way to sum a list of arrays over mesh axes; a frozen dataclass."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the algorithm in a plan: `int8`."""

    @property
    def lossless(self) -> bool:
        """Whether everything is sent, so that residuals are zero."""
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
            state: what `init_state` or the last call returned.
            step: int32 scalar, the number of calls before.
            axes: manual axes, outermost first, more than one device along them.
        """

    @abc.abstractmethod
    def payloads(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the collectives of `all_reduce`.

        Args:
            shapes: of the arrays.
            dtype: of their numbers.
            sizes: {axis: devices along it} of the axes, outermost first.
        """

    def init_state(self, shapes: Sequence[Shape]) -> list[jax.Array]:
        """Return the state before the first call; most algorithms have none."""
        del shapes
        return []


class FlatAllReduce(AllReduceAlgorithm):
    """An algorithm that sums its arrays as one vector."""

    def all_reduce(
        self,
        leaves: Sequence[jax.Array],
        state: Sequence[jax.Array],
        step: jax.Array,
        axes: Axes,
    ) -> AllReduceResult:
        """Concatenate the arrays, sum the vector, and split it again."""
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
        """Yield the collectives of the whole vector.

        Raises:
            BadInput: the vector has more elements than int32 can index.
        """
        # Arrays are summed in at least float32, whatever their dtype.
        numbers = sum(math.prod(shape) for shape in shapes)
        check_index_count(self.name, self.index_count(numbers, sizes))
        return self.vector_payloads(numbers, accumulation_dtype(dtype).itemsize, sizes)

    @abc.abstractmethod
    def all_reduce_vector(
        self, x: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Sum a vector [n]; return the total and what this device sent, [n] each."""

    def index_count(self, elements: int, sizes: Mapping[str, int]) -> int:
        """Return how many indices a sum uses, those of empty slots included."""
        del sizes
        return elements

    @abc.abstractmethod
    def vector_payloads(
        self, elements: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the collectives of a vector of so many elements."""


class ReduceScatterAllReduce(FlatAllReduce):
    """An algorithm whose first half is a reduce-scatter."""

    @abc.abstractmethod
    def reduce_scatter(
        self, rows: jax.Array, step: jax.Array, axes: Axes
    ) -> tuple[jax.Array, jax.Array]:
        """Sum rows [P, m] over P devices; each keeps the row of its rank.

        Returns:
            This device's part [m], and its contributions to all parts, [P, m].
        """

    @abc.abstractmethod
    def reduce_scatter_payloads(
        self, row: int, itemsize: int, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the collectives of `reduce_scatter` for rows of so many elements."""


def concatenate_flat(arrays: Sequence[jax.Array]) -> jax.Array:
    """Return arrays of one dtype as one vector.

    >>> concatenate_flat([jnp.ones((2, 2)), jnp.zeros(1)]).tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    # Not a concatenation: XLA's CPU backend fuses one with what makes its parts, passes
    # over the vector once and loads each part all along it, under a mask. Where no
    # memory is mapped behind a part, a masked load is no error, but takes hundreds of
    # cycles: 1.2 million numbers in five parts took 0.9 ms or 12, as the parts lay (2
    # shared AMD EPYC cores, 2026-11-23).
    size, dtype = sum(x.size for x in arrays), arrays[0].dtype
    # Behind a barrier: zeros that the compiler knows it would pad the first part with.
    vector, start = lax.optimization_barrier(jnp.zeros(size, dtype)), 0
    for x in arrays:
        vector = lax.dynamic_update_slice(vector, x.reshape(-1), (start,))
        start += x.size
    return vector


def unflatten(flat: jax.Array, like: Sequence[jax.Array]) -> list[jax.Array]:
    """Split a vector into arrays of the shapes of `like`."""
    parts, start = [], 0
    for x in like:
        parts.append(flat[start : start + x.size].reshape(x.shape))
        start += x.size
    return parts


def reduce_scatter_array(x: jax.Array, devices: int) -> jax.Array:
    """Pad a vector with zeros and split it into rows, one a device."""
    row = -(-x.size // devices)
    return jnp.pad(x, (0, devices * row - x.size)).reshape(devices, row)


def nan_where_not_finite(x: jax.Array) -> jax.Array:
    """Return a scalar that is 0, or NaN if an element of `x` is not finite."""
    # 0 x inf is NaN.
    return jnp.max(jnp.abs(x), initial=0) * 0


def density_to_k(density: float, elements: int) -> int:
    """Return how many of so many elements are sent, at least one if there are any.

    >>> density_to_k(0.01, 1000), density_to_k(0.01, 3), density_to_k(1.0, 3)
    (10, 1, 3)
    """
    return min(elements, max(1, round(density * elements)))


def check_density(density: float) -> None:
    """Refuse to send no element, or more than there are.

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


def check_index_count(name: str, count: int) -> None:
    """Refuse a vector whose elements int32 cannot index.

    Args:
        name: of the algorithm.
        count: indices that it uses.

    Raises:
        BadInput: there are too many.
    """
    if count > MAX_VECTOR_ELEMENTS:
        raise BadInput(
            f"a vector is too long to be summed by {name}",
            rule="its offsets and indices are int32, one beyond the vector for each "
            "slot that may stay empty",
            values=f"{count:,} indices, {MAX_VECTOR_ELEMENTS:,} at most",
            remedy=(
                "plan.reduce.algorithm=exact",
                "plan.mesh.fsdp or plan.mesh.tensor: devices sum parts of it",
            ),
        )


def devices_along(sizes: Mapping[str, int]) -> int:
    """Count the devices along all these axes."""
    return math.prod(sizes.values())


def axis_rank(axes: Axes) -> jax.Array:
    """Return this device's rank along the axes, outermost first."""
    return lax.axis_index(axes)
