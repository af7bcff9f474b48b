"""Fitting a few bounded constants of a prediction model to measured rows."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.calibrate.measured_rows import (
    FreeConstant,
    MeasuredRow,
    RowFormat,
    initial_values,
)
from jaxdist.core.errors import BadInput, did_you_mean

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
    error_interval: dict[str, float]
    """90th percentile of |measured / predicted - 1|, by quantity."""
    new_group_interval: dict[str, float]
    """What 9 of 10 rows are off by at most whose group was left out of the fit, one
    group after the other; without quantities of which no group can be left out."""
    larger_interval: dict[str, float]
    """The same of rows on more than half of the most devices, where those were left out
    of the fit; without quantities of which they cannot be."""


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

    values = _least_squares(row_format, quiet, constants)
    errors = []
    ratios: dict[str, list[float]] = {}
    for row in quiet:
        predicted = row.predict(values)
        errors.append(abs(predicted - row.measured) / row.measured)
        # The interval is around a prediction, so its errors are relative to that.
        ratio = abs(row.measured / predicted - 1)
        ratios.setdefault(row.quantity, []).append(ratio)
    most = max(row.devices for row in quiet)
    return ConstantsFit(
        values=values,
        fitted_constants=tuple(constants),
        rows=tuple(quiet),
        noisy_rows=tuple(noisy),
        mape=float(np.mean(errors)),
        utilisation=median_utilisation(quiet),
        error_interval={q: float(np.percentile(r, 90)) for q, r in ratios.items()},
        new_group_interval=_held_out_interval(
            row_format,
            quiet,
            constants,
            [
                [row for row in quiet if row.group == group]
                for group in dict.fromkeys(row.group for row in quiet)
            ],
        ),
        larger_interval=_held_out_interval(
            row_format,
            quiet,
            constants,
            [[row for row in quiet if 2 * row.devices > most]],
        ),
    )


def _held_out_interval(
    row_format: RowFormat,
    rows: Sequence[MeasuredRow],
    constants: Sequence[FreeConstant],
    folds: Sequence[Sequence[MeasuredRow]],
) -> dict[str, float]:
    """Return what 9 of 10 errors are below, each fold predicted by a fit without it.

    Errors are few, so it is the ceil(0.9 (n + 1))-th smallest of n, and the largest
    where n is below 9: what a further row is below with that probability, if it is like
    these (split conformal prediction, Lei et al. 2018, JASA 113).

    Args:
        row_format: format of the rows.
        rows: all that were fitted.
        constants: that were fitted.
        folds: rows to leave out together.
    """
    ratios: dict[str, list[float]] = {}
    for fold in folds:
        keys = {row.key for row in fold}
        others = [row for row in rows if row.key not in keys]
        # A quantity that nothing else measures is not predicted from other rows.
        known = {row.quantity for row in others}
        judged = [row for row in fold if row.quantity in known]
        if not judged or len(others) <= len(constants):
            continue
        values = _least_squares(row_format, others, constants)
        for row in judged:
            ratio = abs(row.measured / row.predict(values) - 1)
            ratios.setdefault(row.quantity, []).append(ratio)
    return {
        quantity: sorted(errors)[
            min(math.ceil(0.9 * (len(errors) + 1)), len(errors)) - 1
        ]
        for quantity, errors in ratios.items()
    }


def median_utilisation(rows: Sequence[MeasuredRow]) -> dict[str, float]:
    """Return the median of ideal / measured, the baseline's u, by quantity."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.quantity, []).append(row.ideal / row.measured)
    return {quantity: float(np.median(shares)) for quantity, shares in found.items()}


def _least_squares(
    row_format: RowFormat, rows: Sequence[MeasuredRow], free: Sequence[FreeConstant]
) -> dict[str, float]:
    """Return the values of all constants, the free ones fitted."""
    from scipy.optimize import least_squares

    # The solver works in 0...1 of each constant's bounds, by ratio where they are far
    # apart. It starts off the bounds, where a step in either direction is possible.
    start, is_log = [], []
    for constant in free:
        low, high, initial = constant.low, constant.high, constant.initial
        is_log.append(low > 0 and high / low > 10)
        if is_log[-1]:
            x = math.log(initial / low) / math.log(high / low)
        else:
            x = (initial - low) / (high - low)
        start.append(min(max(x, 0.01), 0.99))

    base = initial_values(row_format.constants)

    def values(point: Sequence[float]) -> dict[str, float]:
        fitted = {}
        for constant, by_ratio, x in zip(free, is_log, map(float, point)):
            low, high = constant.low, constant.high
            value = low * (high / low) ** x if by_ratio else low + x * (high - low)
            fitted[constant.name] = value
        return base | fitted

    def residuals(point: Sequence[float]) -> list[float]:
        now = values(point)
        priors = [_PRIOR_SCALE * (x - begin) for x, begin in zip(point, start)]
        return [*(math.log(row.predict(now) / row.measured) for row in rows), *priors]

    # A second start in the middle of the bounds guards against a local minimum.
    found = [
        least_squares(
            residuals,
            point,
            bounds=(0, 1),
            loss="soft_l1",
            f_scale=_LOSS_SCALE,
            diff_step=1e-4,
        )
        for point in (start, [0.5] * len(free))
    ]
    return values(min(found, key=lambda one: float(one.cost)).x)
