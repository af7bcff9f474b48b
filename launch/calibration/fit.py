"""Fits constants of a model to measured rows: `jaxdist calibrate fit`."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.calibrate.fit import MAX_CONSTANTS, ConstantsFit, fit, select_constants
from jaxdist.calibrate.fitted_constants import (
    FittedConstants,
    make_fitted_constants,
    write_constants,
)
from jaxdist.calibrate.formats.registry import FORMATS, detect_format, measured_files
from jaxdist.calibrate.measured_rows import MeasuredRow
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.terminal.console import make_table, print_next_commands, print_table
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class FitQuery:
    """What `jaxdist calibrate fit` takes."""

    measured: Path
    """CSV file of measured rows, or a folder of such files."""
    train: str | None = None
    """Selection of the rows to fit: `devices<=8`; the others are left to score."""
    format: str | None = None
    """Name of the format; told by the header of the file by default."""
    cluster: str | None = None
    """Name or file of the cluster; that of the format by default."""
    constants: str | None = None
    """Names of the constants, with commas; the first three by default."""
    allow_many_constants: bool = False
    """Whether more than three constants are fitted."""
    allow_noisy: bool = False
    """Whether rows that spread a lot are fitted as well."""
    output: Path = Path("fitted.json")
    """The file of constants to write."""
    force: bool = False
    """Whether a file that is there is overwritten."""


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """A fit with the rows of its file."""

    query: FitQuery
    constants: FittedConstants
    """What was written."""
    fit: ConstantsFit
    """What was fitted."""
    rows: tuple[MeasuredRow, ...]
    """All rows of the file."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            **asdict(self.constants),
            "rows": len(self.constants.rows),
            "noisy": len(self.fit.noisy_rows),
            "left_to_score": len(self.rows) - len(self.constants.rows),
        }


def run_fit(query: FitQuery) -> FitReport:
    """Fit constants to rows, and write them.

    Raises:
        BadInput: no such format, constants, cluster or rows, or rows that spread much.
    """
    if query.train is None:
        raise BadInput(
            "nothing says which rows to fit",
            rule="rows that are fitted are not scored later",
            values="no --train",
            remedy="--train 'devices<=8'",
        )
    # Formats are told by their header: each has its own model and constants.
    files = measured_files(query.measured)
    form = detect_format(files[0], query.format, FORMATS)
    names = query.constants.split(",") if query.constants else None
    # Few constants on purpose: with many any model fits the rows it was fitted to.
    most = len(form.constants) if query.allow_many_constants else MAX_CONSTANTS
    free = select_constants(form, names, most)
    cluster = query.cluster or form.cluster
    machine = load_cluster(cluster)
    machine.only_device("jaxdist calibrate fit")
    rows = [row for path in files for row in form.read(path, machine)]
    chosen = parse_row_filter(query.train).select(rows)
    found = fit(form, chosen, free, allow_noisy=query.allow_noisy)
    # The selection is written too, so that a score can leave out what was fitted.
    known = make_fitted_constants(
        form, cluster, found, query.train, query.measured.name
    )
    write_constants(known, query.output, force=query.force)
    return FitReport(query=query, constants=known, fit=found, rows=tuple(rows))


def print_fit(out: "Console", report: FitReport) -> None:
    """Print the constants with their bounds, and how well they fit."""
    query, found, known = report.query, report.fit, report.constants
    out.print(f"{query.measured.name}, fitted where {known.train}\n", soft_wrap=True)
    # Rows that are left out of the fit are the test of it.
    others = len(report.rows) - len(found.rows)
    facts = {
        "rows": f"{len(found.rows):,} fitted, {others:,} left to score",
        "cluster": known.cluster,
        "error": f"{format_percent(found.mape)} mean, on the rows that were fitted",
    }
    if found.noisy_rows:
        facts["noisy"] = (
            f"{len(found.noisy_rows):,} rows spread too much, and are not fitted"
        )
    for name, fact in facts.items():
        out.print(f"  {name:8} {fact}", soft_wrap=True)
    out.print()
    heads = ("value", "bounds")
    rows = make_table("constant", *heads, "unit", "what it is", right=heads)
    for one in found.fitted_constants:
        value, bounds = found.values[one.name], f"{one.low:g} to {one.high:g}"
        # A constant at its bound was stopped there: the rows want another model.
        margin = min(value - one.low, one.high - value)
        said = one.description
        said += ", at its bound" * (margin < 1e-3 * (one.high - one.low))
        rows.add_row(one.name, f"{value:.4g}", bounds, one.unit, said)
    print_table(out, rows)
    words = str(query.measured), "--cluster", str(query.output)
    print_next_commands(out, f"jaxdist score {shlex.join(words)}")
