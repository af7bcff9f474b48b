"""Kernel timings: the speed of a device's products and convolutions by their shape.

A kernel is called repeatedly inside one program, a few times and many times, and the
difference is taken: what a program costs around its kernels is in both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxdist.calibrate.synchronized_timing import seconds_per_call
from jaxdist.core.cluster.kernel_timings import KernelTiming
from jaxdist.core.kernel_shape import KernelShape
from jaxdist.layers.conv import Conv
from jaxdist.layers.halo import halo_conv
from jaxdist.layers.window import Window, Windows
from jaxdist.profile.flops import valid_taps
from jaxdist.profile.layer_calls import LayerCall

_ROW_COUNTS: Final = (3, 12, 48, 192, 768)
_FEATURE_SIZES: Final = (64, 256, 1024)
_RECTANGULAR: Final = (
    (48, 1024, 128),
    (48, 128, 1024),
    (192, 128, 512),
    (192, 512, 128),
    (12, 512, 10),
    (1024, 128, 384),
)
"""(rows, features in, features out) of products that are not square."""
_CONVOLUTIONS: Final = (
    (3, 12, 32, 3, 16),
    (3, 48, 32, 1, 16),
    (3, 12, 64, 3, 16),
    (3, 4, 8, 16, 16),
    (3, 8, 16, 16, 16),
    (3, 48, 32, 16, 16),
    (3, 12, 32, 16, 16),
    (3, 12, 16, 16, 32),
    (3, 3, 16, 32, 32),
    (3, 48, 16, 32, 32),
    (3, 12, 8, 32, 64),
    (3, 8, 32, 32, 32),
    (3, 12, 8, 64, 128),
    (3, 8, 28, 64, 64),
    (3, 3, 4, 64, 64),
    (3, 12, 4, 64, 64),
    (3, 48, 4, 64, 64),
    (3, 12, 2, 64, 64),
    (3, 12, 2, 128, 128),
    (3, 12, 4, 128, 128),
    (3, 48, 8, 128, 128),
    (3, 16, 28, 128, 128),
    (5, 12, 16, 16, 32),
    (5, 12, 8, 32, 32),
    (1, 12, 8, 16, 32),
    (1, 48, 16, 32, 32),
    (1, 12, 16, 64, 64),
)
"""(side of the window, samples, rows and columns, channels in, channels out)."""
# FLOPs between few and many calls, so that the difference exceeds the noise; and the
# least and largest number of calls between them.
_MIN_FLOPS: Final = 6e7
_LOOP_BOUNDS: Final = (4, 300)
KernelFn = Callable[[jax.Array, jax.Array], jax.Array]
"""A layer as a function of its weights and its input."""


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """A layer to be timed."""

    shape: KernelShape
    """Shape of the product or convolution."""
    fn: KernelFn
    """Function of the layer."""
    weights: tuple[int, ...]
    """Shape of the weights."""
    inputs: tuple[int, ...]
    """Shape of the input."""


def default_kernel_cases(max_flops: float) -> Iterator[KernelCase]:
    """Yield products and convolutions that cover the shapes in common networks.

    Args:
        max_flops: FLOPs of the largest kernel.
    """
    square = [(rows, side, side) for side in _FEATURE_SIZES for rows in _ROW_COUNTS]
    cases = [dense_case(*sizes) for sizes in (*square, *_RECTANGULAR)]
    for extent, samples, side, inputs, outputs in _CONVOLUTIONS:
        # SAME padding at stride 1: as many rows come out as go in.
        before = (extent - 1) // 2
        window = Window(side, extent, pads=(before, extent - 1 - before))
        shape = samples, side, side, inputs
        weights = extent, extent, inputs, outputs
        cases.append(conv_case(shape, weights, (window, window)))
    yield from (case for case in cases if case.shape.flops <= max_flops)


def network_kernel_cases(
    calls: Sequence[LayerCall], divisors: Sequence[int], max_flops: float
) -> tuple[KernelCase, ...]:
    """Return the dense layers and convolutions of a network, each shape once.

    Args:
        calls: layer calls of the network, on a whole batch.
        divisors: numbers of parts into which the samples are divided.
        max_flops: FLOPs of the largest kernel.
    """
    # Each layer is timed at the sizes that plans give it: all samples of a step, as
    # where the weights are split, and the parts of as many devices and microbatches.
    # Shapes are the keys: a network repeats few of them in many layers.
    found = {}
    for call in calls:
        if call.method != "__call__":
            continue
        layer, (batch, *dims) = call.layer, call.shape
        for divisor in divisors:
            samples = max(1, batch // divisor)
            if isinstance(layer, Conv):
                windows = layer.windows(tuple(dims[:-1]))
                weights = tuple(layer.kernel[...].shape)
                groups = layer.feature_group_count
                case = conv_case((samples, *dims), weights, windows, groups)
            elif isinstance(layer, nnx.Linear):
                rows = samples * prod(dims[:-1])
                case = dense_case(rows, layer.in_features, layer.out_features)
            else:
                continue
            if case.shape.flops <= max_flops:
                found[case.shape] = case
    return tuple(found.values())


def dense_case(rows: int, in_features: int, out_features: int) -> KernelCase:
    """Return a dense layer as a kernel."""
    return KernelCase(
        shape=KernelShape(
            kind="product", uses=rows, inputs=in_features, outputs=out_features
        ),
        fn=lambda w, x: x @ w,
        weights=(in_features, out_features),
        inputs=(rows, in_features),
    )


def conv_case(
    inputs: tuple[int, ...], weights: tuple[int, ...], windows: Windows, groups: int = 1
) -> KernelCase:
    """Return a convolution as a kernel.

    Args:
        inputs: shape of the input, `[N, ..., C_in]`.
        weights: shape of the weights, `[..., C_in / groups, C_out]`.
        windows: windows of `halo_conv`.
        groups: feature groups.
    """
    # Only taps on the input count: those on padding do no work.
    *taps, channels, filters = weights
    met = prod(
        valid_taps(
            window.rows,
            extent,
            window.outputs,
            stride=window.stride,
            low=window.pads[0],
            rhs_dilation=window.dilation,
        )
        for window, extent in zip(windows, taps, strict=True)
    )
    outputs = prod(window.outputs for window in windows)
    return KernelCase(
        shape=KernelShape(
            kind="convolution",
            taps=prod(taps),
            # Uses of the whole kernel, of which a window at the edge is a part of one.
            uses=inputs[0] * met / prod(taps),
            inputs=channels,
            outputs=filters,
            reads=prod(inputs[1:-1]) / outputs,
        ),
        fn=lambda w, x: halo_conv(x, w, windows, groups),
        weights=weights,
        inputs=inputs,
    )


def time_kernels(
    mesh: Mesh,
    cases: Iterable[KernelCase],
    dtype: str,
    *,
    on_timed: Callable[[KernelShape], None] = lambda shape: None,
) -> tuple[KernelTiming, ...]:
    """Time layers, forward and backward.

    Args:
        mesh: mesh whose devices all compute the same, at once.
        cases: layers to time; the same in every process.
        dtype: dtype of weights and inputs.
        on_timed: told of each layer once it is timed.
    """
    timed = []
    for case in cases:
        timed.append(_time_kernel(mesh, case, dtype))
        on_timed(case.shape)
    return tuple(timed)


def _time_kernel(mesh: Mesh, case: KernelCase, dtype: str) -> KernelTiming:
    draw = np.random.default_rng(0)
    layer = case.fn

    # Each call reads another input than the one before: XLA would otherwise hoist the
    # kernel out of the loop, and compute it once.
    def forward(i: jax.Array, w: jax.Array, x: jax.Array) -> Any:
        return layer(w, x[i % 2])

    def backward(i: jax.Array, w: jax.Array, x: jax.Array, dy: jax.Array) -> Any:
        return jax.vjp(layer, w, x[i % 2])[1](dy[i % 2])

    w, x = (
        draw.standard_normal(shape).astype(jnp.dtype(dtype))
        for shape in (case.weights, (2, *case.inputs))
    )
    outputs = jax.eval_shape(layer, w, x[0]).shape
    calls = int(np.clip(_MIN_FLOPS / case.shape.flops, *_LOOP_BOUNDS))
    forward_s = seconds_per_call(mesh, forward, w, x, calls=calls)
    dy = draw.standard_normal((2, *outputs)).astype(jnp.dtype(dtype))
    # A backward pass is about twice the work, so half the calls take as long.
    backward_s = seconds_per_call(mesh, backward, w, x, dy, calls=max(2, calls // 2))
    return KernelTiming(shape=case.shape, forward_s=forward_s, backward_s=backward_s)
