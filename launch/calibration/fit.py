"""Fits: what `jaxdist calibrate fit` was asked for, done and written."""

import shlex
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdist.calibrate.fit import MAX_CONSTANTS, ConstantsFit, fit, select_constants
from jaxdist.calibrate.fitted_constants import (
    FittedConstants,
    make_fitted_constants,
    write_constants,
)
from jaxdist.calibrate.formats.registry import FORMATS, detect_format
from jaxdist.calibrate.measured_rows import FreeConstant, MeasuredRow
from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.core.text.formatting import format_percent
from jaxdist.meshes.clusters.load import load_cluster

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """A fit with the rows of its file."""

    constants: FittedConstants
    """What was written."""
    fit: ConstantsFit
    """What was fitted."""
    rows: tuple[MeasuredRow, ...]
    """All rows of the file."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as one object."""
        told = asdict(self.constants)
        return {
            **told,
            "rows": len(self.constants.rows),
            "noisy": len(self.fit.noisy_rows),
            "left_to_score": len(self.rows) - len(self.constants.rows),
        }


def run_fit(args: Namespace) -> FitReport:
    """Fit, and write the constants.

    Raises:
        BadInput: something of it cannot be.
    """
    form = detect_format(args.measured, args.format, FORMATS)
    names = args.constants.split(",") if args.constants else None
    most = len(form.constants) if args.more else MAX_CONSTANTS
    free = select_constants(form, names, most)
    cluster = args.cluster or form.cluster
    rows = form.read(args.measured, load_cluster(cluster))
    found = fit(
        form, parse_row_filter(args.train).select(rows), free, allow_noisy=args.noisy
    )
    known = make_fitted_constants(form, cluster, found, args.train, args.measured.name)
    write_constants(known, args.output)
    return FitReport(constants=known, fit=found, rows=tuple(rows))


def print_fit(out: "Console", report: FitReport, args: Namespace) -> None:
    """Print the constants with their bounds, and how well they fit."""
    from jaxdist.launch.terminal.console import (
        make_table,
        print_next_commands,
        print_table,
    )

    found, known = report.fit, report.constants
    out.print(f"{args.measured.name}, fitted where {known.train}\n", soft_wrap=True)
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
        said = one.description + ", at its bound" * _is_at_bound(one, value)
        rows.add_row(one.name, f"{value:.4g}", bounds, one.unit, said)
    print_table(out, rows)
    file, output = shlex.quote(str(args.measured)), shlex.quote(str(Path(args.output)))
    print_next_commands(out, f"jaxdist oracle score {file} --cluster {output}")


def _is_at_bound(constant: FreeConstant, value: float) -> bool:
    near = 1e-3 * (constant.high - constant.low)
    return min(value - constant.low, constant.high - value) < near
