"""Fitting a few bounded constants of a prediction model to measured rows."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.calibrate.held_out import held_out_errors
from jaxdist.calibrate.measured_rows import (
    ConstantValues,
    FreeConstant,
    MeasuredRow,
    RowFormat,
    initial_values,
)
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.intervals import ErrorGroup

MAX_CONSTANTS: Final = 3
"""Constants of a kind of device that are fitted unless more are asked for."""
MAX_ROW_SPREAD: Final = 0.1
"""Rows whose largest measurement is further above the smallest are not fitted."""
# Weight of the prior: this error of a row counts as much as a constant at the far end
# of its bounds, so a constant that the rows do not determine stays where it started.
_PRIOR_SCALE: Final = 0.5
# Scale of the soft L1 loss: larger errors count linearly, so outliers do not lead.
_LOSS_SCALE: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class ConstantsFit:
    """Result of a fit."""

    values: dict[str, float]
    """Values of all constants of the format; those not fitted are initial."""
    fitted_constants: tuple[FreeConstant, ...]
    """Constants that were fitted."""
    rows: tuple[MeasuredRow, ...]
    """Rows they were fitted to."""
    noisy_rows: tuple[MeasuredRow, ...]
    """Selected rows that were left out, since they spread too much."""
    mape: float
    """Mean of |predicted - measured| / measured over `rows`, after the fit."""
    utilisation: dict[str, float]
    """Baseline by quantity: the one u of ideal / u."""
    errors: tuple[ErrorGroup, ...]
    """Errors of the rows where they were left out of the fit."""


def select_constants(
    row_format: RowFormat, names: Sequence[str] | None, max_constants: int
) -> list[FreeConstant]:
    """Return the constants to fit: the named ones, or the first three.

    Rows of several kinds of devices have three constants of each kind; what is of all
    kinds counts for each.

    Raises:
        BadInput: an unknown name, or more than `max_constants` of one kind.
    """
    if names is None:
        first: list[FreeConstant] = []
        for constant in row_format.constants:
            if _most_of_a_device([*first, constant]) <= MAX_CONSTANTS:
                first.append(constant)
        return first
    known = {constant.name: constant for constant in row_format.constants}
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise BadInput(
                f"{row_format.name} has no constant {name}",
                rule=f"its constants are {', '.join(known)}",
                remedy=f"did you mean {near}?" if near else "one of these",
            )
    chosen = [known[name] for name in dict.fromkeys(names)]
    if (most := _most_of_a_device(chosen)) > max_constants:
        raise BadInput(
            f"{most} constants are many",
            rule=f"at most {max_constants} are fitted: with more, any model fits any "
            "rows",
            values=", ".join(names),
            remedy=(
                f"--constants {','.join(names[:max_constants])}",
                "--allow-many-constants fits them all",
            ),
        )
    return chosen


def _most_of_a_device(constants: Sequence[FreeConstant]) -> int:
    """Return the largest number of constants that one kind of device has."""
    # Rows of one chip say nothing of another's constants, so a fit has no more freedom
    # by them; constants of all kinds ("") count for each.
    own = Counter(constant.device for constant in constants)
    shared = own.pop("", 0)
    return shared + max(own.values(), default=0)


def fit(
    row_format: RowFormat,
    rows: Sequence[MeasuredRow],
    constants: Sequence[FreeConstant],
    *,
    allow_noisy: bool = False,
) -> ConstantsFit:
    """Fit constants to rows by robust least squares of log(predicted / measured).

    Each constant stays within its bounds, and nothing is random.

    Args:
        row_format: format of the rows, with all constants.
        rows: measured rows; none of them may be scored later.
        constants: constants to fit; the others stay initial.
        allow_noisy: fit rows that spread by more than `MAX_ROW_SPREAD`, too.

    Raises:
        BadInput: fewer rows than constants, or most of them are too noisy.
    """
    quiet, noisy = list(rows), []
    if not allow_noisy:
        quiet = [row for row in rows if (row.spread or 0) <= MAX_ROW_SPREAD]
        noisy = [row for row in rows if (row.spread or 0) > MAX_ROW_SPREAD]
    if 2 * len(noisy) > len(rows):
        worst = max(row.spread or 0 for row in noisy)
        raise BadInput(
            f"{len(noisy)} of {len(rows)} rows are too noisy to fit",
            rule=f"the largest measurement is at most {MAX_ROW_SPREAD:.0%} above the "
            "smallest",
            values=f"up to {worst:.0%} above it",
            remedy="measure again, select others with --train, or --allow-noisy",
        )
    if len(quiet) <= len(constants):
        raise BadInput(
            f"{len(quiet)} rows do not fit {len(constants)} constants",
            rule="there are more rows than constants",
            values=f"{len(quiet)} rows; {', '.join(c.name for c in constants)}",
            remedy="--constants with fewer names, or --train with more rows",
        )

    values = least_squares_values(row_format, quiet, constants)
    errors = [abs(row.predict(values) - row.measured) / row.measured for row in quiet]

    # Refits start at the whole fit, which is near theirs: there are dozens of them.
    def refit(part: Sequence[MeasuredRow]) -> dict[str, float]:
        return least_squares_values(row_format, part, constants, start=values)

    return ConstantsFit(
        values=values,
        fitted_constants=tuple(constants),
        rows=tuple(quiet),
        noisy_rows=tuple(noisy),
        mape=float(np.mean(errors)),
        utilisation=median_utilisation(quiet),
        errors=held_out_errors(
            quiet,
            refit,
            initial=initial_values(row_format.constants),
            values=values,
            min_rows=len(constants) + 1,
            others=noisy,
        ),
    )


def median_utilisation(rows: Sequence[MeasuredRow]) -> dict[str, float]:
    """Return the median of ideal / measured, the baseline's u, by quantity."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.quantity, []).append(row.ideal / row.measured)
    return {quantity: float(np.median(shares)) for quantity, shares in found.items()}


