"""Upsampling of images that may be split: repeated rows, or interpolated ones."""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxdist.layers.halo import Rows, Split, halo_exchange
from jaxdist.layers.valid_rows import check_even_blocks
from jaxdist.layers.window import Windows, transposed_windows

Interpolation = Literal["nearest", "linear"]


class Upsample(nnx.Module):
    """Make f rows of each row, along every dim between batch and channels.

        nearest    y[i f + p] = x[i]
        linear     y[o] = the line between the rows next to (o + 1/2) / f - 1/2

    as `jax.image.resize` and torch's interpolation without aligned corners have it.
    Beyond the edges the last row goes on. A linear one needs a row of each neighbour
    along a split dim; backward the gradients of these rows go back.

    Args:
        factor: rows of output for each row of input, for all dims or one a dim.
        method: nearest or linear (of two dims bilinear, of three trilinear).
    """

    scope: str = ""
    split: Split = Split()
    """How its images are cut."""

    def __init__(
        self, factor: int | Sequence[int], method: Interpolation = "nearest"
    ) -> None:
        if method not in ("nearest", "linear"):
            raise ValueError(f"method is nearest or linear, not {method}")
        # Tuples: attributes of a module are static and must be hashable.
        self.factor = factor if isinstance(factor, int) else tuple(factor)
        self.method = method

    @property
    def halo(self) -> tuple[int, int]:
        """Rows of the neighbours before and behind that a block needs."""
        return (1, 1) if self.method == "linear" else (0, 0)

    def windows(self, rows: Rows) -> Windows:
        """Return windows of f rows and stride f over each dim of the whole output.

        Args:
            rows: real rows of the input along each dim between batch and channels.
        """
        return transposed_windows(rows, self.factor, self.factor, "SAME")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C]` to `[B, ..., C]` with more positions."""
        with jax.named_scope(self.scope or "Upsample"):
            split, real = self.split.dims(x), self.split.real(x)
            whole = self.windows(real)
            check_even_blocks(self.scope, self.split, split, whole)
            if self.method == "nearest":
                for dim, window in enumerate(whole, start=1):
                    x = _interleave([x] * window.stride, dim)
                return x
            blocks = x.shape[1:-1]
            # All rows of neighbours first, so that they are rows before upsampling.
            for dim in range(1, x.ndim - 1):
                if dim in split:
                    x = halo_exchange(x, dim, 1, 1, split[dim])
                else:
                    pads = [(int(d == dim),) * 2 + (0,) for d in range(x.ndim)]
                    x = lax.pad(x, jnp.zeros((), x.dtype), pads)
            for dim, (block, window) in enumerate(zip(blocks, whole), start=1):
                # The index of each row in the whole image: at its edges, and at the
                # last real row, there is no neighbour.
                shape = [block if d == dim else 1 for d in range(x.ndim)]
                index = lax.broadcasted_iota(jnp.int32, shape, dim)
                if dim in split:
                    first = lax.axis_index(split[dim]).astype(jnp.int32) * block
                    index = index + first
                ends = index == 0, index >= real[dim - 1] - 1
                x = _interpolate(x, dim, window.stride, ends)
            return x


def _interpolate(
    x: jax.Array, dim: int, factor: int, ends: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """Interpolate along one dim, which has a row more at both ends than is returned.

    Args:
        x: `[B, ..., C]`.
        dim: the dim.
        factor: rows of output for each row.
        ends: which rows have none before, and none behind; bool, one place a row.
    """
    rows = x.shape[dim] - 2
    before, here, behind = (
        lax.slice_in_dim(x, start, start + rows, axis=dim) for start in range(3)
    )
    before = jnp.where(ends[0], here, before)
    behind = jnp.where(ends[1], here, behind)
    phases = []
    for phase in range(factor):
        # Where an output lies between the row's middle and that of its neighbour.
        at = (phase + 0.5) / factor - 0.5
        near = before if at < 0 else behind
        phases.append(here * (1 - abs(at)) + near * abs(at) if at else here)
    return _interleave(phases, dim)


def _interleave(phases: Sequence[jax.Array], dim: int) -> jax.Array:
    """Join arrays so that rows of each follow each other in turn."""
    shape = list(phases[0].shape)
    shape[dim] *= len(phases)
    return jnp.stack(phases, dim + 1).reshape(shape)
