"""Kernels: the speed of a device's products and convolutions by their size, measured.

A program of six calls is timed beside one of two, and the difference is taken: what a
program costs around its kernels is in both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxdist.calibrate.together import on_all, quartiles

_PRODUCTS: Final = ((16, 64), (64, 128), (64, 512), (256, 512), (512, 1024))
"""(rows, features in and out) of products."""
_CONVOLUTIONS: Final = (
    (4, 8, 16),
    (8, 16, 16),
    (8, 32, 32),
    (8, 28, 64),
    (16, 28, 128),
)
"""(samples, rows and columns, channels in and out) of convolutions 3 x 3."""
_BUDGET_S: Final = 0.15
_MOST: Final = 25
_PASS: Final = 1 << 23
"""Numbers of the array that is passed over: 32 MiB in float32."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A kernel that was timed."""

    what: str
    """What it computes."""
    flops: float
    """FLOPs of one."""
    seconds: float
    """Of one, on all devices at once."""


def kernels(mesh: Mesh, dtype: str, most: float) -> tuple[Point, ...]:
    """Time kernels of growing size.

    Args:
        mesh: every device of it computes the same, at once.
        dtype: of the numbers.
        most: FLOPs of the largest.
    """
    return tuple(
        Point(what=what, flops=flops, seconds=_alone(mesh, function, *own))
        for what, flops, function, own in _each(dtype)
        if flops <= most
    )


def passing(mesh: Mesh) -> float:
    """Return the bytes a second that a device reads and writes, all at once."""
    x = np.ones(_PASS, np.float32)
    seconds = _alone(mesh, lambda a: a * 1.0001, x)
    return 2 * x.nbytes / seconds


def starting(mesh: Mesh) -> float:
    """Return the seconds of a kernel that does almost nothing."""
    return _alone(mesh, lambda a: jnp.cumsum(jnp.sin(a)), np.ones(64, np.float32))


def _each(
    dtype: str,
) -> Iterator[tuple[str, float, Callable[..., jax.Array], tuple[np.ndarray, ...]]]:
    draw = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(jnp.dtype(dtype))

    for rows, features in _PRODUCTS:
        own = some(rows, features), some(features, features) / features**0.5
        flops = 2.0 * rows * features * features
        yield f"product {rows} x {features}", flops, _product, own
    for samples, side, channels in _CONVOLUTIONS:
        taps = some(3, 3, channels, channels) / (9 * channels) ** 0.5
        own = some(samples, side, side, channels), taps
        flops = 2.0 * 9 * samples * (side * channels) ** 2
        yield f"convolution {side} x {channels}", flops, _convolution, own


def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


def _convolution(x: jax.Array, w: jax.Array) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)


def _alone(mesh: Mesh, function: Callable[..., jax.Array], *own: np.ndarray) -> float:
    """Return the seconds of one call inside a program that makes one after another.

    Args:
        mesh: every device makes them at once.
        function: returns what is as its first argument.
        own: what it is called on.
    """

    def repeated(times: int) -> Callable[..., jax.Array]:
        def run(x: jax.Array, *rest: jax.Array) -> jax.Array:
            return lax.fori_loop(0, times, lambda _, y: function(y, *rest), x)

        return run

    calls = [on_all(mesh, repeated(times), *own) for times in (2, 6)]
    few, many = quartiles(mesh, calls, budget_s=_BUDGET_S, most=_MOST)
    return max(many - few, 0.05 * many) / 4
