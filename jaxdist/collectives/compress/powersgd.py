"""PowerSGD: every matrix as a product of two thin ones, found by one power step.

    P = sum over devices of M Q,  orthonormal
    R = sum over devices of M^T P
    total = P R^T,   sent = P P^T M

for a matrix M [rows, cols] of each device, a thin P [rows, r] and Q, R [cols, r]. What
a device sent is the projection of its own matrix, so its residual holds nothing of the
others', and what all sent is the total. R with columns of length 1 is the Q of the next
step. Bytes a device: 2 (P - 1) / P x r (rows + cols) elements a matrix.

Source: Vogels et al. 2019, arXiv:1905.13727, algorithm 1; the local residual is ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    AllReduceResult,
    Axes,
    Payload,
    Shape,
    unflatten,
)
from jaxdist.collectives.compress.top_k_selection import hash_uint32
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput

_TILE: Final = 128
# Columns of zeros stay zero, divided by it.
_TINY: Final = 1e-30


@dataclass(frozen=True, kw_only=True)
class PowerSGD(AllReduceAlgorithm):
    """Matrices of low rank; vectors and scalars are summed as they are."""

    rank: int = 4
    """Columns of the thin matrices."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise BadInput(
                "PowerSGD has no such rank",
                rule="a matrix of low rank has at least one column",
                values=f"rank = {self.rank}",
                remedy="rank=4",
            )

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return "power"

    def init_state(self, shapes: Sequence[Shape]) -> list[jax.Array]:
        """Return a Q of zeros for each matrix: `all_reduce` draws columns of zeros."""
        # Vectors have no low rank.
        thick = [self._thin(shape) for shape in shapes if len(shape) > 1]
        return [jnp.zeros((cols, self.rank), jnp.float32) for _, cols in thick]

    def all_reduce(
        self,
        leaves: Sequence[jax.Array],
        state: Sequence[jax.Array],
        step: jax.Array,
        axes: Axes,
    ) -> AllReduceResult:
        """Sum matrices by their factors, and the rest as it is."""
        flat = [x for x in leaves if x.ndim < 2]
        matrices = [x.reshape(self._thin(x.shape)) for x in leaves if x.ndim > 1]
        # Columns of Q that are zero are drawn, the same on every device.
        first = []
        for q, m in zip(state, matrices):
            place = jnp.arange(q.size, dtype=jnp.uint32).reshape(q.shape)
            # From 1 on: the hash of 0 is 0.
            drawn = hash_uint32(place + np.uint32(1)).astype(q.dtype)
            drawn = drawn / np.float32(2**31) - 1
            first.append(_unit(jnp.where((q != 0).any(0), q, drawn)).astype(m.dtype))

        # All P travel as one array, with vectors and scalars; then all R.
        thin = [m @ q for m, q in zip(matrices, first)]
        *bases, short = _summed([*thin, *flat], len(thin), axes)
        bases = [orthonormalize(p) for p in bases]
        own = [transpose_matmul(m, p) for m, p in zip(matrices, bases)]
        *coefficients, _ = _summed(own, len(own), axes)
        total = [p @ r.T for p, r in zip(bases, coefficients)]
        sent = [p @ r.T for p, r in zip(bases, own)]

        # A column of R that is zero, or not finite, leaves that of Q as it was.
        kept = []
        for q, r in zip(state, coefficients):
            new = _unit(r.astype(q.dtype))
            good = jnp.isfinite(new).all(0) & (new != 0).any(0)
            kept.append(jnp.where(good, new, q))
        return AllReduceResult(
            total=_together(leaves, total, short),
            contributions=_together(leaves, sent, flat),
            state=kept,
        )

    def payloads(
        self, shapes: Sequence[Shape], dtype: Any, sizes: Mapping[str, int]
    ) -> Iterator[Payload]:
        """Yield the two sums of factors, the rest with the first, as one."""
        thin = [self._thin(shape) for shape in shapes if len(shape) > 1]
        short = sum(shape[0] if shape else 1 for shape in shapes if len(shape) < 2)
        numbers = short + sum(self.rank * (rows + cols) for rows, cols in thin)
        # P has `rows x rank` elements, R `cols x rank`.
        size = numbers * accumulation_dtype(dtype).itemsize
        yield Payload(kind="all-reduce", axes=tuple(sizes), payload_bytes=size)

    def _thin(self, shape: Shape) -> tuple[int, int]:
        """Return rows and columns of an array as a matrix, its last dim the columns.

        Raises:
            BadInput: the rank is above that of the matrix.
        """
        # A convolution kernel is a matrix of its window and inputs by its outputs.
        cols, rows = shape[-1], 1
        for dim in shape[:-1]:
            rows *= dim
        if self.rank > min(rows, cols):
            raise BadInput(
                "the rank is above that of the matrix",
                rule="rank <= min(rows, columns), columns being the last dim",
                values=f"rank = {self.rank}, the array {list(shape)} is a matrix of "
                f"{rows} x {cols}",
                remedy=f"rank={max(1, min(rows, cols))}",
            )
        return rows, cols


