"""The run as a table: `metrics.csv` in the run folder."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from jaxdist.core.files import write_atomic
from jaxdist.launch.tracking.tracker import TrackedEnd, TrackedRun

Row = dict[str, float | str]


class CsvTracker:
    """Writes a table: a row for each step and each evaluation, a column a name."""

    def __init__(self) -> None:
        self._path, self._columns = Path(), ["step"]
        self._file: TextIO | None = None

    def start(self, run: TrackedRun) -> int:
        """Drop the rows of steps that are made again."""
        self._path = run.folder / "metrics.csv"
        rows = self._read()
        kept = [row for row in rows if int(row["step"]) <= run.start_step]
        self._write(kept)
        return max((int(row["step"]) for row in kept), default=0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append a row; a new name becomes a column of the whole table."""
        if self._file is None:
            raise ValueError("the table is not open")
        row: Row = {"step": step, **values}
        new = [name for name in row if name not in self._columns]
        # The header is the first line of the file: another column means writing all of
        # it again.
        if new:
            self._file.close()
            rows = self._read()
            self._columns += new
            self._write([*rows, row])
            return
        self._writer(self._file).writerow(row)

    def end(self, summary: TrackedEnd) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read(self) -> list[Row]:
        """Return the whole rows; the last one may have been cut off by a kill."""
        if not self._path.exists():
            return []
        text = self._path.read_text(encoding="utf-8")
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        self._columns = list(reader.fieldnames or ["step"])
        return [dict(row) for row in reader if row["step"].isdigit()]

    def _writer(self, file: TextIO) -> "csv.DictWriter[str]":
        # Python's own line end is that of Windows.
        return csv.DictWriter(file, self._columns, lineterminator="\n")

    def _write(self, rows: Sequence[Row]) -> None:
        table = io.StringIO()
        writer = self._writer(table)
        writer.writeheader()
        writer.writerows(rows)
        write_atomic(self._path, table.getvalue())
        # Line buffered: a killed run leaves whole lines behind.
        self._file = self._path.open("a", buffering=1, encoding="utf-8", newline="\n")
