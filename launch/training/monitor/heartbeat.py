"""The status file: where each process of a run is, written while the run goes.

It is read from the folder of the run, without asking a process: a run that has died
cannot be asked.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

from jaxdist.core.atomic_file import write_atomic
from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.status import RUNNING, read_status_record
from jaxdist.launch.training.monitor.watchdog import ProcessHeartbeat

HEARTBEAT_INTERVAL_S: Final = 2.0
"""Seconds from one writing to the next."""


class StatusWriter:
    """Writes the file again and again, as a context.

    Args:
        path: the file; process 0 has the folder of the run, others one that goes.
        steps: of the whole run.
        group: the process among those of its run; process 0 alone writes.
        heartbeats: returns where each process is, by rank.
    """

    def __init__(
        self,
        path: Path,
        steps: int,
        group: ProcessGroup,
        heartbeats: Callable[[], Mapping[int, ProcessHeartbeat]],
    ) -> None:
        before = read_status_record(path)
        self._path, self._heartbeats, self._stop_event = path, heartbeats, Event()
        self._is_writer, self._accepted = group.is_primary, False
        # Read before the first write: see `__exit__`.
        self._previous_text = path.read_text("utf-8") if path.exists() else None
        self._record: dict[str, Any] = {
            "sitting": 1 if before is None else before.sitting + 1,
            "steps": steps,
            "count": group.size,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "began": time.time(),
        }
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._is_writer:
            self._write(RUNNING)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stop_event.is_set():
            return
        if not isinstance(error, BadInput) or self._accepted:
            # Ctrl-C asks a run to end; any other error has ended it.
            by_hand = kind is None or kind is KeyboardInterrupt
            self.finish("stopped" if by_hand else "failed")
            return
        # The settings were refused, so the run is what it was before: its old status is
        # put back.
        self._stop_event.set()
        if self._is_writer:
            self._thread.join(HEARTBEAT_INTERVAL_S)
            with suppress(OSError):
                if self._previous_text is None:
                    self._path.unlink(missing_ok=True)
                else:
                    write_atomic(self._path, self._previous_text)

    def mark_accepted(self) -> None:
        """Note that the settings are accepted: later errors are errors of the run."""
        self._accepted = True

    def finish(self, state: str) -> None:
        """Write the final state of this sitting."""
        self._stop_event.set()
        if self._is_writer:
            self._thread.join(HEARTBEAT_INTERVAL_S)
            self._write(state)

    def _run(self) -> None:
        while not self._stop_event.wait(HEARTBEAT_INTERVAL_S):
            self._write(RUNNING)

    def _write(self, state: str) -> None:
        # A full disk must not end the run here, where nothing is lost. A thread of its
        # own writes: a disk that hangs must not stop heartbeats between processes.
        with suppress(OSError):
            places = {
                str(rank): {"host": said.host, "step": said.step, "phase": said.phase}
                for rank, said in sorted(self._heartbeats().items())
            }
            news = {"state": state, **self._record, "processes": places}
            # Written again in two seconds: it need not wait for a busy disk.
            write_atomic(self._path, json.dumps(news) + "\n", durable=False)
