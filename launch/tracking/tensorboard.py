"""TensorBoard: event files in `tensorboard/` of the run folder, by tensorboardX."""

import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxdist.launch.tracking.tracker import TrackedEnd, TrackedRun

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter

FLUSH_S: Final = 1.0
"""Seconds after which what is logged is on disk."""


class TensorBoardTracker:
    """Writes scalars, and text where other trackers have parameters and files."""

    def __init__(self) -> None:
        self._writer: EventsWriter | None = None
        self._flushed, self._step = 0.0, 0

    def start(self, run: TrackedRun) -> int:
        """Open a file of events; those of steps that are made again are hidden."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        folder = run.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        steps = [step for step, _ in read_scalars(folder)]
        # The name has the second and the host: an attempt may begin in the same second.
        suffix = f".{os.getpid()}-{run.start_step}"
        self._writer = EventsWriter(str(folder / "events"), suffix)
        self._step = run.start_step
        if steps:
            # How TensorBoard is told that a run was restarted: events of this step and
            # of later ones are of the attempt before.
            restart = SessionLog(status=SessionLog.START)
            self._write(run.start_step + 1, session_log=restart)
        rows = "".join(f"|{key}|{value}|\n" for key, value in run.config.items())
        self._write_text("configuration", "|key|value|\n|-|-|\n" + rows)
        self._write_text("plan", f"```\n{run.plan}\n```")
        return max((step for step in steps if step <= run.start_step), default=0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a scalar for each name."""
        from tensorboardX.summary import scalar

        self._step = step
        for name, value in values.items():
            self._write(step, summary=scalar(name, value))
        if self._writer is not None and time.monotonic() - self._flushed > FLUSH_S:
            self._writer.flush()
            self._flushed = time.monotonic()

    def end(self, summary: TrackedEnd) -> None:
        """Write the outcome as text, with the paths of the files."""
        if summary.values:
            rows = "".join(f"|{name}|{x:g}|\n" for name, x in summary.values.items())
            files = "".join(f"* {path.resolve()}\n" for path in summary.files)
            text = f"{summary.status}\n\n|figure|value|\n|-|-|\n{rows}\n{files}"
            self._write_text("summary", text)
        if self._writer is not None:
            self._writer.close()

    def _write_text(self, name: str, text: str) -> None:
        from tensorboardX.summary import text as text_summary

        self._write(self._step, summary=text_summary(name, text))

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        if self._writer is None:
            raise ValueError("no file of events is open")
        # Written here and not by a thread of the library, whose errors nobody sees.
        self._writer.write_event(Event(wall_time=time.time(), step=step, **content))


def read_scalars(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the scalars of a folder of events as TensorBoard shows them.

    Args:
        folder: of the files of one run.

    Returns:
        Step and values by name, in the order in which they were written.
    """
    # Names begin with the second: in their order the attempts follow each other.
    found: list[tuple[int, dict[str, float]]] = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in _read_events(path):
            if event.HasField("session_log"):
                found = [row for row in found if row[0] < event.step]
            values = {
                value.tag: value.simple_value
                for value in event.summary.value
                if value.HasField("simple_value")
            }
            if values:
                found.append((event.step, values))
    return found


def _read_events(path: Path) -> Iterator[Any]:
    """Yield the events of a file: length, checksum, message, checksum, each."""
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            body = file.read(length + 4)
            if len(body) < length + 4:  # cut off by a kill
                return
            try:
                yield Event.FromString(body[:length])
            except DecodeError:
                return
