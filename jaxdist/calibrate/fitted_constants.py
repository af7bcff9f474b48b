"""Fitted constants as a file: values, bounds, origin, and the rows they are from."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from jaxdist.calibrate.fit import ConstantsFit
from jaxdist.calibrate.measured_rows import MeasuredRow, RowFormat, initial_values
from jaxdist.core.errors import BadInput

_FILE_KIND: Final = "jaxdist fitted constants"


@dataclass(frozen=True, kw_only=True)
class FittedConstants:
    """Constants that were fitted, and to what."""

    format: str
    """Name of the form of the rows."""
    cluster: str
    """Name or file of the cluster that they were on."""
    values: dict[str, float]
    """Of all constants of the format."""
    constants: tuple[dict[str, Any], ...] = ()
    """Of those that were fitted: name, value, unit, low, high, origin."""
    train: str = ""
    """The selection of the rows."""
    source: str = ""
    """Name of the file they were in."""
    rows: tuple[str, ...] = ()
    """Keys of the rows that were fitted: none of them is scored."""
    mape: float | None = None
    """Over these rows."""
    utilisation: dict[str, float] = field(default_factory=dict)
    """The baseline of the same rows, by quantity."""
    interval: dict[str, float] = field(default_factory=dict)
    """Share of a prediction by which 9 of 10 of these rows are off at most."""
    kind: str = _FILE_KIND

    def split_rows(
        self, rows: Sequence[MeasuredRow]
    ) -> tuple[list[MeasuredRow], list[MeasuredRow]]:
        """Part rows in those that were fitted and the others."""
        known = set(self.rows)
        marked = [(row, row.key in known) for row in rows]
        return [row for row, was in marked if was], [r for r, was in marked if not was]


def make_fitted_constants(
    row_format: RowFormat, cluster: str, fit: ConstantsFit, fit_rows: str, source: str
) -> FittedConstants:
    """Return what a fit found as a value that can be kept."""
    return FittedConstants(
        format=row_format.name,
        cluster=cluster,
        values=fit.values,
        constants=tuple(
            {
                "name": one.name,
                "value": fit.values[one.name],
                "unit": one.unit,
                "low": one.low,
                "high": one.high,
                "origin": f"fitted to {len(fit.rows)} rows of {source}: {fit_rows}",
            }
            for one in fit.fitted_constants
        ),
        train=fit_rows,
        source=source,
        rows=tuple(row.key for row in fit.rows),
        mape=fit.mape,
        utilisation=fit.utilisation,
        interval=fit.error_interval,
    )


def initial_constants(row_format: RowFormat, cluster: str) -> FittedConstants:
    """Return the constants of a format where nothing was fitted."""
    return FittedConstants(
        format=row_format.name,
        cluster=cluster,
        values=initial_values(row_format.constants),
    )


def is_constants_file(path: Path) -> bool:
    """Tell whether a file has fitted constants, rather than a cluster."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(tree, dict) and tree.get("kind") == _FILE_KIND


def write_constants(constants: FittedConstants, path: Path) -> None:
    """Write fitted constants.

    Raises:
        BadInput: there is no folder for the file.
    """
    if not path.parent.is_dir():
        raise BadInput(
            f"no folder {path.parent}",
            rule="fitted constants are written into a folder that exists",
            values=f"-o {path}",
            remedy=f"-o {path.name}",
        )
    path.write_text(json.dumps(asdict(constants), indent=1) + "\n", encoding="utf-8")


def read_constants(path: Path, row_format: RowFormat) -> FittedConstants:
    """Read fitted constants for rows of a form.

    Raises:
        BadInput: they are of another form, or not what was written.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["format"] != row_format.name:
            raise _format_mismatch_error(path, tree["format"], row_format)
        values = {
            one.name: float(tree["values"][one.name]) for one in row_format.constants
        }
        rows, constants = tuple(tree["rows"]), tuple(tree["constants"])
        return FittedConstants(
            **{**tree, "values": values, "rows": rows, "constants": constants}
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{path} has no fitted constants of {row_format.name}",
            rule="fitted constants are what `jaxdist calibrate fit` wrote",
            values=f"{type(error).__name__}: {error}",
            remedy=f"jaxdist calibrate fit measured.csv --train ... -o {path}",
        ) from error


def _format_mismatch_error(path: Path, own: str, form: RowFormat) -> BadInput:
    return BadInput(
        f"{path} is fitted to rows of the form {own}",
        rule="constants are of one form, whose model they are of",
        values=f"rows: {form.name}",
        remedy=f"jaxdist calibrate fit FILE.csv --format {form.name} -o fitted.json",
    )
