"""Links: what a message and a byte of a collective cost, as a line through timings.

    seconds(all-reduce of m bytes over p) = messages alpha + 2 (p - 1) / p m / bandwidth

fitted over sizes with the same relative weight, alpha and 1 / bandwidth not negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.oracle.collective_times import message_count

MIN_SIZES: Final = 3
"""Sizes through which a line is drawn."""
_MAX_RATIO: Final = 1.5
"""Times that one of alike seconds is another at most."""


@dataclass(frozen=True, kw_only=True)
class CollectiveTiming:
    """A collective that was timed."""

    kind: str
    """As the compiler names it."""
    payload: int
    """Bytes of its result on one device."""
    seconds: float
    """Of one, on the slowest device."""


@dataclass(frozen=True, kw_only=True)
class AlphaBetaFit:
    """What a line through the timings says."""

    alpha: float
    """Seconds that a message takes without its bytes."""
    bandwidth: float
    """Bytes a second that a device sends."""
    spread: float
    """Mean of |line - timing| / timing."""


def fit_alpha_beta(timings: Sequence[CollectiveTiming], devices: int) -> AlphaBetaFit:
    """Fit a line.

    Args:
        timings: at least two sizes.
        devices: that took part.
    """
    from scipy.optimize import nnls

    took = np.array([each.seconds for each in timings])
    sides = _design_matrix(timings, devices) / took[:, None]
    scale = sides.max(axis=0)
    (alpha, beta), _ = nnls(sides / scale, np.ones(len(took)))
    alpha, beta = alpha / scale[0], beta / scale[1]
    found = AlphaBetaFit(
        alpha=float(alpha), bandwidth=float(1 / max(beta, 1e-15)), spread=0.0
    )
    line = predict_seconds(found, timings, devices)
    return replace(found, spread=float(np.mean(np.abs(line - took) / took)))


def predict_seconds(
    fit: AlphaBetaFit, timings: Sequence[CollectiveTiming], devices: int
) -> np.ndarray:
    """Return what a line says that collectives take, in seconds."""
    found: np.ndarray = _design_matrix(timings, devices) @ (
        fit.alpha,
        1 / fit.bandwidth,
    )
    return found


def sent_bytes(timings: Sequence[CollectiveTiming], devices: int) -> list[int]:
    """Return the bytes that a device sends in each."""
    return [wire_bytes(each.kind, each.payload, devices) for each in timings]


def smooth_latency(seconds: Sequence[float]) -> list[float]:
    """Give small sizes their mean where they take about as long as each other.

    What they take is how long a collective needs to start, measured once for each size
    and a fifth off each time.

    Args:
        seconds: seconds by size, the smallest first.

    >>> smooth_latency([7.0, 6.0, 5.0, 14.0])
    [6.0, 6.0, 6.0, 14.0]
    """
    count = 1
    while count < len(seconds) and _are_similar(seconds[: count + 1]):
        count += 1
    return [sum(seconds[:count]) / count] * count + list(seconds[count:])


def _are_similar(took: Sequence[float]) -> bool:
    return max(took) <= _MAX_RATIO * min(took)


def _design_matrix(timed: Sequence[CollectiveTiming], devices: int) -> np.ndarray:
    """Return messages and bytes of each."""
    count = [message_count(each.kind, devices) for each in timed]
    return np.array([count, sent_bytes(timed, devices)], float).T
