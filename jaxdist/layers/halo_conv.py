"""A convolution of split images, whose gradients fetch only the halos they need.

Forward, along a split dim (b rows a block, kernel extent K, stride s, halos lo and hi
of `jaxdist.layers.window`):

    y[o] = sum_k w[k] x[o s + k - lo]

The gradient to the input needs outputs of the neighbours too, (K - 1 - lo) // s before
and ceil(lo / s) behind the block's own, so it exchanges rows of dy and convolves once:

    dx[i] = sum_k w[k] dy[(i + lo - k) / s]

Left to itself, differentiation would instead convolve onto the extended block and send
its edges back: more rows to compute (25 % at 8 rows and K = 3) in a form that XLA's
CPU backend runs off its fast path.
"""

import functools

import jax
from jax import lax

from jaxdist.layers import halo
from jaxdist.layers.window import Window, Windows


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
    return _valid(_extend(x, windows), kernel, windows, groups)


def _forward(
    x: jax.Array, kernel: jax.Array, windows: Windows, groups: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    wide = _extend(x, windows)
    return _valid(wide, kernel, windows, groups), (wide, kernel)


def _backward(
    windows: Windows, groups: int, saved: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    wide, kernel = saved
    to_kernel = jax.linear_transpose(lambda k: _valid(wide, k, windows, groups), kernel)
    (dkernel,) = to_kernel(dy)
    return _input_gradient(dy, kernel, windows, groups), dkernel


halo_conv.defvjp(_forward, _backward)


def _extend(x: jax.Array, windows: Windows) -> jax.Array:
    """Add the halo along split dims; the others are padded by the convolution."""
    for dim, window in enumerate(windows, start=1):
        if window.axis is not None:
            x = halo.exchange(x, dim, *window.pads, window.axis)
    return x


def _valid(
    wide: jax.Array, kernel: jax.Array, windows: Windows, groups: int
) -> jax.Array:
    return lax.conv_general_dilated(
        wide,
        kernel,
        [w.stride for w in windows],
        [(0, 0) if w.axis else w.pads for w in windows],
        rhs_dilation=[w.dilation for w in windows],
        dimension_numbers=channels_last(wide.ndim),
        feature_group_count=groups,
    )


def _input_gradient(
    dy: jax.Array, kernel: jax.Array, windows: Windows, groups: int
) -> jax.Array:
    """Convolve the extended dy, spread by the stride, with the reversed kernel."""
    pads = []
    for dim, window in enumerate(windows, start=1):
        before = 0
        if window.axis is not None:
            before, behind = gradient_halo(window)
            dy = halo.exchange(dy, dim, before, behind, window.axis)
        reach = window.extent - 1
        spread = (dy.shape[dim] - 1) * window.stride + 1
        first = reach - window.pads[0] - before * window.stride
        pads.append((first, window.rows + reach - spread - first))
    return lax.conv_general_dilated(
        dy,
        _reverse(kernel, groups),
        (1,) * len(windows),
        pads,
        lhs_dilation=[w.stride for w in windows],
        rhs_dilation=[w.dilation for w in windows],
        dimension_numbers=channels_last(dy.ndim),
        feature_group_count=groups,
    )


def gradient_halo(window: Window) -> tuple[int, int]:
    """Return the rows of dy that the input gradient needs before and behind a block.

    >>> gradient_halo(Window(8, 3, pads=(1, 1), axis="spatial_h"))
    (1, 1)
    >>> gradient_halo(Window(8, 3, stride=2, pads=(0, 1), axis="spatial_h"))
    (1, 0)
    """
    lo = window.pads[0]
    before = (window.extent - 1 - lo) // window.stride
    return max(before, 0), -(-lo // window.stride)


def _reverse(kernel: jax.Array, groups: int) -> jax.Array:
    """Turn `[..., I/g, O]` into the kernel `[..., O/g, I]` of the transposed map."""
    *taps, features_in, features = kernel.shape
    flipped = lax.rev(kernel, tuple(range(len(taps))))
    split = flipped.reshape(*taps, features_in, groups, features // groups)
    n = len(taps)
    turned = split.transpose(*range(n), n + 2, n + 1, n)
    return turned.reshape(*taps, features // groups, groups * features_in)


def channels_last(rank: int) -> tuple[str, str, str]:
    """Return the dimension numbers of a channels-last convolution.

    >>> channels_last(4)
    ('NHWC', 'HWIO', 'NHWC')
    """
    spatial = "DHW"[5 - rank :]
    return f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"
