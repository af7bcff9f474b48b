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

_STEP_TIME: Final = "step time"
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

    first_step: int
    start_time: float
    last_step: int = 0
    end_time: float = 0.0
    local_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    has_compile: bool = False
    """Whether something was compiled meanwhile, which is found in a cache or not."""


class StragglerMonitor:
    """Names slow processes of a run, as a context.

    Args:
        group: the process among those of its run.
        interval_steps: steps from one comparison to the next; 0 compares nothing.
        print_line: shows a line; called in the training thread, between two phases.
        path: file that gets an object a line.
        on_cpu: whether devices are threads of this process.
    """

    def __init__(
        self,
        group: ProcessGroup,
        interval_steps: int,
        print_line: Callable[[str], None],
        path: Path,
        *,
        on_cpu: bool,
    ) -> None:
        self._group, self._interval_steps, self._print_line, self._path = (
            group,
            interval_steps,
            print_line,
            path,
        )
        self._on_cpu = on_cpu
        self._enabled = interval_steps > 0 and group.kv_store is not None
        self._phase, self._phase_start, self._first_step = "", 0.0, 0
        self._window: _StepWindow | None = None
        self._last_input = 0.0
        self._full_window: _StepWindow | None = None
        self._wake, self._stop_event = Event(), Event()
        self._texts, self._cpu_time = deque[str](), CpuTimeMonitor()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._enabled:
            self._cpu_time.__enter__()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._enabled:
            self._stop_event.set()
            self._wake.set()
            self._thread.join(1)
            self._cpu_time.__exit__(kind, error, trace)
            self._print_pending()

    def on_phase(self, phase: str, step: int) -> None:
        """Note that a phase begins, or, with no name, that one has ended."""
        if not self._enabled:
            return
        now = time.perf_counter()
        if self._phase:
            self._add_phase(self._phase, now - self._phase_start)
        self._phase, self._phase_start = phase, now
        if phase == "input":
            self._advance_window(step, now)
            self._print_pending()

    def on_input_starvation(self) -> None:
        """Note that devices had nothing left to do when their input was there."""
        if self._window is not None:
            self._window.local_s["input"] += self._last_input

    def _add_phase(self, phase: str, seconds: float) -> None:
        if phase == "input":
            self._last_input = seconds
        elif self._window is not None:
            self._window.has_compile |= phase == "compile"
            if phase in _LOCAL_PHASES:
                self._window.local_s[phase] += seconds

    def _advance_window(self, step: int, now: float) -> None:
        """Begin another window where this step does."""
        self._first_step = self._first_step or step + _WARMUP_STEPS
        if step < self._first_step or (
            self._window and (step - 1) % self._interval_steps
        ):
            return
        if self._window is not None:
            self._window.last_step, self._window.end_time = step - 1, now
            self._full_window = self._window
        self._window = _StepWindow(first_step=step, start_time=now)
        self._wake.set()

    def _print_pending(self) -> None:
        while self._texts:
            self._print_line(self._texts.popleft())

    def _run(self) -> None:
        """Say what this process took, whenever a window is full."""
        while not self._stop_event.is_set():
            self._wake.wait()
            self._wake.clear()
            ran, window, self._full_window = (
                self._cpu_time.read_delta(),
                self._full_window,
                None,
            )
            if (
                self._stop_event.is_set()
                or window is None
                or not self._is_representative(window)
            ):
                continue
            with suppress(RuntimeError):  # process 0 is gone, and its store
                self._exchange(self._step_time(window, asdict(ran)))

    def _is_representative(self, window: _StepWindow) -> bool:
        """Whether a window says how fast a process is."""
        steps = window.last_step - window.first_step + 1
        return not window.has_compile and 2 * steps >= self._interval_steps

    def _step_time(
        self, window: _StepWindow, cpu_s: dict[str, float]
    ) -> ProcessStepTime:
        """Say what a step of a window took of this process."""
        steps = window.last_step - window.first_step + 1
        own = {phase: seconds / steps for phase, seconds in window.local_s.items()}
        if not self._on_cpu:  # its threads hand over, and others compute
            cpu_s = {"stood": cpu_s["stood"]}
        each = {name: seconds / steps for name, seconds in cpu_s.items()}
        return ProcessStepTime(
            host=socket.gethostname(),
            first=window.first_step,
            last=window.last_step,
            step_s=(window.end_time - window.start_time) / steps,
            own_s={**own, COMPUTE_PHASE: sum(each.values())},
            ran_s=each,
        )

    def _exchange(self, share: ProcessStepTime) -> None:
        """Say a share; in process 0, compare those of all."""
        self._group.publish(_STEP_TIME, asdict(share))
        shares = self._gather(share) if self._group.is_primary else []
        for late in find_stragglers(shares)[:_MAX_REPORTED]:
            row = asdict(late) | {"time": time.time()}
            with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            self._texts.append(late.text)

    def _gather(self, share: ProcessStepTime) -> list[ProcessStepTime]:
        """Wait for the shares of all over the same steps; none where one is amiss."""
        end = time.monotonic() + _GATHER_TIMEOUT_S
        while time.monotonic() < end and not self._stop_event.is_set():
            rows = self._group.published(_STEP_TIME).values()
            found = [ProcessStepTime(**fields) for fields in rows]
            if len(found) == self._group.size:
                if all(other.last == share.last for other in found):
                    return found
                if any(other.last > share.last for other in found):
                    return []
            self._stop_event.wait(_POLL_S)
        return []
