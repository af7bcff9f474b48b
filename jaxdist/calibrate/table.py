"""CSV files as rows of text by column, and columns of a row as numbers."""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text_encoding import read_text


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Read a CSV file: its header, and its rows by column.

    Args:
        path: UTF-8, or UTF-16 with a byte order mark; the first line is the header.

    Raises:
        BadInput: no such file, an empty one, or a row of another length.
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
        with io.StringIO(read_text(path), newline="") as file:
            reader = csv.DictReader(line for line in file if line.strip())
            header = [name.strip() for name in reader.fieldnames or ()]
            # Set again without blanks around names, which files by hand have.
            reader.fieldnames = header
            rows: list[dict[str, str]] = []
            for row in reader:
                # DictReader files cells beyond the header under None, as a list, and
                # fills up a short row with None.
                surplus: Any = row.pop(None, [])
                cells = [cell for cell in row.values() if cell is not None]
                if not any(cell.strip() for cell in (*cells, *surplus)):
                    continue
                if surplus or len(cells) < len(row):
                    raise csv.Error(
                        f"row {len(rows) + 2}: {len(cells) + len(surplus)} of "
                        f"{len(header)} columns"
                    )
                rows.append({name: cell.strip() for name, cell in row.items()})
        if not rows:
            raise csv.Error(f"{int(bool(header))} lines")
    except csv.Error as error:
        raise BadInput(
            f"{path} has no rows that can be read",
            rule="a CSV file in UTF-8: a header, then rows with as many columns",
            values=str(error),
            remedy="head -2 FILE shows what a header and a row look like",
        ) from error
    return header, rows


def normalize_name(column: str) -> str:
    """Return a column's name as one word, which a row filter takes without quotes.

    >>> normalize_name("iteration time (ms)"), normalize_name("# GPUs")
    ('iteration_time_ms', 'gpus')
    """
    return re.sub(r"[^0-9a-z]+", "_", column.lower()).strip("_")


def require_columns(header: Iterable[str], required: Sequence[str], path: Path) -> None:
    """Refuse a header that lacks columns.

    Raises:
        BadInput: a column is missing; names it and the nearest that is there.
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
    """Return a cell of a row as a positive number.

    Raises:
        BadInput: the cell is empty, no number, or not above 0.
    """
    # NaN stands for what is no number: it is refused with the rest.
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
    """Return a cell of a row as a positive integer.

    Raises:
        BadInput: the cell is not one.
    """
    value = positive_float(row, column, where)
    # Written as 8 or 8.0: spreadsheets do both.
    if value != int(value):
        raise BadInput(
            f"{where}: {column} is {row[column]}",
            rule=f"{column} is a whole number",
            remedy=f"mend or leave out {where}",
        )
    return int(value)
