"""Fitted constants as a file: values, bounds, origin, and the rows behind them."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from jaxdist.calibrate.fit import ConstantsFit
from jaxdist.calibrate.measured_rows import MeasuredRow, RowFormat, initial_values
from jaxdist.core.errors import BadInput
from jaxdist.core.files import check_output, write_output
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
    interval: dict[str, float] = field(default_factory=dict)
    """Half of the 90 % interval as a share of the prediction, by quantity."""
    new_group_interval: dict[str, float] = field(default_factory=dict)
    """The same for rows of a group that was not fitted."""
    larger_interval: dict[str, float] = field(default_factory=dict)
    """The same for rows on more devices than any that was fitted."""
    groups: tuple[str, ...] = ()
    """Groups of the fitted rows."""
    max_devices: int = 0
    """The most devices of a fitted row."""
    kind: str = _FILE_KIND

    def error_share(self, row: MeasuredRow) -> float | None:
        """Return half of the row's 90 % interval as a share of its prediction.

        A row is judged by rows that were as new to a fit as it is: of a group that was
        not fitted, on more devices than any that was, or neither; at least as wide as
        where nothing is new. None where no fitted rows say how wide that is.
        """
        shares = [self.interval.get(row.quantity)]
        if self.groups and row.group not in self.groups:
            shares.append(self.new_group_interval.get(row.quantity))
        if self.groups and row.devices > self.max_devices:
            shares.append(self.larger_interval.get(row.quantity))
        known = [share for share in shares if share is not None]
        return max(known) if len(known) == len(shares) else None


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
        interval=fit.error_interval,
        new_group_interval=fit.new_group_interval,
        larger_interval=fit.larger_interval,
        groups=tuple(dict.fromkeys(row.group for row in fit.rows)),
        max_devices=max(row.devices for row in fit.rows),
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
        lists = {
            key: tuple(tree[key])
            for key in ("rows", "constants", "groups")
            if key in tree
        }
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
