"""Running: how long a process computed, waited for a processor, and stood still.

A process that waits for others sleeps. What its threads ran, and what they would have
run had a processor been free, is its own affair; and so is the time after which a
thread wakes that had asked to sleep for a moment: then the whole process stood still.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id
from typing import Final

from jaxdist.launch.distributed.background_thread import BackgroundThread

_TICK_S: Final = 0.05
_WAKEUP_TOLERANCE_S: Final = 0.03
"""A thread wakes this late on a machine that is only busy."""
_THREADS_FOLDER: Final = Path("/proc/self/task")


@dataclass(frozen=True, kw_only=True)
class ProcessCpuTime:
    """Seconds of a process."""

    computed: float = 0.0
    """Its threads were on a processor, all together."""
    waited: float = 0.0
    """That which waited longest was ready and had none; 0 where the system does not
    say."""
    stood: float = 0.0
    """It was stopped, or could not run a thread for another reason."""


class CpuTimeMonitor(BackgroundThread):
    """Looks at this process from one of its threads, as a context."""

    def __init__(self) -> None:
        super().__init__()
        self._stalled_s = 0.0
        self._last_reading = (time.process_time(), run_queue_delays(), 0.0)

    def read_delta(self) -> ProcessCpuTime:
        """Return what the process did since this was called before."""
        ran, had, stood = self._last_reading
        self._last_reading = now = (
            time.process_time(),
            run_queue_delays(),
            self._stalled_s,
        )
        # Threads wait side by side, and most of them for what nobody needs soon.
        waits = [ns - had.get(task, 0) for task, ns in now[1].items()]
        waited = max(0, *waits, 0) / 1e9
        return ProcessCpuTime(
            computed=now[0] - ran, waited=waited, stood=now[2] - stood
        )

    def run(self) -> None:
        """Add up by how much later than asked for this thread wakes."""
        mine = _THREADS_FOLDER / str(get_native_id())
        last, had = time.monotonic(), _thread_delay(mine)
        while not self.stopped.wait(_TICK_S):
            now, has = time.monotonic(), _thread_delay(mine)
            # What this thread waited for a processor, others did as well.
            late = now - last - _TICK_S - (has - had) / 1e9
            self._stalled_s += late if late > _WAKEUP_TOLERANCE_S else 0.0
            last, had = now, has


def run_queue_delays() -> Mapping[str, int]:
    """Return the nanoseconds that each thread of this process waited for a processor.

    Linux keeps them; elsewhere there are none.
    """
    with suppress(OSError):
        return {task.name: _thread_delay(task) for task in _THREADS_FOLDER.iterdir()}
    return {}


def _thread_delay(task: Path) -> int:
    """Return the same of one thread; 0 of one that has ended."""
    with suppress(OSError, IndexError, ValueError):
        return int((task / "schedstat").read_text().split()[1])
    return 0
