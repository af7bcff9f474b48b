"""Prediction intervals: how far predictions were off where nothing was fitted.

Of n errors of held-out predictions, exchangeable with the next one, the k-th smallest
with k = ceil((n + 1) q) is at least the next error with probability q, whatever their
distribution (split conformal prediction; Vovk et al. 2005, "Algorithmic Learning in a
Random World"; Lei et al. 2018, arXiv:1604.04173).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal, get_args

COVERAGE: Final = 0.9
"""Share of measurements that intervals hold."""
_OWN_ERRORS: Final = 20
"""Least errors of a kind of step for an interval of its own: of fewer, the largest
alone would set its width."""
# The 95th percentile of Student's t by degrees of freedom, from 1.
_STUDENT_T: Final = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860)

Shift = Literal["like", "network", "scale", "layout", "machine", "nothing"]
"""In what a prediction differs from all that its constants were fitted to: in nothing,
in the network, in the number of devices, in the layout, in the machine; or in a way
that nothing was fitted or held out in."""
SHIFTS: Final[tuple[Shift, ...]] = get_args(Shift)


@dataclass(frozen=True, kw_only=True)
class ErrorGroup:
    """Errors of predictions of steps that no constant was fitted to."""

    log_ratios: tuple[float, ...]
    """ln(measured / predicted), one a step."""
    shift: Shift = "like"
    """In what the steps differed from those that were fitted."""
    quantity: str = "time"
    """What was measured."""
    term: str = ""
    """The longest predicted term; empty where the model has no terms."""
    octaves: int = 0
    """Doublings of devices away from the nearest fitted number, rounded up."""
    origin: str = ""
    """Where the steps are from."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The 90 % interval of a prediction, as factors of it."""

    low: float
    """Factor of the lower end."""
    high: float
    """Factor of the upper end."""
    basis: str
    """The errors that it rests on, in words."""

    @property
    def half_width(self) -> float:
        """Half of the width, as a share of the prediction."""
        return (self.high - self.low) / 2

    def holds(self, predicted: float, measured: float) -> bool:
        """Return whether a measurement is within the interval of its prediction."""
        return self.low * predicted <= measured <= self.high * predicted


def quantile_bounds(log_ratios: Sequence[float]) -> tuple[float, float]:
    """Return ln of the factors between which the next measurement is, nine in ten.

    Args:
        log_ratios: ln(measured / predicted), one at least.

    >>> quantile_bounds([0.01 * k for k in range(-20, 20)])
    (-0.19, 0.18)
    >>> quantile_bounds([0.25] * 9 + [0.75])
    (-0.25, 0.75)
    """
    n, ordered = len(log_ratios), sorted(log_ratios)
    tail = (1 - COVERAGE) / 2
    below = math.floor((n + 1) * tail + 1e-9)
    # Each tail by itself takes 39 errors; with fewer both are taken for alike, around
    # the middle error.
    if below >= 2:
        low, high = ordered[below - 1], ordered[n - below]
    elif (k := math.ceil((n + 1) * COVERAGE - 1e-9)) <= n:
        # Each error is seen from the middle of the others, as the next one will be
        # (the jackknife).
        off = [
            abs(x - median(ordered[:i] + ordered[i + 1 :]))
            for i, x in enumerate(ordered)
        ]
        middle, width = median(ordered), sorted(off)[k - 1]
        low, high = middle - width, middle + width
    else:
        # Too few to count: Student's t of errors around zero.
        rms = math.sqrt(sum(x * x for x in ordered) / n)
        high = _STUDENT_T[n - 1] * rms * math.sqrt(1 + 1 / n)
        low = -high
    # A prediction is part of its interval, also where nearly all errors had one sign.
    return min(low, 0.0), max(high, 0.0)


def error_interval(
    errors: Sequence[ErrorGroup],
    shifts: Iterable[Shift],
    *,
    quantity: str = "time",
    term: str = "",
    octaves: int = 0,
) -> Interval | None:
    """Return the interval of a prediction, or None where no errors say how wide it is.

    A prediction that differs in several ways has the hull of their intervals.

    Args:
        errors: of held-out predictions.
        shifts: in what the prediction differs from what was fitted.
        quantity: what is predicted.
        term: the longest predicted term.
        octaves: doublings of devices away from the nearest fitted number.
    """
    lows, highs, basis = [], [], []
    for shift in shifts:
        kind = [one for one in errors if one.quantity == quantity]
        own = [one for one in kind if one.shift == shift]
        # Few rows are of few networks and layouts, so the next one differs from them
        # more than they do from each other: all that was held out counts then.
        if own and _count(own) < _OWN_ERRORS and shift != "nothing":
            own = [one for one in kind if one.shift != "nothing"]
        # Nothing was held out in this way: how far the model is off before any fit is
        # all that is known.
        own = own or [one for one in kind if one.shift == "nothing"]
        if not own:
            return None
        stretch = 1.0
        if shift == "scale" and own[0].shift == "scale":
            own, stretch = _nearest_octaves(own, octaves)
        alike = [one for one in own if one.term == term]
        is_own = _count(alike) >= _OWN_ERRORS
        used = alike if is_own else own
        ratios = [x for one in used for x in one.log_ratios]
        if used[0].shift in ("machine", "nothing"):
            # Elsewhere errors may have the other sign, and a fit turns them around.
            ratios = [sign * x for x in ratios for sign in (1, -1)]
        low, high = quantile_bounds(ratios)
        lows.append(stretch * low)
        highs.append(stretch * high)
        basis.append(_describe(used, term if is_own else ""))
    return Interval(
        low=math.exp(min(lows)), high=math.exp(max(highs)), basis="; ".join(basis)
    )


def _nearest_octaves(
    errors: Sequence[ErrorGroup], octaves: int
) -> tuple[list[ErrorGroup], float]:
    """Return the errors at the nearest distance, and a factor for what lies beyond."""
    found: list[ErrorGroup] = []
    for one in sorted(errors, key=lambda one: abs(one.octaves - octaves)):
        if _count(found) >= _OWN_ERRORS and one.octaves != found[-1].octaves:
            break
        found.append(one)
    # An exponent of p that is wrong by d makes an error of d log p, which grows with
    # the logarithm of the distance.
    most = max(one.octaves for one in found)
    return found, max(1.0, octaves / max(most, 1))


def _count(errors: Iterable[ErrorGroup]) -> int:
    return sum(len(one.log_ratios) for one in errors)


_SHIFT_WORDS: Final[dict[Shift, str]] = {
    "like": "steps like those fitted",
    "network": "networks that were not fitted",
    "scale": "other numbers of devices than fitted",
    "layout": "layouts that were not fitted",
    "machine": "steps on other machines",
    "nothing": "steps before any fit",
}


def _describe(used: Sequence[ErrorGroup], term: str) -> str:
    # What was asked for may not have been held out: this says what was.
    kinds = " and ".join(dict.fromkeys(_SHIFT_WORDS[one.shift] for one in used))
    origins = "; ".join(dict.fromkeys(one.origin for one in used if one.origin))
    deciding = f", {term} deciding" * bool(term)
    return f"{_count(used)} errors of {kinds}{deciding}" + f" ({origins})" * bool(
        origins
    )
