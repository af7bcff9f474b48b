"""Pooling over windows or over all positions, of images that may be split."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.layers import halo
from jaxdist.layers.halo import Rows, Split
from jaxdist.layers.tensor_role import Role
from jaxdist.layers.valid_rows import fill_padding, prepare_windows, zero_padding
from jaxdist.layers.window import Padding, Windows, make_windows


def max_over_windows(x: jax.Array, windows: Windows, pad_value: float) -> jax.Array:
    """Return the maximum of each window; that of one with a NaN in it is NaN.

    Args:
        x: block `[B, ..., C]`, its halos fetched.
        windows: over each dim between batch and channels; pads along a dim with an axis
            are in the block already.
        pad_value: what is beyond the edges.

    >>> from jaxdist.layers.window import Window
    >>> x = jnp.float32([[[1], [3], [2], [2]]])
    >>> max_over_windows(x, (Window(4, 2, 2),), 0.0).ravel()
    Array([3., 2.], dtype=float32)
    """
    # A chain of comparisons, not lax.reduce_window: its gradient goes to one row by a
    # select, and XLA's CPU backend compiles it into fast loops. The last dim first: of
    # several largest, the first row's is found last, and stays.
    for dim, window in reversed(list(enumerate(windows, start=1))):
        if window.axis is None and any(window.pads):
            pads = [(*window.pads, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
            x = lax.pad(x, jnp.asarray(pad_value, x.dtype), pads)
        reach = x.shape[dim] - window.extent + 1
        taps = (
            lax.slice_in_dim(x, tap, tap + reach, window.stride, dim)
            for tap in range(window.extent)
        )
        most = next(taps)
        for tap in taps:
            most = jnp.where((tap > most) | jnp.isnan(tap), tap, most)
        x = most
    return x


class Pool(nnx.Module):
    """A window that slides over positions, each channel by itself.

    Along a split dim the rows it needs come from the neighbours, and only the global
    edges are padded. Backward, their gradients go back the same way: as many bytes.

    Args:
        window: rows and columns of the window, or one number for all dims.
        strides: rows between two outputs.
        padding: SAME, VALID, or rows: on all sides, of a dim, or (before, behind).
    """

    scope: str = ""
    role: Role | None = None
    """Whether its features are a slice: `inner`. All it does is a feature's own."""
    split: Split = Split()
    """How its images are cut."""
    fill: float = 0.0
    """Value of positions beyond the edges."""

    def __init__(
        self,
        window: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "VALID",
    ) -> None:
        # Tuples: attributes of a module are static and must be hashable.
        self.window = window if isinstance(window, int) else tuple(window)
        self.strides = strides if isinstance(strides, int) else tuple(strides)
        self.padding = padding if isinstance(padding, str | int) else tuple(padding)

    def windows(self, rows: Rows) -> Windows:
        """Return how the window passes over each dim of a whole image.

        Args:
            rows: real rows of the image along each dim between batch and channels.
        """
        return make_windows(rows, self.window, self.strides, self.padding)

    def _fetch(self, x: jax.Array) -> tuple[jax.Array, Windows]:
        """Return the block with its halos, and the windows over it."""
        # Halos behind the padding: a neighbour must not fetch rows that are not real.
        x, windows = prepare_windows(self, x)
        for dim, w in enumerate(windows, start=1):
            if w.axis is not None:
                x = halo.halo_exchange(x, dim, *w.pads, w.axis, self.fill)
        return x, windows


class MaxPool(Pool):
    """The largest value in each window; padding never is."""

    fill = -math.inf

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C]` to `[B, ..., C]` with fewer positions."""
        with jax.named_scope(self.scope or "MaxPool"):
            y = max_over_windows(*self._fetch(x), self.fill)
            # A window over padding alone has no maximum: its -inf would become a NaN.
            split, whole = self.split.dims(x), self.windows(self.split.real(x))
            met = [dim for dim in split if whole[dim - 1].overhang]
            outputs = {dim: whole[dim - 1].outputs for dim in met}
            return fill_padding(y, split, outputs)


class AvgPool(Pool):
    """The mean of each window, in which padding counts as zeros."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[B, ..., C]` to `[B, ..., C]` with fewer positions."""
        with jax.named_scope(self.scope or "AvgPool"):
            extended, windows = self._fetch(x)
            none = (0, 0)
            # In at least float32: a sum of 16 bits stops growing.
            full = extended.astype(accumulation_dtype(x.dtype))
            sums = lax.reduce_window(
                full,
                np.zeros((), full.dtype),
                lax.add,
                (1, *(w.extent for w in windows), 1),
                (1, *(w.stride for w in windows), 1),
                # Along a split dim halos are in the block already.
                (none, *(none if w.axis else w.pads for w in windows), none),
            )
            # Padding counts as zeros, so that every window divides by all of its taps.
            one, dims = isinstance(self.window, int), x.ndim - 2
            taps = (self.window,) * dims if one else self.window
            return (sums / np.prod(taps).item()).astype(x.dtype)


class GlobalMean(nnx.Module):
    """The mean over all positions.

    Where positions are split the sums of all devices are added, and the result is the
    same on each of them.
    """

    scope: str = ""
    split: Split = Split()
    """How its images are cut."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Average `x [B, ..., C]` to `[B, C]`."""
        dims = tuple(range(1, x.ndim - 1))
        with jax.named_scope(self.scope or "GlobalMean"):
            split, real = self.split.dims(x), self.split.real(x)
            if not split:
                # One device has all rows: the mean of NumPy, with its order of sums.
                return x.mean(dims)
            own = zero_padding(x, self.split).astype(accumulation_dtype(x.dtype))
            total = lax.psum(own.sum(dims), tuple(split.values()))
            return (total / math.prod(real)).astype(x.dtype)


class GridMean(nnx.Module):
    """The means over a fixed grid of windows that cover all positions.

    Window i of g along a dim of N rows is rows floor(i N / g) to ceil((i + 1) N / g),
    as torch's adaptive pooling has it; where N = g it is the identity. Where positions
    are split each device adds its rows' part, and the result is the same on each.

    Args:
        grid: windows along each dim between batch and channels.
    """

    scope: str = ""
    split: Split = Split()
    """How its images are cut."""

    def __init__(self, grid: Sequence[int]) -> None:
        self.grid = tuple(grid)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Average `x [B, ..., C]` to `[B, *grid, C]`."""
        with jax.named_scope(self.scope or "GridMean"):
            split, real = self.split.dims(x), self.split.real(x)
            if not split and real == self.grid:
                return x
            y = x.astype(accumulation_dtype(x.dtype))
            for dim, (rows, windows) in enumerate(zip(real, self.grid), start=1):
                block, axis = x.shape[dim], split.get(dim)
                # Each row's weight in each window's mean, `[windows, rows]`; that of
                # padding is 0. A product with them is a sum over this device's rows.
                padded = block * lax.axis_size(axis) if axis else rows
                shares = np.zeros((windows, padded))
                for i in range(windows):
                    start, stop = i * rows // windows, -(-(i + 1) * rows // windows)
                    shares[i, start:stop] = 1 / (stop - start)
                weights = jnp.asarray(shares, y.dtype)
                if axis:
                    first = lax.axis_index(axis) * block
                    weights = lax.dynamic_slice_in_dim(weights, first, block, 1)
                y = jnp.tensordot(weights, y, (1, dim), precision=lax.Precision.HIGHEST)
                y = jnp.moveaxis(y, 0, dim)
            axes = tuple(split.values())
            return (lax.psum(y, axes) if axes else y).astype(x.dtype)
