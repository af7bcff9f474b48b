"""Reading the files of a run folder, as far as they were written.

A run may be stopped at any byte: a missing file is empty, a line that is not whole is
counted and left out.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

JsonRow = dict[str, Any]
_TAIL_BYTES: Final = 1 << 16
"""Bytes of a file's end in which a last line is looked for."""


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """What could be read of a file of JSON lines."""

    rows: tuple[JsonRow, ...] = ()
    """The objects, in the order of the file."""
    unreadable: int = 0
    """Lines left out: cut off by the end of a process."""


def read_jsonl(path: Path) -> JsonLines:
    """Read a file of JSON objects, one a line.

    Args:
        path: the file; one that does not exist reads as empty.
    """
    try:
        # A line may end within a character, which is no UTF-8; replaced, the line is
        # still no JSON, and is counted.
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return JsonLines()
    found = [_parse(text) for text in texts if text.strip()]
    rows = tuple(row for row in found if row is not None)
    return JsonLines(rows=rows, unreadable=len(found) - len(rows))


def read_json_object(path: Path) -> JsonRow | None:
    """Read a file that holds one JSON object; None where it is missing or cut off."""
    try:
        return _parse(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None


def read_last_row(path: Path, kind: str) -> JsonRow | None:
    """Return the last whole object of a kind, from the end of a file that may be long.

    Args:
        path: a file of JSON objects, one a line, that may still grow.
        kind: the value of its `kind`.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return None
    # The first of these lines may have lost its beginning, the last one its end.
    rows = (_parse(line) for line in reversed(lines))
    return next((row for row in rows if row and row.get("kind") == kind), None)


def _parse(text: str) -> JsonRow | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
