"""Scores: predictions of rows that were not fitted, beside what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxdist.calibrate.fit import median_utilisation
from jaxdist.calibrate.fitted_constants import FittedConstants
from jaxdist.calibrate.measured_rows import MeasuredRow
from jaxdist.core.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class ScoredRow:
    """One row with its prediction and the baseline's."""

    row: MeasuredRow
    predicted: float
    """In the row's unit."""
    baseline: float
    """In the row's unit: ideal / u."""
    interval_half_width: float | None = None
    """Half of the 90 % interval, in the row's unit; None where nothing was fitted."""

    @property
    def error(self) -> float:
        """Return |predicted - measured| / measured."""
        return abs(self.predicted - self.row.measured) / self.row.measured

    @property
    def is_covered(self) -> bool | None:
        """Tell whether the interval holds what was measured."""
        off = abs(self.predicted - self.row.measured)
        return (
            None
            if self.interval_half_width is None
            else off <= self.interval_half_width
        )

    @property
    def baseline_error(self) -> float:
        """Return |baseline - measured| / measured."""
        return abs(self.baseline - self.row.measured) / self.row.measured


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """Errors of several rows in a few numbers; shares of the measured value."""

    rows: int
    mean_accuracy: float
    """Mean of 1 - |predicted - measured| / measured."""
    mape: float
    """Mean of |predicted - measured| / measured."""
    median: float
    p95: float
    worst: float
    baseline_mape: float
    """The same mean for one constant utilisation."""
    covered: float | None
    """Share of the rows that have an interval, and are within it."""


@dataclass(frozen=True, kw_only=True)
class ScoreReport:
    """All rows that were scored."""

    rows: tuple[ScoredRow, ...]
    num_fitted: int
    """Rows of the file that were fitted, and are not scored."""
    baseline_in_hindsight: bool
    """The baseline's u is fitted to the scored rows themselves, in its favour."""

    @property
    def total(self) -> ErrorSummary:
        """Return the errors of all rows."""
        return summarize_errors(self.rows)

    @property
    def groups(self) -> dict[str, ErrorSummary]:
        """Return the errors by group."""
        names = dict.fromkeys(one.row.group for one in self.rows)
        return {
            name: summarize_errors([one for one in self.rows if one.row.group == name])
            for name in names
        }


def score_predictions(
    rows: Sequence[MeasuredRow], constants: FittedConstants, *, explicit: bool = False
) -> ScoreReport:
    """Predict the rows that were not fitted.

    Args:
        rows: of one form.
        constants: constants, with the keys of rows that they were fitted to.
        explicit: the rows were named one by one, so a fitted one among them is refused
            rather than left out.

    Raises:
        BadInput: fitted rows were chosen, or there are no others.
    """
    seen, fresh = constants.split_rows(rows)
    if seen and (explicit or len(seen) == len(rows)):
        raise BadInput(
            f"{len(seen)} of {len(rows)} rows are those that were fitted",
            rule="a prediction is never scored on rows its constants were fitted to",
            values=f"fitted: {constants.train}, {len(constants.rows)} rows of "
            f"{constants.source}",
            remedy="score other rows, or fit fewer of them with --train",
        )
    u = constants.utilisation
    hindsight = any(row.quantity not in u for row in fresh)
    u = {**median_utilisation(fresh), **u}
    found = tuple(_score_row(row, constants, u[row.quantity]) for row in fresh)
    return ScoreReport(
        rows=found, num_fitted=len(seen), baseline_in_hindsight=hindsight
    )


def summarize_errors(rows: Sequence[ScoredRow]) -> ErrorSummary:
    """Sum up the errors of rows."""
    errors = np.array([one.error for one in rows])
    covered = [one.is_covered for one in rows if one.is_covered is not None]
    return ErrorSummary(
        rows=len(rows),
        mean_accuracy=float(np.mean(1 - errors)),
        mape=float(np.mean(errors)),
        median=float(np.median(errors)),
        p95=float(np.percentile(errors, 95)),
        worst=float(np.max(errors)),
        baseline_mape=float(np.mean([one.baseline_error for one in rows])),
        covered=float(np.mean(covered)) if covered else None,
    )


def _score_row(
    row: MeasuredRow, constants: FittedConstants, utilisation: float
) -> ScoredRow:
    predicted, share = (
        row.predict(constants.values),
        constants.interval.get(row.quantity),
    )
    return ScoredRow(
        row=row,
        predicted=predicted,
        baseline=row.ideal / utilisation,
        interval_half_width=None if share is None else share * predicted,
    )
