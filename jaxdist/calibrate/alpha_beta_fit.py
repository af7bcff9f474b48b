"""Alpha-beta fits: what a message and a byte of a collective cost.

seconds(all-reduce of m bytes over p) = messages alpha + 2 (p - 1) / p m / bandwidth
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jaxdist.collectives.hlo_collectives import wire_bytes
from jaxdist.oracle.collective_times import message_count

MIN_SIZES: Final = 3
"""Sizes that a line needs."""
# Largest of several latencies over the smallest, up to which they are one latency.
_MAX_RATIO: Final = 1.5
# Spread below which one line is enough.
_GOOD_FIT: Final = 0.03
# Two lines replace one where their spread is below this share of its spread.
_REQUIRED_GAIN: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class CollectiveTiming:
    """The time of one collective."""

    kind: str
    """Kind of collective, as in HLO."""
    payload: int
    """Bytes of the result on one device."""
    seconds: float
    """Seconds of one, on the slowest device."""


@dataclass(frozen=True, kw_only=True)
class AlphaBetaFit:
    """A line through the timings of a group of devices."""

    alpha: float
    """Seconds of a message without its bytes."""
    bandwidth: float
    """Bytes a second that a device sends."""
    spread: float
    """Mean of |line - timing| / timing."""


def fit_alpha_beta(timings: Sequence[CollectiveTiming], devices: int) -> AlphaBetaFit:
    """Fit alpha and bandwidth by non-negative least squares.

    Args:
        timings: timings of at least two sizes.
        devices: number of devices in the group.
    """
    from scipy.optimize import nnls

    # Rows are divided by their time, so that every size has the same relative weight,
    # and columns by their largest value: messages and bytes differ by many decades.
    took = np.array([each.seconds for each in timings])
    sides = _design_matrix(timings, devices) / took[:, None]
    scale = sides.max(axis=0)
    (alpha, beta), _ = nnls(sides / scale, np.ones(len(took)))
    alpha, beta = alpha / scale[0], beta / scale[1]
    # A bandwidth of 1e15 where bytes seem to cost nothing: 1 / beta stays finite.
    found = AlphaBetaFit(
        alpha=float(alpha), bandwidth=float(1 / max(beta, 1e-15)), spread=0.0
    )
    line = predict_seconds(found, timings, devices)
    return replace(found, spread=float(np.mean(np.abs(line - took) / took)))


def predict_seconds(
    fit: AlphaBetaFit, timings: Sequence[CollectiveTiming], devices: int
) -> np.ndarray:
    """Return the seconds of collectives by a line."""
    costs = fit.alpha, 1 / fit.bandwidth
    seconds: np.ndarray = _design_matrix(timings, devices) @ costs
    return seconds


def sent_bytes(timings: Sequence[CollectiveTiming], devices: int) -> list[int]:
    """Return the bytes that a device sends in each collective."""
    return [wire_bytes(each.kind, each.payload, devices) for each in timings]


def smooth_latency(seconds: Sequence[float]) -> list[float]:
    """Replace the times of small sizes by their mean where they are about equal.

    Args:
        seconds: seconds by size, the smallest first.

    >>> smooth_latency([7.0, 6.0, 5.0, 14.0])
    [6.0, 6.0, 6.0, 14.0]
    """
    # Small sizes all measure the same latency, each with an error of about a fifth.
    count = 1
    for end in range(2, len(seconds) + 1):
        if max(seconds[:end]) > _MAX_RATIO * min(seconds[:end]):
            break
        count = end
    return [sum(seconds[:count]) / count] * count + list(seconds[count:])


def _design_matrix(timings: Sequence[CollectiveTiming], devices: int) -> np.ndarray:
    """Return messages and bytes of each collective, [timings, 2]."""
    messages = [message_count(each.kind, devices) for each in timings]
    return np.array([messages, sent_bytes(timings, devices)], float).T


SizedTimings = Sequence[tuple[int, CollectiveTiming]]
"""Timings, each with the bytes that its program prints."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmSwitch:
    """Two lines, below and above the size at which a library changes its algorithm."""

    program: str
    """Program that was timed."""
    below: int
    """Largest size of the first line, bytes as the program prints them."""
    above: int
    """Smallest size of the second line."""
    small: AlphaBetaFit
    """Line up to `below`."""
    large: AlphaBetaFit
    """Line from `above` on."""
    spread: float
    """Mean of |lines - timing| / timing."""

    @property
    def text(self) -> str:
        """Description of the two lines for messages."""
        return (
            f"two lines of {self.program} spread {self.spread:.0%}, up to "
            f"{self.below:,} B and from {self.above:,} B on"
        )


def find_algorithm_switch(
    program: str, timings: SizedTimings, devices: int, single_fit: AlphaBetaFit
) -> AlgorithmSwitch | None:
    """Return the best switch of algorithm, or None where one line is about as good.

    Args:
        program: program that was timed.
        timings: its timings by size.
        devices: number of devices in the group.
        single_fit: line through all timings.
    """
    # A library takes another algorithm or protocol from some size on. A level of a
    # cluster has one alpha and one bandwidth all the same, so a switch is only
    # reported.
    sizes = sorted({size for size, _ in timings})
    if single_fit.spread < _GOOD_FIT:
        return None
    switches = []
    for i in range(MIN_SIZES, len(sizes) - MIN_SIZES + 1):
        below, above = sizes[i - 1], sizes[i]
        low = [timing for size, timing in timings if size <= below]
        high = [timing for size, timing in timings if size >= above]
        small, large = fit_alpha_beta(low, devices), fit_alpha_beta(high, devices)
        switches.append(
            AlgorithmSwitch(
                program=program,
                below=below,
                above=above,
                small=small,
                large=large,
                spread=(small.spread * len(low) + large.spread * len(high))
                / len(timings),
            )
        )
    best = min(switches, key=lambda switch: switch.spread, default=None)
    if best is None or best.spread >= _REQUIRED_GAIN * single_fit.spread:
        return None
    return best
