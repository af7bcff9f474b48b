"""The known formats of measured rows, and which one a file has."""

from pathlib import Path
from typing import Final

from jaxdist.calibrate.formats.calculon import CalculonFormat
from jaxdist.calibrate.formats.fsdp import FsdpFormat
from jaxdist.calibrate.formats.paradl import ParadlFormat
from jaxdist.calibrate.formats.vtrain import VTrainFormat
from jaxdist.calibrate.measured_rows import RowFormat
from jaxdist.calibrate.table import read_csv
from jaxdist.core.errors import BadInput, did_you_mean

FORMATS: Final[tuple[RowFormat, ...]] = (
    VTrainFormat(),
    CalculonFormat(),
    ParadlFormat(),
    FsdpFormat(),
)
"""All formats; a file has the first that matches its header."""


def measured_files(measured: Path) -> list[Path]:
    """Return the files of measured rows, which are of one format.

    Raises:
        BadInput: a folder without any.
    """
    if not measured.is_dir():
        return [measured]
    files = sorted(measured.glob("*.csv"))
    if not files:
        raise BadInput(
            f"{measured} has no measured rows",
            rule="measured rows are in a CSV file, or in a folder's CSV files",
            values=f"{len(list(measured.iterdir()))} other files",
            remedy="a folder with a file *.csv",
        )
    return files


def detect_format(
    path: Path, name: str | None, formats: tuple[RowFormat, ...]
) -> RowFormat:
    """Return the format of a file.

    Args:
        path: a CSV file.
        name: name of the format, or None to tell it by the header.
        formats: known formats.

    Raises:
        BadInput: no format has that name, or that header.
    """
    header, _ = read_csv(path)
    names = [form.name for form in formats]
    for form in formats:
        if form.name == name or (name is None and form.matches(header)):
            return form
    if name is None:
        raise BadInput(
            f"{path} has the header of no known form",
            rule=f"forms are {', '.join(names)}",
            values=f"columns: {', '.join(header)}",
            remedy="--format NAME says what it is, and which column is missing",
        )
    # A name that is known would have been returned above.
    near = did_you_mean(name, names)
    raise BadInput(
        f"no format {name}",
        rule=f"--format is one of {', '.join(names)}",
        remedy=f"did you mean {near}?" if near else "leave it out: the header tells",
    )
