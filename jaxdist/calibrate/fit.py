"""Fitting: values of a few bounded constants that explain measured rows best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.calibrate.measured_rows import (
    ConstantValues,
    FreeConstant,
    MeasuredRow,
    RowFormat,
    initial_values,
)
from jaxdist.core.errors import BadInput, did_you_mean

MAX_CONSTANTS: Final = 3
"""Constants that are fitted unless more are asked for."""
MAX_ROW_SPREAD: Final = 0.1
"""Rows whose largest measurement is further above the smallest are not fitted."""
_PRIOR_SCALE: Final = 0.5
"""Error that counts as much as a constant at the far end of its bounds: what rows do
not tell stays where it started."""
_LOSS_SCALE: Final = 0.05
"""Errors well above this count less than by their square: outliers do not lead."""


@dataclass(frozen=True, kw_only=True)
class ConstantsFit:
    """What a fit found."""

    values: dict[str, float]
    """Of all constants of the format, those that were not fitted at their start."""
    fitted_constants: tuple[FreeConstant, ...]
    """Constants that were fitted."""
    rows: tuple[MeasuredRow, ...]
    """Rows they were fitted to."""
    noisy_rows: tuple[MeasuredRow, ...]
    """Rows that were selected and not fitted, since they spread too much."""
    mape: float
    """Mean relative error over `rows`, after the fit."""
    utilisation: dict[str, float]
    """The baseline: by quantity, the one u of ideal / u."""
    error_interval: dict[str, float]
    """By quantity, the share by which 9 of 10 measurements are off at most."""


def select_constants(
    row_format: RowFormat, names: Sequence[str] | None, max_constants: int
) -> list[FreeConstant]:
    """Return the constants to fit: those that are named, or the first three.

    Raises:
        BadInput: there is none of that name, or they are more than `max_constants`.
    """
    if names is None:
        return list(row_format.constants[:MAX_CONSTANTS])
    known = {constant.name: constant for constant in row_format.constants}
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise BadInput(
                f"{row_format.name} has no constant {name}",
                rule=f"its constants are {', '.join(known)}",
                remedy=f"did you mean {near}?" if near else "one of these",
            )
    if len(set(names)) > max_constants:
        raise BadInput(
            f"{len(set(names))} constants are many",
            rule=f"at most {max_constants} are fitted: with more, any model fits any "
            "rows",
            values=", ".join(names),
            remedy=(
                f"--constants {','.join(names[:max_constants])}",
                "--more fits them all",
            ),
        )
    return [known[name] for name in dict.fromkeys(names)]


def fit(
    row_format: RowFormat,
    rows: Sequence[MeasuredRow],
    constants: Sequence[FreeConstant],
    *,
    allow_noisy: bool = False,
) -> ConstantsFit:
    """Fit constants to rows.

    The sum over rows of a soft square of log(predicted / measured) is least; each
    constant stays within its bounds. Nothing is random.

    Args:
        row_format: whose constants they are.
        rows: measured; none of them may be scored later.
        constants: constants to fit; others keep their start.
        allow_noisy: fit rows that spread by more than `MAX_ROW_SPREAD`, too.

    Raises:
        BadInput: fewer rows than constants, or most of them are too noisy.
    """
    used, left = _split_noisy(rows, allow_noisy)
    if len(used) <= len(constants):
        raise BadInput(
            f"{len(used)} rows do not fit {len(constants)} constants",
            rule="there are more rows than constants",
            values=f"{len(used)} rows; {', '.join(one.name for one in constants)}",
            remedy="--constants with fewer names, or --train with more rows",
        )
    values = initial_values(row_format.constants) | _least_squares(
        row_format, used, constants
    )
    predicted = [row.predict(values) for row in used]
    return ConstantsFit(
        values=values,
        fitted_constants=tuple(constants),
        rows=tuple(used),
        noisy_rows=tuple(left),
        mape=mape(predicted, used),
        utilisation=median_utilisation(used),
        error_interval=error_interval(predicted, used),
    )


def median_utilisation(rows: Sequence[MeasuredRow]) -> dict[str, float]:
    """Return, by quantity, the median of ideal / measured: the baseline's one u."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.quantity, []).append(row.ideal / row.measured)
    return {quantity: float(np.median(shares)) for quantity, shares in found.items()}


def error_interval(
    predicted: Sequence[float], rows: Sequence[MeasuredRow]
) -> dict[str, float]:
    """Return, by quantity, the 90th percentile of |measured / predicted - 1|."""
    found: dict[str, list[float]] = {}
    for value, row in zip(predicted, rows):
        found.setdefault(row.quantity, []).append(abs(row.measured / value - 1))
    return {name: float(np.percentile(off, 90)) for name, off in found.items()}


def mape(predicted: Sequence[float], rows: Sequence[MeasuredRow]) -> float:
    """Return the mean of |predicted - measured| / measured."""
    errors = [abs(p - row.measured) / row.measured for p, row in zip(predicted, rows)]
    return float(np.mean(errors))


def _split_noisy(
    rows: Sequence[MeasuredRow], allow_noisy: bool
) -> tuple[list[MeasuredRow], list[MeasuredRow]]:
    still = [row for row in rows if allow_noisy or (row.spread or 0) <= MAX_ROW_SPREAD]
    loud = [
        row for row in rows if not allow_noisy and (row.spread or 0) > MAX_ROW_SPREAD
    ]
    if 2 * len(loud) > len(rows):
        worst = max(row.spread or 0 for row in loud)
        raise BadInput(
            f"{len(loud)} of {len(rows)} rows are too noisy to fit",
            rule=f"the largest measurement is at most {MAX_ROW_SPREAD:.0%} above the "
            "smallest",
            values=f"up to {worst:.0%} above it",
            remedy="measure again, select others with --train, or --noisy",
        )
    return still, loud


def _least_squares(
    form: RowFormat, rows: Sequence[MeasuredRow], free: Sequence[FreeConstant]
) -> dict[str, float]:
    from scipy.optimize import least_squares

    base = initial_values(form.constants)

    def values(point: Sequence[float]) -> ConstantValues:
        return base | {
            c.name: _from_unit_interval(c, float(x)) for c, x in zip(free, point)
        }

    def errors(point: Sequence[float]) -> list[float]:
        now = values(point)
        pulls = [_PRIOR_SCALE * (x - start) for x, start in zip(point, begin)]
        return [*(math.log(row.predict(now) / row.measured) for row in rows), *pulls]

    begin = [_to_unit_interval(constant) for constant in free]
    tried = [
        least_squares(
            errors,
            start,
            bounds=(0, 1),
            loss="soft_l1",
            f_scale=_LOSS_SCALE,
            diff_step=1e-4,
        )
        for start in (begin, [0.5] * len(free))
    ]
    best = min(tried, key=lambda found: float(found.cost))
    return {c.name: _from_unit_interval(c, float(x)) for c, x in zip(free, best.x)}


def _from_unit_interval(constant: FreeConstant, x: float) -> float:
    """Return the value at x in 0...1: by ratio where the bounds are far apart."""
    low, high = constant.low, constant.high
    if low > 0 and high / low > 10:
        return low * (high / low) ** x
    return low + x * (high - low)


def _to_unit_interval(constant: FreeConstant) -> float:
    """Return where in 0...1 a constant starts, off its bounds."""
    low, high, start = constant.low, constant.high, constant.initial
    if low > 0 and high / low > 10:
        x = math.log(start / low) / math.log(high / low)
    else:
        x = (start - low) / (high - low)
    return min(max(x, 0.01), 0.99)
