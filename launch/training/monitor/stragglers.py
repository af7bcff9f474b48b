"""Stragglers: slow processes are named while a run goes on, with what they are slow in.

The training thread notes when its phases begin, and no more. A thread of each process
says every so many steps what that process took for itself, in the store of process 0,
where one compares. Each measures itself: no clock of a host is held against another's.
"""

import json
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.training.monitor.cpu_time import CpuTimeMonitor
from jaxdist.launch.training.monitor.straggler_stats import (
    COMPUTE_PHASE,
    ProcessStepTime,
    find_stragglers,
)

_STEP_TIME_KEY: Final = "jaxdist/share"
_POLL_S: Final = 0.2
_GATHER_TIMEOUT_S: Final = 60.0
_WARMUP_STEPS: Final = 5
"""First steps of a sitting that are left out: they set up links."""
_LOCAL_PHASES: Final = frozenset({"evaluation", "checkpoint"})
"""Phases that count whole, beside the part of the input that devices wait for."""
_MAX_REPORTED: Final = 4
"""Processes that are named at once."""


@dataclass(kw_only=True)
class _StepWindow:
    """Some steps of this process."""

    first: int
    began: float
    last: int = 0
    ended: float = 0.0
    own_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    compiled: bool = False
    """Whether something was compiled meanwhile, which is found in a cache or not."""


class StragglerMonitor:
    """Names slow processes of a run, as a context.

    Args:
        mine: the process among those of its run.
        every: steps from one comparison to the next; 0 compares nothing.
        note: shows a line; called in the training thread, between two phases.
        path: file that gets an object a line.
        on_processor: whether devices are threads of this process.
    """

    def __init__(
        self,
        mine: ProcessGroup,
        every: int,
        note: Callable[[str], None],
        path: Path,
        *,
        on_processor: bool,
    ) -> None:
        self._mine, self._every, self._note, self._path = mine, every, note, path
        self._on_processor = on_processor
        self._on = every > 0 and mine.store is not None
        self._phase, self._since, self._first = "", 0.0, 0
        self._window: _StepWindow | None = None
        self._last_input = 0.0
        self._full: _StepWindow | None = None
        self._wake, self._over = Event(), Event()
        self._texts, self._running = deque[str](), CpuTimeMonitor()
        self._thread = Thread(target=self._says, daemon=True)

    def __enter__(self) -> Self:
        if self._on:
            self._running.__enter__()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on:
            self._over.set()
            self._wake.set()
            self._thread.join(1)
            self._running.__exit__(kind, error, trace)
            self._shows()

    def enters(self, phase: str, step: int) -> None:
        """Note that a phase begins, or, with no name, that one has ended."""
        if not self._on:
            return
        now = time.perf_counter()
        if self._phase:
            self._ends(self._phase, now - self._since)
        self._phase, self._since = phase, now
        if phase == "input":
            self._turns(step, now)
            self._shows()

    def starved(self) -> None:
        """Note that devices had nothing left to do when their input was there."""
        if self._window is not None:
            self._window.own_s["input"] += self._last_input

    def _ends(self, phase: str, seconds: float) -> None:
        if phase == "input":
            self._last_input = seconds
        elif self._window is not None:
            self._window.compiled |= phase == "compile"
            if phase in _LOCAL_PHASES:
                self._window.own_s[phase] += seconds

    def _turns(self, step: int, now: float) -> None:
        """Begin another window where this step does."""
        self._first = self._first or step + _WARMUP_STEPS
        if step < self._first or (self._window and (step - 1) % self._every):
            return
        if self._window is not None:
            self._window.last, self._window.ended = step - 1, now
            self._full = self._window
        self._window = _StepWindow(first=step, began=now)
        self._wake.set()

    def _shows(self) -> None:
        while self._texts:
            self._note(self._texts.popleft())

    def _says(self) -> None:
        """Say what this process took, whenever a window is full."""
        while not self._over.is_set():
            self._wake.wait()
            self._wake.clear()
            ran, window, self._full = self._running.since_last(), self._full, None
            if self._over.is_set() or window is None or not self._tells(window):
                continue
            with suppress(RuntimeError):  # process 0 is gone, and its store
                self._exchange(self._share(window, asdict(ran)))

    def _tells(self, window: _StepWindow) -> bool:
        """Whether a window says how fast a process is."""
        steps = window.last - window.first + 1
        return not window.compiled and 2 * steps >= self._every

    def _share(self, window: _StepWindow, ran: dict[str, float]) -> ProcessStepTime:
        """Say what a step of a window took of this process."""
        steps = window.last - window.first + 1
        own = {phase: seconds / steps for phase, seconds in window.own_s.items()}
        if not self._on_processor:  # its threads hand over, and others compute
            ran = {"stood": ran["stood"]}
        each = {name: seconds / steps for name, seconds in ran.items()}
        return ProcessStepTime(
            host=socket.gethostname(),
            first=window.first,
            last=window.last,
            step_s=(window.ended - window.began) / steps,
            own_s={**own, COMPUTE_PHASE: sum(each.values())},
            ran_s=each,
        )

    def _exchange(self, share: ProcessStepTime) -> None:
        """Say a share; in process 0, compare those of all."""
        key, text = f"{_STEP_TIME_KEY}/{self._mine.rank:06}", json.dumps(asdict(share))
        self._mine.store.key_value_set(key, text, allow_overwrite=True)
        shares = self._gathered(share) if self._mine.leads else []
        for late in find_stragglers(shares)[:_MAX_REPORTED]:
            row = asdict(late) | {"time": time.time()}
            with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            self._texts.append(late.text)

    def _gathered(self, share: ProcessStepTime) -> list[ProcessStepTime]:
        """Wait for the shares of all over the same steps; none where one is amiss."""
        end = time.monotonic() + _GATHER_TIMEOUT_S
        while time.monotonic() < end and not self._over.is_set():
            rows = sorted(self._mine.store.key_value_dir_get(_STEP_TIME_KEY))
            found = [ProcessStepTime(**json.loads(text)) for _, text in rows]
            if len(found) == self._mine.count:
                if all(other.last == share.last for other in found):
                    return found
                if any(other.last > share.last for other in found):
                    return []
            self._over.wait(_POLL_S)
        return []
