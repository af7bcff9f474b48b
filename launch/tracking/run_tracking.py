"""What goes to the trackers of a run: each has a thread and a queue of its own.

A tracker that waits for a disk or a server so holds up neither the run nor the others,
and one that fails is left out, with a warning.
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Self

from jaxdist.core.errors import JaxdistWarning
from jaxdist.core.run_record import Run
from jaxdist.core.validation import parse_json
from jaxdist.launch.run_folder.folder import JsonRow, RunFolder
from jaxdist.launch.tracking.tracker import TrackedEnd, TrackedRun, Tracker

END_S: Final = 60.0
"""Seconds that trackers have to end after a run that is done."""
STOP_S: Final = 15.0
"""The same where the run was asked to end: a launcher kills it 30 s later."""
_MAX_QUEUED: Final = 100_000
"""Rows that a tracker may be behind."""
_FIGURES: Final = (
    *("accuracy", "loss", "steps", "skipped", "samples_per_s", "step_s", "wall_s"),
    *("first_step_s", "memory_bytes", "parameters", "devices"),
)
"""Numbers of a run's record that trackers keep."""


class RunTracking:
    """The trackers of a run, as a context that ends them however the run does.

    Args:
        trackers: by name; none, and nothing is done.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._threads: list[_TrackerThread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._finish(TrackedEnd(status="failed"), STOP_S)

    def start(self, run: TrackedRun) -> None:
        """Begin: each tracker is told of the run, and of the steps that it lacks."""
        metrics = RunFolder(run.folder).metrics
        # What is written from here on is told as it comes.
        size = metrics.stat().st_size if self._trackers else 0
        for name, tracker in self._trackers.items():
            self._threads.append(_TrackerThread(name, tracker, run, metrics, size))
            self._threads[-1].start()

    def log_row(self, row: JsonRow) -> None:
        """Pass a row of `metrics.jsonl` on; returns at once."""
        for thread in self._threads:
            thread.queue.put(row)
        self._warn()

    def end(self, run: Run, folder: RunFolder) -> None:
        """Pass the outcome on, and wait until all is kept.

        Args:
            run: the record of the run.
            folder: its files, the report among them.
        """
        if not self._threads:
            return
        known = asdict(run)
        figures = {key: known[key] for key in _FIGURES} | dict(run.metrics)
        files = (folder.report, folder.plan, folder.config_lock)
        summary = TrackedEnd(
            status=run.status,
            values={k: float(x) for k, x in figures.items() if _is_number(x)},
            files=tuple(path for path in files if path.is_file()),
        )
        self._finish(summary, END_S if run.status == "done" else STOP_S)

    def _finish(self, summary: TrackedEnd, timeout_s: float) -> None:
        for thread in self._threads:
            thread.queue.put(summary)
        # One limit for all of them: they end side by side.
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
            if thread.is_alive():
                thread.error = TimeoutError(
                    f"it did not end within {timeout_s:g} s, and what it has not "
                    "kept is lost"
                )
        self._warn()
        self._threads = []

    def _warn(self) -> None:
        """Say, once and in the thread of the run, which trackers have failed."""
        failed = [thread for thread in self._threads if thread.error is not None]
        for thread in failed:
            self._threads.remove(thread)
            said = " ".join(str(thread.error).split()) or type(thread.error).__name__
            warnings.warn(
                f"tracker {thread.name} failed; the run continues without it: {said}",
                JaxdistWarning,
                stacklevel=3,
            )


NO_TRACKING: Final = RunTracking({})
"""Of a run without trackers."""


class _TrackerThread(Thread):
    """Calls a tracker with what comes through its queue."""

    def __init__(
        self, name: str, tracker: Tracker, run: TrackedRun, metrics: Path, size: int
    ) -> None:
        # A tracker that hangs must not keep the process.
        super().__init__(name=name, daemon=True)
        self._tracker, self._tracked = tracker, run
        self._metrics, self._size = metrics, size
        self.queue: SimpleQueue[JsonRow | TrackedEnd] = SimpleQueue()
        self.error: Exception | None = None

    def run(self) -> None:
        """Begin, log and end."""
        try:
            self._call()
        except Exception as error:
            self.error = error

    def _call(self) -> None:
        start = self._tracked.start_step
        newest = self._tracker.start(self._tracked)
        if newest is not None and newest < start:
            for row in self._earlier_rows():
                if newest < row["step"] <= start:
                    self._log(row)
        while not isinstance(told := self.queue.get(), TrackedEnd):
            # An evaluation that was missed is of the step that the run starts from.
            if told["step"] > (newest or 0) or told["step"] == start:
                self._log(told)
            # Rows that wait take the memory of the run.
            if self.queue.qsize() > _MAX_QUEUED:
                raise TimeoutError(f"it is {_MAX_QUEUED:,} rows behind")
        self._tracker.end(told)

    def _earlier_rows(self) -> list[JsonRow]:
        with self._metrics.open("rb") as file:
            lines = file.read(self._size).decode("utf-8", "replace").split("\n")
        return [parse_json(line) for line in lines if line]

    def _log(self, row: JsonRow) -> None:
        if values := row_values(row):
            self._tracker.log(row["step"], values)


def row_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return what trackers keep of a row of `metrics.jsonl`, by name.

    >>> row_values({"kind": "test", "step": 9, "epoch": 1, "loss": 0.5, "time": 1e9})
    {'epoch': 1.0, 'test/loss': 0.5}
    """
    if row["kind"] == "skip":
        return {"train/skipped": 1.0}
    values = {} if row.get("epoch") is None else {"epoch": float(row["epoch"])}
    return values | {
        f"{row['kind']}/{key}": float(value)
        for key, value in row.items()
        if key not in ("kind", "step", "epoch", "time") and _is_number(value)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
