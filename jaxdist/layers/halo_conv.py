"""A convolution of split images, whose gradients fetch only the halos they need.

Forward, along a split dim (b rows a block, kernel extent K, stride s, halos lo and hi
of `jaxdist.layers.window`):

    y[o] = sum_k w[k] x[o s + k - lo]

The gradient to the input needs outputs of the neighbours too, (K - 1 - lo) // s before
and ceil(lo / s) behind the block's own, so it exchanges rows of dy and convolves once:

    dx[i] = sum_k w[k] dy[(i + lo - k) / s]

Left to itself, differentiation would instead convolve onto the extended block and send
its edges back: more rows to compute (25 % at 8 rows and K = 3).

Without a split dim nothing is fetched, and this is `jaxdist.layers.conv_gradients` with
its gradients.
"""

import functools
from dataclasses import replace
from typing import Any

import jax

from jaxdist.layers import halo
from jaxdist.layers.conv_gradients import convolve, input_gradient, kernel_gradient
from jaxdist.layers.window import Window, Windows

Saved = tuple[jax.Array | None, jax.Array | None]
"""The extended input, if the kernel has a gradient; the kernel, if the input has."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def halo_conv(
    x: jax.Array, kernel: jax.Array, windows: Windows, groups: int = 1
) -> jax.Array:
    """Convolve this device's block, fetching halos along split dims.

    Args:
        x: block `[B, ..., C_in]`.
        kernel: `[..., C_in / groups, C_out]`, the dtype of `x`.
        windows: one for each dim between batch and channels.
        groups: feature groups.

    Returns:
        The block of the output, `[B, ..., C_out]`.
    """
    return convolve(_extend(x, windows), kernel, _extended_windows(windows), groups)


def _forward(
    x: Any, kernel: Any, windows: Windows, groups: int
) -> tuple[jax.Array, Saved]:
    """Convolve, and save what the gradients that are asked for need.

    Args:
        x: with `value` and `perturbed`, whether its gradient is asked for.
        kernel: the same.
        windows: as in `halo_conv`.
        groups: as in `halo_conv`.
    """
    # Halos are part of the saved input: the kernel gradient needs no second fetch.
    wide = _extend(x.value, windows)
    y = convolve(wide, kernel.value, _extended_windows(windows), groups)
    return y, (
        wide if kernel.perturbed else None,
        kernel.value if x.perturbed else None,
    )


def _backward(
    windows: Windows, groups: int, saved: Saved, dy: jax.Array
) -> tuple[jax.Array | None, jax.Array | None]:
    wide, kernel = saved
    dx = dkernel = None
    if kernel is not None:
        # The extended dy: its first row is one of the block before, so the input begins
        # as many strides further on.
        over, extended = list(windows), dy
        for dim, window in enumerate(windows, start=1):
            if window.axis is not None:
                before, behind = gradient_halo(window)
                extended = halo.halo_exchange(
                    extended, dim, before, behind, window.axis
                )
                lo = window.pads[0] + before * window.stride
                over[dim - 1] = replace(window, pads=(lo, window.pads[1]))
        dx = input_gradient(extended, kernel, tuple(over), groups)
    if wide is not None:
        dkernel = kernel_gradient(wide, dy, _extended_windows(windows), groups)
    return dx, dkernel


# symbolic_zeros: says which gradients are asked for. The input of the first layer has
# none, and without it the kernel need not be kept.
halo_conv.defvjp(_forward, _backward, symbolic_zeros=True)


def _extend(x: jax.Array, windows: Windows) -> jax.Array:
    """Add the halo along split dims; the others are padded by the convolution."""
    for dim, window in enumerate(windows, start=1):
        if window.axis is not None:
            x = halo.halo_exchange(x, dim, *window.pads, window.axis)
    return x


def _extended_windows(windows: Windows) -> Windows:
    """Return the windows over a block and its halos."""
    return tuple(
        replace(w, rows=w.rows + sum(w.pads), pads=(0, 0)) if w.axis else w
        for w in windows
    )


def gradient_halo(window: Window) -> tuple[int, int]:
    """Return the rows of dy that the input gradient needs before and behind a block.

    >>> gradient_halo(Window(8, 3, pads=(1, 1), axis="spatial_h"))
    (1, 1)
    >>> gradient_halo(Window(8, 3, stride=2, pads=(0, 1), axis="spatial_h"))
    (1, 0)
    """
    lo = window.pads[0]
    # Outputs whose windows reach into this block from the block before, and behind.
    before = (window.extent - 1 - lo) // window.stride
    return max(before, 0), -(-lo // window.stride)
