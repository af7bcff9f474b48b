"""Scores: what `jaxdist oracle score` was asked for, done and laid out."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxdist.calibrate.fitted_constants import (
    FittedConstants,
    initial_constants,
    is_constants_file,
    read_constants,
)
from jaxdist.calibrate.formats.registry import FORMATS, detect_format
from jaxdist.calibrate.measured_rows import MeasuredRow, RowFormat
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import (
    ErrorSummary,
    ScoredRow,
    ScoreReport,
    score_predictions,
    score_rankings,
)
from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_percent
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from rich.console import Console

_NUM_WORST_ROWS: Final = 5


@dataclass(frozen=True, kw_only=True)
class ScoreAnalysis:
    """A score with what it is of."""

    report: ScoreReport
    constants: FittedConstants
    """Constants, fitted or not."""
    file: str
    """Name of the file of the rows."""
    explained_row: MeasuredRow | None
    """The row whose terms are asked for."""


def run_score(args: Namespace) -> ScoreAnalysis:
    """Score what was asked for.

    Raises:
        BadInput: something of it cannot be.
    """
    form = detect_format(args.measured, args.format, FORMATS)
    known = _load_constants(args.cluster, form)
    rows = form.read(args.measured, load_cluster(known.cluster))
    chosen = parse_row_filter(args.rows).select(rows) if args.rows else rows
    return ScoreAnalysis(
        report=score_predictions(chosen, known, explicit=bool(args.rows)),
        constants=known,
        file=args.measured.name,
        explained_row=None if args.explain is None else _select_row(rows, args.explain),
    )


def score_to_dict(analysis: ScoreAnalysis) -> dict[str, Any]:
    """Return a score as one object; errors are shares, times seconds."""
    found = analysis.report
    more = (
        {}
        if analysis.explained_row is None
        else {"terms": row_terms(analysis.explained_row, analysis.constants)}
    )
    if ranks := score_rankings(found.rows):
        more["ranking"] = {**asdict(ranks), "accuracy": ranks.accuracy}
    return {
        **asdict(found.total),
        "groups": {name: asdict(one) for name, one in found.groups.items()},
        "left_out": found.num_fitted,
        "baseline_hindsight": found.baseline_in_hindsight,
        "format": analysis.constants.format,
        "constants": analysis.constants.values,
        "origin": _describe_constants(analysis.constants),
        **more,
        "each": [_row_to_dict(one) for one in found.rows],
    }


def print_score(out: "Console", analysis: ScoreAnalysis) -> None:
    """Print errors by group, the worst rows, and terms where they are asked for."""
    from jaxdist.launch.terminal.console import print_next_commands

    found = analysis.report
    left = f", {found.num_fitted:,} fitted ones left out" * bool(found.num_fitted)
    out.print(
        f"{analysis.file}: {len(found.rows):,} rows scored{left}\n", soft_wrap=True
    )
    out.print(f"  accuracy {format_percent(found.total.mean_accuracy)} mean")
    if found.total.covered is not None:
        held = format_percent(found.total.covered)
        out.print(f"  interval of 90 % holds {held} of the rows")
    if ranks := score_rankings(found.rows):
        pairs = f"{ranks.pairs_right} of {ranks.pairs} pairs in order"
        wholly = f"{ranks.right} of {ranks.contests} rankings right"
        out.print(f"  ranking {format_percent(ranks.accuracy)}: {pairs}, {wholly}")
    out.print(f"  constants {_describe_constants(analysis.constants)}", soft_wrap=True)
    which = (
        "these rows, in its favour"
        if found.baseline_in_hindsight
        else "the rows fitted"
    )
    out.print(f"  baseline one utilisation, fitted to {which}\n", soft_wrap=True)
    _print_groups(out, found)
    _print_worst(out, found)
    if analysis.explained_row is not None:
        _print_terms(out, analysis.explained_row, analysis.constants)
    if not analysis.constants.rows:
        file = analysis.file
        print_next_commands(
            out, f"jaxdist calibrate fit {file} --train ... -o fitted.json"
        )
    elif analysis.explained_row is None:
        print_next_commands(out, "--explain N prints the terms of row N")


def row_terms(row: MeasuredRow, constants: FittedConstants) -> dict[str, float]:
    """Return the prediction of a row by term, in its unit.

    Raises:
        BadInput: its model has no terms.
    """
    if row.predict_terms is None:
        raise BadInput(
            f"{row.label} has no terms",
            rule="terms are printed where the model has them",
            values=f"format {constants.format}",
            remedy="leave out --explain",
        )
    return dict(row.predict_terms(constants.values))


def _load_constants(cluster: str | None, form: RowFormat) -> FittedConstants:
    if cluster is not None and is_constants_file(Path(cluster)):
        return read_constants(Path(cluster), form)
    return initial_constants(form, cluster or form.cluster)


def _select_row(rows: Sequence[MeasuredRow], number: int) -> MeasuredRow:
    if not 0 <= number < len(rows):
        raise BadInput(
            f"no row {number}",
            rule="--explain takes the number of a row of the file, from 0",
            values=f"{len(rows)} rows",
            remedy=f"--explain {len(rows) - 1}",
        )
    return rows[number]


def _describe_constants(known: FittedConstants) -> str:
    if not known.rows:
        return f"not fitted; cluster {known.cluster}"
    values = ", ".join(f"{c['name']} {c['value']:.4g}" for c in known.constants)
    return f"{values}; fitted to {len(known.rows):,} rows of {known.source}"


def _row_to_dict(one: ScoredRow) -> dict[str, Any]:
    row = one.row
    return {
        "label": row.label,
        "group": row.group,
        "devices": row.devices,
        "unit": row.unit,
        "measured": row.measured,
        "predicted": one.predicted,
        "interval": one.interval_half_width,
        "baseline": one.baseline,
        "error": one.error,
    }


def _print_groups(out: "Console", found: ScoreReport) -> None:
    from jaxdist.launch.terminal.console import make_table, print_table

    heads = ("rows", "MAPE", "median", "p95", "worst", "baseline's MAPE")
    rows = make_table("group", *heads, right=heads)
    groups = found.groups
    named = groups.items() if len(groups) > 1 else ()
    for name, one in (*named, ("all", found.total)):
        rows.add_row(name, f"{one.rows:,}", *_error_columns(one))
    print_table(out, rows)


def _error_columns(one: ErrorSummary) -> list[str]:
    shares = (one.mape, one.median, one.p95, one.worst, one.baseline_mape)
    return [format_percent(share) for share in shares]


def _print_worst(out: "Console", found: ScoreReport) -> None:
    from jaxdist.launch.terminal.console import make_table, print_table

    worst = sorted(found.rows, key=lambda one: -one.error)[:_NUM_WORST_ROWS]
    units = {one.row.unit for one in worst}
    unit = f", {units.pop()}" if len(units) == 1 else ""
    heads = f"predicted{unit}", f"measured{unit}", "accurate"
    rows = make_table("worst rows", *heads, *["unit"] * (not unit), right=heads)
    for one in worst:
        accurate = format_percent(max(1 - one.error, 0))
        numbers = f"{one.predicted:.4g}", f"{one.row.measured:.4g}"
        rows.add_row(one.row.label, *numbers, accurate, *[one.row.unit] * (not unit))
    print_table(out, rows)


def _print_terms(out: "Console", row: MeasuredRow, known: FittedConstants) -> None:
    from jaxdist.launch.terminal.console import make_table, print_table

    total = row.predict(known.values)
    rows = make_table("term", row.unit, "share", right=(row.unit, "share"))
    for name, value in row_terms(row, known).items():
        rows.add_row(name, f"{value:.4g}", format_percent(value / total))
    rows.add_row("predicted", f"{total:.4g}", format_percent(1.0))
    rows.add_row("measured", f"{row.measured:.4g}", "")
    out.print(f"  {row.label}\n", soft_wrap=True)
    print_table(out, rows)
