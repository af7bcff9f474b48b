"""Scores predictions on measured rows: `jaxdist score`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxdist.calibrate.fitted_constants import (
    FittedConstants,
    initial_constants,
    is_constants_file,
    read_constants,
)
from jaxdist.calibrate.formats.registry import FORMATS, detect_format, measured_files
from jaxdist.calibrate.measured_rows import MeasuredRow
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.calibrate.score import ScoreReport, score_predictions, score_rankings
from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from rich.console import Console

_NUM_WORST_ROWS: Final = 5


@dataclass(frozen=True, kw_only=True)
class ScoreQuery:
    """What `jaxdist score` takes."""

    measured: Path
    """CSV file of measured rows, or a folder of such files."""
    cluster: str | None = None
    """Name or file of a cluster, or constants that `jaxdist calibrate fit` wrote."""
    format: str | None = None
    """Name of the format; told by the header of the file by default."""
    rows: str | None = None
    """Selection of the rows to score; those that were fitted are then refused."""
    explain: int | None = None
    """Number of a row of the file, from 0, whose terms are printed."""


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

    def to_dict(self) -> dict[str, Any]:
        """Return the score as plain values; errors are shares, times seconds."""
        found, constants = self.report, self.constants
        more: dict[str, Any] = {}
        if self.explained_row is not None:
            more["terms"] = row_terms(self.explained_row, constants)
        if ranks := score_rankings(found.rows):
            more["ranking"] = {**asdict(ranks), "accuracy": ranks.accuracy}
        return {
            **asdict(found.total),
            "groups": {name: asdict(one) for name, one in found.groups.items()},
            "left_out": found.num_fitted,
            "baseline_hindsight": found.baseline_in_hindsight,
            "format": constants.format,
            "constants": constants.values,
            "origin": _describe_constants(constants),
            **more,
            "each": [
                {
                    "label": one.row.label,
                    "group": one.row.group,
                    "devices": one.row.devices,
                    "unit": one.row.unit,
                    "measured": one.row.measured,
                    "predicted": one.predicted,
                    "interval": None
                    if one.interval is None
                    else [
                        one.predicted * one.interval.low,
                        one.predicted * one.interval.high,
                    ],
                    "interval_basis": one.interval and one.interval.basis,
                    "baseline": one.baseline,
                    "error": one.error,
                }
                for one in found.rows
            ],
        }


def run_score(query: ScoreQuery) -> ScoreAnalysis:
    """Predict measured rows, and score the predictions.

    Raises:
        BadInput: no such format, cluster or rows, or rows that were fitted.
    """
    files = measured_files(query.measured)
    form = detect_format(files[0], query.format, FORMATS)
    # Fitted constants name the cluster that they were fitted on.
    if query.cluster is not None and is_constants_file(Path(query.cluster)):
        constants = read_constants(Path(query.cluster), form)
    else:
        constants = initial_constants(form, query.cluster or form.cluster)
    cluster = load_cluster(constants.cluster)
    cluster.only_device("jaxdist score")
    rows = [row for path in files for row in form.read(path, cluster)]
    chosen = parse_row_filter(query.rows).select(rows) if query.rows else rows
    # Rows are numbered as in the file, also where a selection is scored.
    if query.explain is not None and not 0 <= query.explain < len(rows):
        raise BadInput(
            f"no row {query.explain}",
            rule="--explain takes the number of a row of the file, from 0",
            values=f"{len(rows)} rows",
            remedy=f"--explain {len(rows) - 1}",
        )
    return ScoreAnalysis(
        report=score_predictions(chosen, constants, explicit=bool(query.rows)),
        constants=constants,
        file=query.measured.name,
        explained_row=None if query.explain is None else rows[query.explain],
    )


def print_score(out: "Console", analysis: ScoreAnalysis) -> None:
    """Print errors by group, the worst rows, and terms where they are asked for."""
    found, constants = analysis.report, analysis.constants
    left = f", {found.num_fitted:,} fitted ones left out" * bool(found.num_fitted)
    out.print(
        f"{analysis.file}: {len(found.rows):,} rows scored{left}\n", soft_wrap=True
    )
    out.print(f"  accuracy {format_percent(found.total.mean_accuracy)} mean")
    if found.total.covered is not None:
        share = format_percent(found.total.covered)
        # A row that is new in a way that no fitted row was held out for has none.
        having = sum(one.interval is not None for one in found.rows)
        which = "the rows"
        if having < len(found.rows):
            which = f"the {having:,} rows that have one"
        out.print(f"  interval of 90 % holds {share} of {which}")
    if ranks := score_rankings(found.rows):
        pairs = f"{ranks.pairs_right} of {ranks.pairs} pairs in order"
        wholly = f"{ranks.right} of {ranks.contests} rankings right"
        out.print(f"  ranking {format_percent(ranks.accuracy)}: {pairs}, {wholly}")
    out.print(f"  constants {_describe_constants(constants)}", soft_wrap=True)
    # Without fitted rows the baseline is fitted to those that it is scored on.
    in_favour = found.baseline_in_hindsight
    which = "these rows, in its favour" if in_favour else "the rows fitted"
    out.print(f"  baseline one utilisation, fitted to {which}\n", soft_wrap=True)

    _print_groups(out, found)

    heads: tuple[str, ...]
    # The worst rows say where the model is wrong; the mean does not.
    worst = sorted(found.rows, key=lambda row: -row.error)[:_NUM_WORST_ROWS]
    units = {one.row.unit for one in worst}
    unit = f", {units.pop()}" if len(units) == 1 else ""
    heads = f"predicted{unit}", f"measured{unit}", "accurate"
    table = make_table("worst rows", *heads, *["unit"] * (not unit), right=heads)
    for scored in worst:
        row, accurate = scored.row, format_percent(max(1 - scored.error, 0))
        numbers = f"{scored.predicted:.4g}", f"{row.measured:.4g}"
        table.add_row(row.label, *numbers, accurate, *[row.unit] * (not unit))
    print_table(out, table)

    if (explained := analysis.explained_row) is not None:
        # Terms are shares of the prediction; what was measured has none.
        total = explained.predict(constants.values)
        heads = explained.unit, "share"
        table = make_table("term", *heads, right=heads)
        for name, value in row_terms(explained, constants).items():
            table.add_row(name, f"{value:.4g}", format_percent(value / total))
        table.add_row("predicted", f"{total:.4g}", format_percent(1.0))
        table.add_row("measured", f"{explained.measured:.4g}", "")
        out.print(f"  {explained.label}\n", soft_wrap=True)
        print_table(out, table)
    if not constants.rows:
        command = f"jaxdist calibrate fit {analysis.file} --train ... -o fitted.json"
        print_next_commands(out, command)
    elif explained is None:
        print_next_commands(out, "--explain N prints the terms of row N")


def _print_groups(out: "Console", found: ScoreReport) -> None:
    """Print errors and intervals by group."""
    heads: tuple[str, ...]
    heads = ("rows", "MAPE", "median", "p95", "worst", "baseline's MAPE")
    has_interval = found.total.covered is not None
    heads = (*heads, *("interval", "holds") * has_interval)
    table = make_table("group", *heads, right=heads)
    # With a single group its row would repeat that of all.
    named = found.groups.items() if len(found.groups) > 1 else ()
    for name, one in (*named, ("all", found.total)):
        errors = (one.mape, one.median, one.p95, one.worst, one.baseline_mape)
        cells = [format_percent(error) for error in errors]
        if has_interval:
            # A group of a quantity that was not fitted has none.
            width, share = one.half_width, one.covered
            cells.append("" if width is None else f"± {format_percent(width, 0)}")
            cells.append("" if share is None else format_percent(share, 0))
        table.add_row(name, f"{one.rows:,}", *cells)
    print_table(out, table)


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


def _describe_constants(known: FittedConstants) -> str:
    if not known.rows:
        return f"not fitted; cluster {known.cluster}"
    values = ", ".join(f"{c['name']} {c['value']:.4g}" for c in known.constants)
    return f"{values}; fitted to {len(known.rows):,} rows of {known.source}"
