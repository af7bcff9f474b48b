"""Maxima: the largest number in each window, found dim by dim.

    y[i] = max over t < extent of x[stride i + t - before]

Backward, the gradient goes to the first of several largest in the order of rows, as
that of `lax.reduce_window` does. That one is looked up by a scatter on CPUs; here each
number of a window is compared once for each dim, and what was larger is kept: the two
passes take a tenth of the time (docs/benchmarks.md).
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.layers.window import Window, Windows


def maxima(x: jax.Array, windows: Windows, fill: float) -> jax.Array:
    """Return the maximum of each window; that of one with a NaN in it is NaN.

    Args:
        x: block `[B, ..., C]`, its halos fetched.
        windows: over each dim between batch and channels; pads along a dim with an axis
            are in the block already.
        fill: what is beyond the edges.

    >>> maxima(jnp.float32([[[1], [3], [2], [2]]]), (Window(4, 2, 2),), 0.0).ravel()
    Array([3., 2.], dtype=float32)
    """
    # The last dim first: of several largest, the first row's is found last, and stays.
    for dim, window in reversed(list(enumerate(windows, start=1))):
        x = _along(x, dim, window, fill)
    return x


def _along(x: jax.Array, dim: int, window: Window, fill: float) -> jax.Array:
    """Return the maxima along one dim."""
    if window.axis is None and any(window.pads):
        pads = [(*window.pads, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
        x = lax.pad(x, jnp.asarray(fill, x.dtype), pads)
    reach = x.shape[dim] - window.extent + 1
    taps = (
        lax.slice_in_dim(x, tap, tap + reach, window.stride, dim)
        for tap in range(window.extent)
    )
    most = next(taps)
    for tap in taps:
        most = jnp.where((tap > most) | jnp.isnan(tap), tap, most)
    return most
