"""Links: what a message and a byte cost along a mesh axis, measured.

    seconds(all-reduce of m bytes over p) = messages alpha + 2 (p - 1) / p m / bandwidth

fitted over sizes with the same relative weight, alpha and 1 / bandwidth not negative.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from jaxdist.calibrate.together import on_all, quartiles
from jaxdist.collectives.hlo import wire_bytes
from jaxdist.oracle.prices import messages

SIZES: Final = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)
"""Bytes of the arrays that are summed."""
LARGE: Final = 1 << 24
"""One more, where the others were quick."""
_QUICK_S: Final = 0.3
_BUDGET_S: Final = 0.3
_MOST: Final = 15


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A collective that was timed."""

    kind: str
    """As the compiler names it."""
    payload: int
    """Bytes of its result on one device."""
    seconds: float
    """First quartile."""


@dataclass(frozen=True, kw_only=True)
class Wire:
    """What a line through the timings says."""

    alpha: float
    """Seconds that a message takes without its bytes."""
    bandwidth: float
    """Bytes a second that a device sends."""
    spread: float
    """Mean of |line - timing| / timing."""


def timings(mesh: Mesh, axis: str) -> tuple[Timing, ...]:
    """Time all-reduces along an axis, from 1 KB to 16 MB.

    Args:
        mesh: its other axes make the same sums at once.
        axis: more than one device.
    """
    found = [_timing(mesh, axis, size) for size in SIZES]
    if found[-1].seconds < _QUICK_S:
        found.append(_timing(mesh, axis, LARGE))
    return tuple(found)


def wire(timed: Sequence[Timing], devices: int) -> Wire:
    """Fit a line.

    Args:
        timed: at least two sizes.
        devices: that took part.
    """
    from scipy.optimize import nnls

    took = np.array([each.seconds for each in timed])
    sent = [wire_bytes(each.kind, each.payload, devices) for each in timed]
    count = [messages(each.kind, devices) for each in timed]
    sides = np.stack([count, sent], axis=1) / took[:, None]
    scale = sides.max(axis=0)
    (alpha, beta), _ = nnls(sides / scale, np.ones(len(took)))
    alpha, beta = alpha / scale[0], beta / scale[1]
    line = alpha * np.array(count) + beta * np.array(sent)
    return Wire(
        alpha=float(alpha),
        bandwidth=float(1 / max(beta, 1e-15)),
        spread=float(np.mean(np.abs(line - took) / took)),
    )


def _timing(mesh: Mesh, axis: str, size: int) -> Timing:
    call = on_all(mesh, _sum_over(axis), np.ones(size // 4, np.float32))
    (seconds,) = quartiles(mesh, [call], budget_s=_BUDGET_S, most=_MOST)
    return Timing(kind="all-reduce", payload=size, seconds=seconds)


def _sum_over(axis: str) -> Callable[[jax.Array], jax.Array]:
    return lambda x: lax.psum(x, axis)