def least_squares_values(
    row_format: RowFormat,
    rows: Sequence[MeasuredRow],
    free: Sequence[FreeConstant],
    start: ConstantValues | None = None,
) -> dict[str, float]:
    """Return the values of all constants, the free ones fitted.

    Args:
        row_format: format of the rows.
        rows: rows to fit.
        free: constants to fit.
        start: values near by, where some are known: of a fit to more rows.
    """
    from scipy.optimize import least_squares

    # The solver works in 0...1 of each constant's bounds, by ratio where they are far
    # apart. It starts off the bounds, where a step in either direction is possible.
    is_log = [one.low > 0 and one.high / one.low > 10 for one in free]
    base = initial_values(row_format.constants)

    def place(now: ConstantValues) -> list[float]:
        found = []
        for constant, by_ratio in zip(free, is_log):
            low, high, value = constant.low, constant.high, now[constant.name]
            if by_ratio:
                x = math.log(value / low) / math.log(high / low)
            else:
                x = (value - low) / (high - low)
            found.append(min(max(x, 0.01), 0.99))
        return found

    prior = place(base)

    def values(point: Sequence[float]) -> dict[str, float]:
        fitted = {}
        for constant, by_ratio, x in zip(free, is_log, map(float, point)):
            low, high = constant.low, constant.high
            value = low * (high / low) ** x if by_ratio else low + x * (high - low)
            fitted[constant.name] = value
        return base | fitted

    def residuals(point: Sequence[float]) -> list[float]:
        now = values(point)
        # Of rows that hardly tell two constants apart, the prior decides between them.
        priors = [_PRIOR_SCALE * (x - begin) for x, begin in zip(point, prior)]
        return [*(math.log(row.predict(now) / row.measured) for row in rows), *priors]

    # A second start in the middle of the bounds guards against a local minimum.
    starts = [prior, [0.5] * len(free)] if start is None else [place(start)]
    found = [
        least_squares(
            residuals,
            point,
            bounds=(0, 1),
            loss="soft_l1",
            f_scale=_LOSS_SCALE,
            diff_step=1e-4,
        )
        for point in starts
    ]
    return values(min(found, key=lambda one: float(one.cost)).x)