def transpose_matmul(matrix: jax.Array, thin: jax.Array) -> jax.Array:
    """Return M^T P, [cols, r], in tiles of rows."""
    # XLA's CPU backend takes 15 ms for 2048 x 2048 by 2048 x 4 as one product, and
    # 1.5 ms as 16 that are added.
    rows = len(matrix)
    if rows < 2 * _TILE:
        return (thin.T @ matrix).T
    split = rows // _TILE * _TILE
    tiles = matrix[:split].reshape(-1, _TILE, matrix.shape[1])
    with_each = thin[:split].reshape(-1, _TILE, thin.shape[1])
    whole = jnp.einsum("bij,bir->brj", tiles, with_each).sum(0)
    return (whole + thin[split:].T @ matrix[split:]).T


def orthonormalize(thin: jax.Array) -> jax.Array:
    """Make columns orthonormal by Gram-Schmidt; dependent ones become zero."""
    columns: list[jax.Array] = []
    for i in range(thin.shape[1]):
        column = given = thin[:, i]
        # Twice: once loses orthogonality where columns are nearly parallel.
        for _ in range(2):
            for other in columns:
                column = column - other * jnp.vdot(other, column)
        length, before = jnp.linalg.norm(column), jnp.linalg.norm(given)
        # What is left of a dependent column is rounding noise.
        noise = length <= 8 * jnp.finfo(thin.dtype).eps * before
        columns.append(jnp.where(noise, jnp.zeros_like(column), column / length))
    return jnp.stack(columns, axis=1)


def _unit(thin: jax.Array) -> jax.Array:
    """Normalize columns: products of small gradients would underflow."""
    return thin / jnp.maximum(jnp.linalg.norm(thin, axis=0), _TINY)


def _summed(arrays: Sequence[jax.Array], each: int, axes: Axes) -> list[jax.Array]:
    """Sum arrays as one; return the first `each` in their shapes, then the rest."""
    # A network may have no matrix, or nothing but matrices.
    if not arrays:
        return [jnp.zeros(0)]
    summed = lax.psum(jnp.concatenate([x.reshape(-1) for x in arrays]), axes)
    first = unflatten(summed, arrays[:each])
    return [*first, summed[sum(x.size for x in first) :]]


def _together(
    leaves: Sequence[jax.Array], matrices: Sequence[jax.Array], short: Any
) -> list[jax.Array]:
    """Put matrices and vectors back in the order and shapes of the leaves."""
    vectors = [x for x in leaves if x.ndim < 2]
    flat = iter(unflatten(short, vectors) if isinstance(short, jax.Array) else short)
    thick = iter(matrices)
    return [next(flat) if x.ndim < 2 else next(thick).reshape(x.shape) for x in leaves]
