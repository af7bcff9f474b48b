"""Status: whether a run goes, has ended or has died, read from its folder."""

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.records import is_scalar, parse_record
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    find_run,
    read_json_object,
    read_last_row,
)

STALE_STATUS_S: Final = 30.0
"""Seconds without news after which a run counts as silent."""
RUNNING: Final = "going"
"""State of a run that has not said that it has ended."""


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """Where a process was when it last said so."""

    host: str
    """Name of its machine."""
    step: int
    """Step of the run, counted from 1."""
    phase: str
    """Phase of the step; empty between phases."""


@dataclass(frozen=True, kw_only=True)
class StatusRecord:
    """What the status file of a run says."""

    state: str
    """`going`, `done`, `stopped` (asked to end), or `failed`."""
    attempt: int
    """How often the run was started."""
    steps: int
    """Steps of the whole run."""
    count: int
    """How many processes there are."""
    pid: int
    """Process 0, on its machine."""
    host: str
    """Machine of process 0."""
    began: float
    """When this attempt did, Unix seconds of that machine."""
    processes: Mapping[int, ProcessStatus] = field(default_factory=dict)
    """By rank, as far as they have said anything."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """What becomes of a run."""

    name: str
    """Name of the run."""
    folder: str
    """Where its files are."""
    state: str
    """`going`; `silent`: no news, and nobody knows that it has died; `dead`: it went
    without a word; `done`; `stopped`: asked to end; `failed`; `imported`: weights of
    others; `unknown`."""
    step: int = 0
    """Steps that are done."""
    steps: int = 0
    """Steps of the whole run; 0 where that is not known."""
    loss: float | None = None
    """Of the last step that is done."""
    restarts: int = 0
    """How often it was started again."""
    line_s: float | None = None
    """Seconds since the last line of its metrics."""
    count: int = 0
    """How many processes it has, or had."""
    processes: Mapping[int, ProcessStatus] = field(default_factory=dict)
    """Where each was when it last said so, by rank."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines of its processes, by rank, each once."""
        return tuple(dict.fromkeys(at.host for at in self.processes.values()))


def list_started_runs(folder: str | Path) -> list[RunFolder]:
    """Return the runs in a folder, by name; also those that still compile."""
    paths = sorted(path for path in Path(folder).glob("*") if path.is_dir())
    found = [RunFolder(path) for path in paths]
    return [run for run in found if run.has_run or run.status.is_file()]


def find_started_run(name_or_path: str, folder: str | Path) -> RunFolder:
    """Return the run that a name or a path means; also one that still compiles.

    The lock file, by which `find_run` knows a run, is written after compiling.

    Raises:
        BadInput: there is no run; names one that is spelled like it.
    """
    for path in (Path(folder, name_or_path), Path(name_or_path)):
        if RunFolder(path).status.is_file():
            return RunFolder(path)
    return find_run(name_or_path, folder=folder)


def read_run_status(folder: RunFolder) -> RunStatus:
    """Return what becomes of a run, by what its processes have written.

    Args:
        folder: of a run that was started.
    """
    # The status file has what processes say of themselves, the metrics what was really
    # done, and the summary how it ended.
    news = read_status_record(folder.status)
    last = read_last_row(folder.metrics, "train") or {}
    found: dict[str, Any] = {
        "name": folder.name,
        "folder": str(folder.path),
        "step": last["step"] if is_scalar(int, last.get("step")) else 0,
        "loss": last["loss"] if is_scalar(float, last.get("loss")) else None,
        "line_s": _file_age_s(folder.metrics),
    }
    # A run of an older version, or one whose status file was deleted.
    if news is None:
        ended = read_json_object(folder.summary) or {}
        typed = (read_json_object(folder.config_lock) or {}).get("command") or ()
        default = "imported" if list(typed[1:2]) == ["import"] else "unknown"
        state = str(ended.get("status", default))
        step = ended["steps"] if is_scalar(int, ended.get("steps")) else 0
        return RunStatus(**found | {"state": state, "step": max(step, found["step"])})
    # A process of this machine can be looked up. Of another machine's only the age of
    # its news is known: too old, and the run is silent, which need not be dead.
    state, age_s = news.state, _file_age_s(folder.status)
    if state == RUNNING:
        if news.host == socket.gethostname() and not _is_alive(news.pid, news.began):
            state = "dead"
        elif age_s is None or age_s >= STALE_STATUS_S:
            state = "silent"
    return RunStatus(
        **found,
        state=state,
        steps=news.steps,
        restarts=news.attempt - 1,
        count=news.count,
        processes=news.processes,
    )


def _is_alive(pid: int, start_time: float) -> bool:
    """Tell whether a process of this machine that was there then is there now."""
    # Imported here: most who read a status look at runs of other machines.
    import psutil

    try:
        process = psutil.Process(pid)
        gone = process.status() == psutil.STATUS_ZOMBIE
        # A pid may have been given to a younger process meanwhile.
        return not gone and process.create_time() <= start_time + 1
    except psutil.NoSuchProcess:
        return False


def _file_age_s(path: Path) -> float | None:
    """Return the seconds since a file was written; None where there is none."""
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return None


def read_status_record(path: Path) -> StatusRecord | None:
    """Read a status file; None where there is none that this version can read."""
    found = read_json_object(path)
    if found is None:
        return None
    # What runs of older versions have written.
    if "sitting" in found:
        found["attempt"] = found.pop("sitting")
    with suppress(BadInput):
        return parse_record(StatusRecord, found, "a status")
    return None
