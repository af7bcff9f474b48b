"""A convolution and its two gradients, all three in the one form that is always fast.

With y[o] = sum_k w[k] x[o s + k d - lo] in each dim (stride s, dilation d, rows lo
padded before), of N samples in g groups of features:

    dx[i] = sum_k w[k]^T dy[(i + lo - k d) / s]      a convolution of dy, its rows s
                                                     apart, with the kernel reversed
    dw[k] = sum_o x[o s + k d - lo]^T dy[o]          a convolution of x with dy, its
                                                     taps s apart, over the samples

JAX writes the same sums as convolutions whose dims lie in other orders. XLA's CPU
backend has fast code for one order, channels last, and brings others into it only
outside of loops: in the body of one, a microbatch or a stage, they run 10 to 60 times
slower. So the transposes are written out here. XLA's GPU and TPU compilers fold them
into the convolution again.
"""

import jax
from jax import lax

from jaxdist.layers.window import Windows


def convolve(
    x: jax.Array, kernel: jax.Array, windows: Windows, groups: int = 1
) -> jax.Array:
    """Convolve, channels last.

    Args:
        x: `[N, ..., C_in]`.
        kernel: `[..., C_in / groups, C_out]`, the dtype of `x`.
        windows: one for each dim between samples and channels.
        groups: feature groups.

    Returns:
        `[N, ..., C_out]`.
    """
    return lax.conv_general_dilated(
        x,
        kernel,
        [w.stride for w in windows],
        [w.pads for w in windows],
        rhs_dilation=[w.dilation for w in windows],
        dimension_numbers=channels_last(x.ndim),
        feature_group_count=groups,
    )


def input_gradient(
    dy: jax.Array, kernel: jax.Array, windows: Windows, groups: int = 1
) -> jax.Array:
    """Return the gradient of `convolve` to its input.

    Args:
        dy: gradient to the output, `[N, ..., C_out]`.
        kernel: `[..., C_in / groups, C_out]`.
        windows: as forward.
        groups: feature groups.
    """
    pads = []
    for rows, window in zip(dy.shape[1:-1], windows, strict=True):
        reach = window.extent - 1
        spread = (rows - 1) * window.stride + 1
        first = reach - window.pads[0]
        pads.append((first, window.rows + reach - spread - first))
    return lax.conv_general_dilated(
        dy,
        _transpose_kernel(kernel, groups),
        (1,) * len(windows),
        pads,
        lhs_dilation=[w.stride for w in windows],
        rhs_dilation=[w.dilation for w in windows],
        dimension_numbers=channels_last(dy.ndim),
        feature_group_count=groups,
    )


def kernel_gradient(
    x: jax.Array, dy: jax.Array, windows: Windows, groups: int = 1
) -> jax.Array:
    """Return the gradient of `convolve` to its kernel.

    Args:
        x: the input, `[N, ..., C_in]`.
        dy: gradient to the output, `[N, ..., C_out]`.
        windows: as forward.
        groups: feature groups.
    """
    pads = []
    for rows, window in zip(dy.shape[1:-1], windows, strict=True):
        last = (rows - 1) * window.stride + window.extent - window.pads[0]
        pads.append((window.pads[0], last - window.rows))
    dims = tuple(range(1, x.ndim - 1))
    turned = lax.conv_general_dilated(
        _features_first(x, groups),
        dy.transpose(*dims, 0, -1),
        [w.dilation for w in windows],
        pads,
        rhs_dilation=[w.stride for w in windows],
        dimension_numbers=channels_last(x.ndim),
        feature_group_count=groups,
    )
    return turned.transpose(*dims, 0, -1)


def channels_last(rank: int) -> tuple[str, str, str]:
    """Return the dimension numbers of a channels-last convolution.

    >>> channels_last(4)
    ('NHWC', 'HWIO', 'NHWC')
    """
    spatial = "DHW"[5 - rank :]
    return f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"


def _features_first(x: jax.Array, groups: int) -> jax.Array:
    """Turn `[N, ..., C]` into `[C / g, ..., g N]`: samples are the sum's features."""
    samples, *rows, features = x.shape
    split = x.reshape(samples, *rows, groups, features // groups)
    turned = split.transpose(-1, *range(1, len(rows) + 2), 0)
    return turned.reshape(features // groups, *rows, groups * samples)


def _transpose_kernel(kernel: jax.Array, groups: int) -> jax.Array:
    """Turn `[..., I/g, O]` into the kernel `[..., O/g, I]` of the transposed map."""
    *taps, features_in, features = kernel.shape
    flipped = lax.rev(kernel, tuple(range(len(taps))))
    split = flipped.reshape(*taps, features_in, groups, features // groups)
    n = len(taps)
    turned = split.transpose(*range(n), n + 2, n + 1, n)
    return turned.reshape(*taps, features // groups, groups * features_in)
