"""The runs in a folder, each with what came of it: `jaxdist runs`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxdist.core.records import is_scalar
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    read_json_object,
    read_last_row,
)
from jaxdist.launch.run_folder.status import list_started_runs, read_run_status

_NO_SCORES = ("kind", "step", "epoch", "time", "samples")
"""What the row of an evaluation says beside its scores."""


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """One line of the list."""

    name: str
    """Name of the run."""
    folder: str
    """Where its files are."""
    experiment: str
    """What it trains; empty before its lock file is written."""
    state: str
    """As `RunStatus` has it: `going`, `done`, ..."""
    step: int
    """Steps that are done."""
    steps: int
    """Steps of the whole run; 0 where that is not known."""
    test: Mapping[str, float] = field(default_factory=dict)
    """Scores and counts of the last evaluation, by name; empty before the first."""


def list_runs(folder: str | Path) -> list[ListedRun]:
    """Return the runs in a folder, by name; also those that still compile."""
    return [_listed_run(run) for run in list_started_runs(folder)]


def _listed_run(folder: RunFolder) -> ListedRun:
    status = read_run_status(folder)
    # Read as it stands: a lock file of another version has this word too.
    locked = read_json_object(folder.config_lock) or {}
    test = read_last_row(folder.metrics, "test") or {}
    scores = {
        name: float(value)
        for name, value in test.items()
        if name not in _NO_SCORES and is_scalar(float, value)
    }
    return ListedRun(
        name=status.name,
        folder=status.folder,
        experiment=str(locked.get("experiment", "")),
        state=status.state,
        step=status.step,
        steps=status.steps,
        test=scores,
    )
