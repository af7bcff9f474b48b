"""Scores of predictions on rows that were not fitted: errors, and rankings."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from jaxdist.calibrate.fit import median_utilisation
from jaxdist.calibrate.fitted_constants import FittedConstants
from jaxdist.calibrate.measured_rows import MeasuredRow
from jaxdist.core.errors import BadInput
from jaxdist.core.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class ScoredRow:
    """A measured row with its prediction and the baseline's, in the row's unit."""

    row: MeasuredRow
    predicted: float
    baseline: float
    """The row's ideal / u."""
    interval: Interval | None = None
    """The 90 % interval, as factors; None where nothing was fitted."""

    @property
    def error(self) -> float:
        """Return |predicted - measured| / measured."""
        return abs(self.predicted - self.row.measured) / self.row.measured

    @property
    def is_covered(self) -> bool | None:
        """Return whether the measured value is within the interval, if there is one."""
        if self.interval is None:
            return None
        return self.interval.holds(self.predicted, self.row.measured)

    @property
    def baseline_error(self) -> float:
        """Return |baseline - measured| / measured."""
        return abs(self.baseline - self.row.measured) / self.row.measured


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """Errors of several rows; shares of the measured value."""

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
    """Share of the rows with an interval that are within it."""
    half_width: float | None
    """Median half width of these intervals, as a share of the prediction."""


@dataclass(frozen=True, kw_only=True)
class ScoreReport:
    """All scored rows of a file."""

    rows: tuple[ScoredRow, ...]
    num_fitted: int
    """Rows of the file that were fitted, and are not scored."""
    baseline_in_hindsight: bool
    """Whether the baseline's u is fitted to the scored rows themselves."""

    @property
    def total(self) -> ErrorSummary:
        """Return the errors of all rows."""
        return summarize_errors(self.rows)

    @property
    def groups(self) -> dict[str, ErrorSummary]:
        """Return the errors by group."""
        return {
            name: summarize_errors([one for one in self.rows if one.row.group == name])
            for name in dict.fromkeys(one.row.group for one in self.rows)
        }


def score_predictions(
    rows: Sequence[MeasuredRow], constants: FittedConstants, *, explicit: bool = False
) -> ScoreReport:
    """Predict the rows that were not fitted.

    Args:
        rows: rows of one format.
        constants: constants, with the keys of rows that they were fitted to.
        explicit: whether the rows were selected one by one; then a fitted one among
            them is an error, and else it is left out.

    Raises:
        BadInput: fitted rows were selected, or there are no others.
    """
    # Keys are hashes of what rows say, so a copy of a row in another file counts, too.
    fitted = set(constants.rows)
    fresh = [row for row in rows if row.key not in fitted]
    num_fitted = len(rows) - len(fresh)
    if num_fitted and (explicit or not fresh):
        raise BadInput(
            f"{num_fitted} of {len(rows)} rows are those that were fitted",
            rule="a prediction is never scored on rows its constants were fitted to",
            values=f"fitted: {constants.train}, {len(constants.rows)} rows of "
            f"{constants.source}",
            remedy="score other rows, or fit fewer of them with --train",
        )

    # A quantity that was not fitted has no utilisation from other rows: the baseline
    # then sees the very rows it is scored on, which is in its favour, and is reported.
    utilisation = {**median_utilisation(fresh), **constants.utilisation}
    scored = []
    for row in fresh:
        predicted = row.predict(constants.values)
        scored.append(
            ScoredRow(
                row=row,
                predicted=predicted,
                baseline=row.ideal / utilisation[row.quantity],
                interval=constants.interval(row),
            )
        )
    return ScoreReport(
        rows=tuple(scored),
        num_fitted=num_fitted,
        baseline_in_hindsight=any(
            row.quantity not in constants.utilisation for row in fresh
        ),
    )


def summarize_errors(rows: Sequence[ScoredRow]) -> ErrorSummary:
    """Summarize the errors of rows."""
    errors = np.array([one.error for one in rows])
    # Quantities that were not fitted have no interval.
    widths = [one.interval.half_width for one in rows if one.interval is not None]
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
        half_width=float(np.median(widths)) if widths else None,
    )


@dataclass(frozen=True, kw_only=True)
class RankingAccuracy:
    """How many measured rankings, and pairs of rows in them, are predicted in order."""

    contests: int
    """Number of ranking groups."""
    right: int
    """Groups in which every pair is in order."""
    pairs: int
    """Pairs of rows with different measurements."""
    pairs_right: int
    """Pairs that are predicted in the measured order."""

    @property
    def accuracy(self) -> float:
        """Return the share of pairs in order."""
        return self.pairs_right / self.pairs


def score_rankings(rows: Sequence[ScoredRow]) -> RankingAccuracy | None:
    """Compare predicted and measured order within ranking groups; None without any."""
    groups: dict[str, list[ScoredRow]] = {}
    for one in rows:
        if one.row.ranking_group:
            groups.setdefault(one.row.ranking_group, []).append(one)
    # Two rows with equal measurements have no order, and two with equal predictions are
    # not in order.
    in_order = [
        [
            (a.row.measured - b.row.measured) * (a.predicted - b.predicted) > 0
            for a, b in combinations(group, 2)
            if a.row.measured != b.row.measured
        ]
        for group in groups.values()
    ]
    in_order = [pairs for pairs in in_order if pairs]
    if not in_order:
        return None
    return RankingAccuracy(
        contests=len(in_order),
        right=sum(all(pairs) for pairs in in_order),
        pairs=sum(len(pairs) for pairs in in_order),
        pairs_right=sum(sum(pairs) for pairs in in_order),
    )
