"""A switch of algorithm: where two lines go through the timings far better than one.

A library takes another algorithm or protocol from some size on. A level keeps one alpha
and one bandwidth; that they hide a switch is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.calibrate.alpha_beta_fit import (
    MIN_SIZES,
    AlphaBetaFit,
    CollectiveTiming,
    fit_alpha_beta,
)

_GOOD_FIT: Final = 0.03
"""Spread below which one line is enough."""
_REQUIRED_GAIN: Final = 0.5
"""Share of one line's spread that two must get below."""

SizedTimings = Sequence[tuple[int, CollectiveTiming]]
"""Timings, each with the bytes that its program calls it by."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmSwitch:
    """Two lines in place of one."""

    program: str
    """Whose sizes these are."""
    below: int
    """Largest size of the first line, bytes as the program says them."""
    above: int
    """Smallest size of the second one."""
    small: AlphaBetaFit
    """Line up to `below`."""
    large: AlphaBetaFit
    """Line from `above` on."""
    spread: float
    """Mean of |lines - timing| / timing."""

    @property
    def text(self) -> str:
        """How well the two lines do, for who is told that one does not."""
        return (
            f"two lines of {self.program} spread {self.spread:.0%}, up to "
            f"{self.below:,} B and from {self.above:,} B on"
        )


def find_algorithm_switch(
    program: str, timings: SizedTimings, devices: int, single_fit: AlphaBetaFit
) -> AlgorithmSwitch | None:
    """Return the best switch, or none where one line is about as good.

    Args:
        program: that was timed.
        timings: its timings by size.
        devices: that took part.
        single_fit: the line through all of them.
    """
    sizes = sorted({size for size, _ in timings})
    places = range(MIN_SIZES, len(sizes) - MIN_SIZES + 1)
    if single_fit.spread < _GOOD_FIT or not places:
        return None
    tried = (
        _fit_halves(program, timings, devices, sizes[i - 1], sizes[i]) for i in places
    )
    best = min(tried, key=lambda switch: switch.spread)
    return best if best.spread < _REQUIRED_GAIN * single_fit.spread else None


def _fit_halves(
    program: str, sized: SizedTimings, devices: int, below: int, above: int
) -> AlgorithmSwitch:
    sides: list[list[CollectiveTiming]] = [
        [timing for size, timing in sized if size <= below],
        [timing for size, timing in sized if size >= above],
    ]
    small, large = (fit_alpha_beta(side, devices) for side in sides)
    off = small.spread * len(sides[0]) + large.spread * len(sides[1])
    return AlgorithmSwitch(
        program=program,
        below=below,
        above=above,
        small=small,
        large=large,
        spread=off / len(sized),
    )
