"""A convolution and its two gradients, all three as convolutions with channels last.

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
    # The kernel [..., I/g, O] of the transposed map: [..., O/g, I], reversed.
    *taps, per_group, features = kernel.shape
    n = len(taps)
    flipped = lax.rev(kernel, tuple(range(n)))
    split = flipped.reshape(*taps, per_group, groups, features // groups)
    turned = split.transpose(*range(n), n + 2, n + 1, n)
    pads = []
    for rows, window in zip(dy.shape[1:-1], windows, strict=True):
        # dy is spread by the stride and padded until the kernel passes over every row
        # of the input once: the outputs are as many as its rows.
        reach = window.extent - 1
        spread = (rows - 1) * window.stride + 1
        first = reach - window.pads[0]
        pads.append((first, window.rows + reach - spread - first))
    return lax.conv_general_dilated(
        dy,
        turned.reshape(*taps, features // groups, groups * per_group),
        (1,) * n,
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
    # [N, ..., C] to [C / g, ..., g N]: the samples are the features that are summed.
    samples, *rows, features = x.shape
    split = x.reshape(samples, *rows, groups, features // groups)
    turned = split.transpose(-1, *range(1, len(rows) + 2), 0)
    pads = []
    for count, window in zip(dy.shape[1:-1], windows, strict=True):
        # The row behind the last that a window reads, less the padding before.
        last = (count - 1) * window.stride + window.extent - window.pads[0]
        pads.append((window.pads[0], last - window.rows))
    dims = tuple(range(1, x.ndim - 1))
    gradient = lax.conv_general_dilated(
        turned.reshape(features // groups, *rows, groups * samples),
        dy.transpose(*dims, 0, -1),
        [w.dilation for w in windows],
        pads,
        rhs_dilation=[w.stride for w in windows],
        dimension_numbers=channels_last(x.ndim),
        feature_group_count=groups,
    )
    return gradient.transpose(*dims, 0, -1)


def channels_last(rank: int) -> tuple[str, str, str]:
    """Return the dimension numbers of a channels-last convolution.

    >>> channels_last(4)
    ('NHWC', 'HWIO', 'NHWC')
    """
    # The last letters: W, HW, DHW.
    spatial = "DHW"[5 - rank :]
    return f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"
