"""The best checkpoint of a run: that of the best value of an evaluation's metric.

steps of a folder      120   440   460      keep=2
best.json              {"step": 120, "metric": "accuracy", "value": 0.9944}
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal

from jaxdist.core.files import write_atomic
from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.core.validation import json_text

CheckpointStep = int | Literal["best"] | None
"""A checkpoint's name: the step it was saved at, the best one, or None, the newest."""
_BEST_FILE: Final = "best.json"


def read_best(directory: Path) -> BestCheckpoint | None:
    """Return the best checkpoint of a folder; None if none is known, or it is gone."""
    try:
        best = parse_best((directory / _BEST_FILE).read_bytes())
    except FileNotFoundError:
        return None
    return best if best and (directory / str(best.step)).is_dir() else None


def parse_best(text: bytes) -> BestCheckpoint | None:
    """Read a note of the best checkpoint; None where it is damaged, or there is none.

    >>> parse_best(b"{}") is None
    True
    """
    try:
        found = json.loads(text)
        return BestCheckpoint(
            step=int(found["step"]),
            metric=str(found["metric"]),
            value=float(found["value"]),
        )
    # A damaged note costs the run nothing but the note.
    except (ValueError, LookupError, TypeError):
        return None


def write_best(directory: Path, best: BestCheckpoint) -> None:
    """Note which checkpoint of a folder is the best."""
    write_atomic(directory / _BEST_FILE, best_note(best))


def best_note(best: BestCheckpoint) -> str:
    """Write the note that `parse_best` reads."""
    return json_text(asdict(best)) + "\n"
