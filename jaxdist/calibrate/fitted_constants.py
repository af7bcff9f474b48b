"""Fitted constants as a file: values, bounds, origin, and the rows behind them."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from jaxdist.calibrate.fit import ConstantsFit
from jaxdist.calibrate.held_out import (
    FittedScope,
    deciding_term,
    device_octaves,
    fitted_scope,
)
from jaxdist.calibrate.measured_rows import MeasuredRow, RowFormat, initial_values
from jaxdist.core.errors import BadInput
from jaxdist.core.files import check_output, write_output
from jaxdist.core.intervals import ErrorGroup, Interval, error_interval
from jaxdist.core.text_encoding import read_text
from jaxdist.core.validation import json_text, parse_json

_FILE_KIND: Final = "jaxdist fitted constants"


@dataclass(frozen=True, kw_only=True)
class FittedConstants:
    """Constants of a format, and what they were fitted to."""

    format: str
    """Name of the row format."""
    cluster: str
    """Name or file of the cluster of the rows."""
    values: dict[str, float]
    """Values of all constants of the format."""
    constants: tuple[dict[str, Any], ...] = ()
    """Fitted ones: name, value, unit, low, high, origin."""
    train: str = ""
    """Row filter that selected the rows."""
    source: str = ""
    """Name of the file of the rows."""
    rows: tuple[str, ...] = ()
    """Keys of the fitted rows: none of them is scored."""
    mape: float | None = None
    """Mean relative error over these rows."""
    utilisation: dict[str, float] = field(default_factory=dict)
    """Baseline of the same rows, by quantity."""
    errors: tuple[ErrorGroup, ...] = ()
    """Errors of these rows where they were left out of the fit."""
    scope: FittedScope = field(default_factory=FittedScope)
    """What these rows are of."""
    kind: str = _FILE_KIND

    def interval(self, row: MeasuredRow) -> Interval | None:
        """Return the 90 % interval of a prediction; None where nothing is known."""
        # In what the row differs from those fitted decides whose errors its interval
        # has.
        return error_interval(
            self.errors,
            self.scope.shifts(row, self.values),
            quantity=row.quantity,
            term=deciding_term(row, self.values),
            octaves=device_octaves(row.devices, self.scope.devices or (row.devices,)),
        )


def make_fitted_constants(
    row_format: RowFormat, cluster: str, fit: ConstantsFit, fit_rows: str, source: str
) -> FittedConstants:
    """Return a fit in the form that is written to a file."""
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
        errors=fit.errors,
        scope=fitted_scope(fit.rows, fit.values),
    )


def initial_constants(row_format: RowFormat, cluster: str) -> FittedConstants:
    """Return the constants of a format before any fit."""
    return FittedConstants(
        format=row_format.name,
        cluster=cluster,
        values=initial_values(row_format.constants),
    )


def is_constants_file(path: Path) -> bool:
    """Return whether a file holds fitted constants, rather than a cluster."""
    # The argument may be the name of a known cluster as well, which is no file.
    try:
        tree = parse_json(read_text(path))
    except (OSError, ValueError):
        return False
    return isinstance(tree, dict) and tree.get("kind") == _FILE_KIND


def write_constants(
    constants: FittedConstants, path: Path, *, force: bool = False
) -> None:
    """Write fitted constants to a JSON file.

    Raises:
        BadInput: the folder of the file does not exist, or the file does and `force` is
            not given.
    """
    check_output(path, force=force)
    write_output(path, json_text(asdict(constants), indent=1) + "\n", force=force)


def read_constants(path: Path, row_format: RowFormat) -> FittedConstants:
    """Read fitted constants for rows of a format.

    Raises:
        BadInput: they are of another format, or the file is damaged.
    """
    try:
        tree = parse_json(read_text(path))
        own = tree["format"]
        values = {
            # Looked up only in a file of the same format: names differ between formats.
            one.name: float(tree["values"][one.name])
            for one in row_format.constants
            if own == row_format.name
        }
        # JSON has lists where the dataclass has tuples.
        lists: dict[str, Any] = {k: tuple(tree[k]) for k in ("rows", "constants")}
        # Files of before have a share of the fitted rows themselves in their place.
        tree.pop("interval", None)
        lists["errors"] = tuple(
            ErrorGroup(**{**one, "log_ratios": tuple(one["log_ratios"])})
            for one in tree.get("errors", ())
        )
        scope = tree.get("scope", {})
        lists["scope"] = FittedScope(**{key: tuple(x) for key, x in scope.items()})
        known = FittedConstants(**{**tree, "values": values, **lists})
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path} has no fitted constants of {row_format.name}",
            rule="fitted constants are what `jaxdist calibrate fit` wrote",
            values=f"{type(error).__name__}: {error}",
            remedy=f"jaxdist calibrate fit measured.csv --train ... -o {path}",
        ) from error
    if own != row_format.name:
        raise BadInput(
            f"{path} is fitted to rows of the form {own}",
            rule="constants are of one form, whose model they are of",
            values=f"rows: {row_format.name}",
            remedy=f"jaxdist calibrate fit FILE.csv --format {row_format.name} "
            "-o fitted.json",
        )
    return known
