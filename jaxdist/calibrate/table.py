"""CSV files as rows of text by column, and columns of a row as numbers."""

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaxdist.core.errors import BadInput, did_you_mean


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the header of a CSV file, and its rows by column.

    Args:
        path: UTF-8, with or without a byte order mark; the first line is the header.

    Raises:
        BadInput: no such file, nothing in it, or a row of another length.
    """
    if not path.is_file():
        here = [str(found) for found in path.parent.glob("*.csv")]
        near = did_you_mean(str(path), here)
        raise BadInput(
            f"no file {path}",
            rule="measured rows are in a CSV file",
            remedy=f"did you mean {near}?" if near else "ls *.csv",
        )
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if any(map(str.strip, line))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _csv_error(path, str(error)) from error
    if len(lines) < 2:
        raise _csv_error(path, f"{len(lines)} lines")
    header = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(header):
            raise _csv_error(
                path, f"row {number}: {len(line)} of {len(header)} columns"
            )
    return header, [dict(zip(header, map(str.strip, line))) for line in lines[1:]]


def normalize_name(column: str) -> str:
    """Return a column's name as one word, which needs no quotes.

    >>> normalize_name("iteration time (ms)"), normalize_name("# GPUs")
    ('iteration_time_ms', 'gpus')
    """
    return re.sub(r"[^0-9a-z]+", "_", column.lower()).strip("_")


def require_columns(header: Iterable[str], required: Sequence[str], path: Path) -> None:
    """Refuse a header that lacks columns.

    Raises:
        BadInput: names the first that is missing, and the nearest that is there.
    """
    there = list(header)
    for name in required:
        if name not in there:
            near = did_you_mean(name, there)
            raise BadInput(
                f"{path} has no column {name}",
                rule=f"a file of this form has {', '.join(required)}",
                values=f"columns: {', '.join(there)}",
                remedy=f"is {near} meant? rename it to {name}"
                if near
                else f"add the column {name}",
            )


def positive_float(row: Mapping[str, str], column: str, where: str) -> float:
    """Return a column of a row as a number above 0.

    Raises:
        BadInput: it is none.
    """
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise BadInput(
            f"{where}: {column} is {row[column] or 'empty'}",
            rule=f"{column} is a number above 0",
            values=f"{column} = {row[column]!r}",
            remedy=f"mend or leave out {where}",
        )
    return value


def positive_int(row: Mapping[str, str], column: str, where: str) -> int:
    """Return a column of a row as a whole number above 0.

    Raises:
        BadInput: it is none.
    """
    value = positive_float(row, column, where)
    if value != int(value):
        raise BadInput(
            f"{where}: {column} is {row[column]}",
            rule=f"{column} is a whole number",
            remedy=f"mend or leave out {where}",
        )
    return int(value)


def _csv_error(path: Path, values: str) -> BadInput:
    return BadInput(
        f"{path} has no rows that can be read",
        rule="a CSV file in UTF-8: a header, then rows with as many columns",
        values=values,
        remedy="head -2 FILE shows what a header and a row look like",
    )
