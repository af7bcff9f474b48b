"""Kernels: the speed of a device's products and convolutions by their shape, measured.

A kernel is made over and over inside one program, a few times and many times, and the
difference is taken: what a program costs around its kernels is in both.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxdist.calibrate.synchronized_timing import first_quartiles, loop_program
from jaxdist.core.cluster.kernel_timings import KernelTiming
from jaxdist.core.kernel_shape import KernelShape
from jaxdist.layers.halo_conv import halo_conv
from jaxdist.layers.window import Window, Windows
from jaxdist.profile.flops import valid_taps

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
_BUDGET_S: Final = 0.1
_MAX_ROUNDS: Final = 15
_SHORT_LOOP: Final = 2
_MIN_FLOPS: Final = 6e7
"""FLOPs between few and many calls, so that they are told from the noise."""
_LOOP_BOUNDS: Final = (4, 300)
"""Calls between them, at least and at most."""
_MAX_ATTEMPTS: Final = 3
_MIN_SIGNAL: Final = 0.1
"""Share of the longer program above which a difference is more than noise."""
_MIN_SHARE: Final = 0.02
"""The same, below which nothing is believed."""
_STREAM_ELEMENTS: Final = 1 << 23
"""Numbers of the array that is passed over: 32 MiB in float32."""

KernelFn = Callable[[jax.Array, jax.Array], jax.Array]
"""Of weights and of an input."""


@dataclass(frozen=True, kw_only=True)
class KernelCase:
    """A layer that is timed."""

    shape: KernelShape
    """What it computes."""
    fn: KernelFn
    """Computes it."""
    weights: tuple[int, ...]
    """Shape of its weights."""
    inputs: tuple[int, ...]
    """Shape of what it is called on."""


def default_kernel_cases(max_flops: float) -> Iterator[KernelCase]:
    """Yield products and convolutions that cover what networks have.

    Args:
        max_flops: FLOPs of the largest.
    """
    square = [(rows, side, side) for side in _FEATURE_SIZES for rows in _ROW_COUNTS]
    subjects = [dense_case(*sizes) for sizes in (*square, *_RECTANGULAR)]
    subjects += [_square_conv_case(*sizes) for sizes in _CONVOLUTIONS]
    yield from (each for each in subjects if each.shape.flops <= max_flops)


def dense_case(rows: int, in_features: int, out_features: int) -> KernelCase:
    """Return a dense layer."""
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
    """Return a convolution.

    Args:
        inputs: shape of what it is called on, `[N, ..., C_in]`.
        weights: `[..., C_in / groups, C_out]`.
        windows: as of `halo_conv`.
        groups: feature groups.
    """
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
    return KernelCase(
        shape=KernelShape(
            kind="convolution",
            taps=prod(taps),
            uses=inputs[0] * met / prod(taps),  # taps on padding do no work
            inputs=channels,
            outputs=filters,
        ),
        fn=lambda w, x: halo_conv(x, w, windows, groups),
        weights=weights,
        inputs=inputs,
    )


def time_kernels(
    mesh: Mesh, cases: Iterable[KernelCase], dtype: str
) -> tuple[KernelTiming, ...]:
    """Time layers, forward and backward.

    Args:
        mesh: every device of it computes the same, at once.
        cases: what is timed; the same in every process.
        dtype: of the numbers.
    """
    return tuple(_time_kernel(mesh, each, dtype) for each in cases)


def memory_bandwidth(mesh: Mesh) -> float:
    """Return the bytes a second that a device reads and writes, all at once."""
    x = np.ones(_STREAM_ELEMENTS, np.float32)
    return (
        2
        * x.nbytes
        / seconds_per_call(mesh, lambda i, a: a * (1.0001 + i), x, calls=16)
    )


def kernel_launch_overhead(mesh: Mesh) -> float:
    """Return the seconds of a kernel that does almost nothing."""
    small = np.ones(64, np.float32)
    return seconds_per_call(
        mesh, lambda i, a: jnp.cumsum(jnp.sin(a + i)), small, calls=300
    )


def _square_conv_case(
    extent: int, samples: int, side: int, inputs: int, outputs: int
) -> KernelCase:
    before = (extent - 1) // 2
    window = Window(side, extent, pads=(before, extent - 1 - before))
    shape = samples, side, side, inputs
    weights = extent, extent, inputs, outputs
    return conv_case(shape, weights, (window, window))


def _time_kernel(mesh: Mesh, case: KernelCase, dtype: str) -> KernelTiming:
    """Time one layer; each of its calls reads another input than the one before."""
    draw = np.random.default_rng(0)
    layer = case.fn

    def some(*sizes: int) -> np.ndarray:
        return draw.standard_normal(sizes).astype(jnp.dtype(dtype))

    def forward(i: jax.Array, w: jax.Array, x: jax.Array) -> Any:
        return layer(w, x[i % 2])

    def backward(i: jax.Array, w: jax.Array, x: jax.Array, dy: jax.Array) -> Any:
        return jax.vjp(layer, w, x[i % 2])[1](dy[i % 2])

    given = some(*case.weights), some(2, *case.inputs)
    outputs = jax.eval_shape(layer, given[0], given[1][0]).shape
    flops = case.shape.flops
    calls = int(np.clip(_MIN_FLOPS / flops, *_LOOP_BOUNDS))
    return KernelTiming(
        shape=case.shape,
        forward_s=seconds_per_call(mesh, forward, *given, calls=calls),
        backward_s=seconds_per_call(
            mesh, backward, *given, some(2, *outputs), calls=max(2, calls // 2)
        ),
    )


def seconds_per_call(
    mesh: Mesh, function: Callable[..., Any], *arrays: np.ndarray, calls: int
) -> float:
    """Return the seconds of one call inside a program that makes one after another.

    Args:
        mesh: every device makes them at once.
        function: called on the number of the call, and on
        arrays: what each device has.
        calls: how many more the longer program makes.
    """
    times = loop_program(mesh, function, *arrays)
    programs = [times(_SHORT_LOOP), times(_SHORT_LOOP + calls)]
    took = 0.0
    for _ in range(_MAX_ATTEMPTS):
        few, many = first_quartiles(
            mesh, programs, budget_s=_BUDGET_S, max_rounds=_MAX_ROUNDS
        )
        took = max(took, many - few)
        if took > _MIN_SIGNAL * many:
            break
    return max(took, _MIN_SHARE * many) / calls
