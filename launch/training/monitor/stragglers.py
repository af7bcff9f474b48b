"""Stragglers: slow processes of a run are named while it runs, with what slows them.

In a synchronous step all wait for the slowest, so every process takes as long. What
differs is what a process takes for itself, before the others can go on:

rank 0   input 2    computes 30   waits for rank 1 ...............
rank 1   input 45                                  computes 30

The training thread notes when its phases begin, and no more. A thread of each process
publishes every so many steps what that process took for itself, in the store of process
0, which compares. Each measures itself: no clock of a host is compared with another's.
"""

import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from threading import Event, Thread, get_native_id
from types import TracebackType
from typing import Final, Self

from jaxdist.core.records import parse_record
from jaxdist.core.validation import json_text
from jaxdist.launch.distributed.background_thread import BackgroundThread
from jaxdist.launch.distributed.process_group import ProcessGroup

COMPUTE_PHASE: Final = "compute"
"""What a process does apart from the other phases, as far as it is its own."""
MIN_SLOWDOWN: Final = 0.15
"""Part of a step by which a process is slower than the others before that is said."""
_MIN_COMPUTE_SLOWDOWN: Final = 0.25
"""The same in computing, where processes that share a machine differ by chance."""
_LOAD_RATIO: Final = 1.5
"""Times as long as the others computes who has more to compute."""
_MIN_DELAY_S: Final = 0.002
_CAUSE_TEXTS: Final = {
    "computed": "its threads compute longer",
    "waited": "it waits for a processor",
    "stood": "it stands still",
}
_TICK_S: Final = 0.05
_WAKEUP_TOLERANCE_S: Final = 0.03
"""A thread wakes this late on a machine that is only busy."""
_THREADS_FOLDER: Final = Path("/proc/self/task")
_STEP_TIME: Final = "step time"
_POLL_S: Final = 0.2
_GATHER_TIMEOUT_S: Final = 60.0
_WARMUP_STEPS: Final = 5
"""First steps of an attempt that are left out: they set up links."""
_LOCAL_PHASES: Final = frozenset({"evaluation", "checkpoint"})
"""Phases that count whole, beside the part of the input that devices wait for."""
_MAX_REPORTED: Final = 4
"""Processes that are named at once."""


@dataclass(frozen=True, kw_only=True)
class ProcessStepTime:
    """What a process took for itself in a step, on average over some."""

    host: str
    """Name of its machine."""
    first: int
    """First step, counted from 1."""
    last: int
    """Last step."""
    step_s: float
    """Seconds of a step."""
    own_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase in which no other process can hold it up."""
    ran_s: Mapping[str, float] = field(default_factory=dict)
    """What `compute` among them consists of, as `ProcessCpuTime` names it."""


def parse_step_time(tree: object) -> ProcessStepTime:
    """Read what another process has published of its steps.

    Raises:
        BadInput: it is something else.
    """
    return parse_record(ProcessStepTime, tree, "a step time")


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A process that is slower than the others."""

    rank: int
    """Which one."""
    phase: str
    """In what."""
    seconds: float
    """How much longer than the others it takes there, in every step."""
    share: ProcessStepTime
    """What it took."""
    why: str = ""
    """What makes it slow, in words, where that is known."""

    @property
    def text(self) -> str:
        """The same for a person."""
        share, why = self.share, f", {self.why}" if self.why else ""
        return (
            f"slow: rank {self.rank} ({share.host}) is {1e3 * self.seconds:,.0f} ms a "
            f"step behind in {self.phase}{why}, steps {share.first}-{share.last}; "
            f"a step takes {1e3 * share.step_s:,.0f} ms"
        )


def find_stragglers(step_times: Sequence[ProcessStepTime]) -> list[Straggler]:
    """Return the processes that are slower than the others, each with one phase.

    Args:
        step_times: of each process, by rank, over the same steps.

    >>> usual = dict(first=1, last=9, step_s=0.1)
    >>> own = [{"input": 0.002}, {"input": 0.045}, {"input": 0.004}]
    >>> seconds = enumerate(own)
    >>> shares = [ProcessStepTime(host=f"h{n}", own_s=s, **usual) for n, s in seconds]
    >>> find_stragglers(shares)[0].text
    'slow: rank 1 (h1) is 42 ms a step behind in input, steps 1-9; a step takes 100 ms'
    """
    if not step_times:
        return []
    step_s, found = median(share.step_s for share in step_times), []
    for rank, mine in enumerate(step_times):
        others = [share for at, share in enumerate(step_times) if at != rank]
        if not others or not mine.own_s:
            continue
        more = _excess_over_median(mine.own_s, [share.own_s for share in others])
        # Threads that compute for the input are counted in both phases: what another
        # phase explains is no computing.
        explained = sum(
            s for phase, s in more.items() if phase != COMPUTE_PHASE and s > 0
        )
        if COMPUTE_PHASE in more:
            more[COMPUTE_PHASE] = min(more[COMPUTE_PHASE] - explained, mine.step_s)
        phase = max(more, key=more.__getitem__)
        is_compute = phase == COMPUTE_PHASE
        limit = _MIN_COMPUTE_SLOWDOWN if is_compute else MIN_SLOWDOWN
        if more[phase] <= max(limit * step_s, _MIN_DELAY_S):
            continue

        # What makes a process compute slowly, where the system says it.
        why = ""
        ran = _excess_over_median(mine.ran_s, [share.ran_s for share in others])
        if is_compute and ran:
            computed = mine.ran_s.get("computed", 0.0)
            usual = computed - ran.get("computed", computed)
            # More work makes a process wait more as well, where processors are few.
            is_loaded = computed > _LOAD_RATIO * usual
            cause = "computed" if is_loaded else max(ran, key=ran.__getitem__)
            # A process of another version may name a cause that this one does not.
            why = _CAUSE_TEXTS.get(cause, "")
        found.append(
            Straggler(rank=rank, phase=phase, seconds=more[phase], share=mine, why=why)
        )
    return found


def _excess_over_median(
    mine: Mapping[str, float], others: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return by how much one is above the middle of the others."""
    return {
        name: seconds - median(other.get(name, 0.0) for other in others)
        for name, seconds in mine.items()
    }


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
    """Measures this process from one of its threads, as a context.

    A process that waits for others sleeps, so what its threads ran, and what they would
    have run had a processor been free, is its own. So is the time by which a thread
    wakes late that had asked to sleep for a moment: then the process stood still.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stalled_s = 0.0
        # The first reading is where the first difference begins.
        self._last_reading = (time.process_time(), run_queue_delays(), 0.0)

    def read_delta(self) -> ProcessCpuTime:
        """Return what the process did since this was called before."""
        ran, had, stood = self._last_reading
        self._last_reading = now = (
            time.process_time(),
            run_queue_delays(),
            self._stalled_s,
        )
        # Threads wait side by side, and most of them for what nobody needs soon, so the
        # longest wait of a single thread says more than their sum.
        waits = [ns - had.get(task, 0) for task, ns in now[1].items()]
        # Two zeros: without waits `max` would have one number, which it does not take.
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
        # Field 2 of schedstat: nanoseconds on the run queue of the kernel.
        return {task.name: _thread_delay(task) for task in _THREADS_FOLDER.iterdir()}
    return {}


def _thread_delay(task: Path) -> int:
    """Return the same of one thread; 0 of one that has ended."""
    with suppress(OSError, IndexError, ValueError):
        return int((task / "schedstat").read_text().split()[1])
    return 0


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
        self._group, self._interval_steps = group, interval_steps
        self._print_line, self._path, self._on_cpu = print_line, path, on_cpu
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
            # A thread that waits for process 0 is left behind: it is a daemon.
            self._thread.join(1)
            self._cpu_time.__exit__(kind, error, trace)
            self._print_pending()

    def on_phase(self, phase: str, step: int) -> None:
        """Note that a phase begins, or, with no name, that one has ended."""
        if not self._enabled:
            return
        now, window = time.perf_counter(), self._window
        ended, seconds = self._phase, now - self._phase_start
        if ended == "input":
            # Only what devices have waited for counts: see `on_input_starvation`.
            self._last_input = seconds
        elif ended and window is not None:
            window.has_compile |= ended == "compile"
            if ended in _LOCAL_PHASES:
                window.local_s[ended] += seconds
        self._phase, self._phase_start = phase, now
        if phase != "input":
            return

        # A step begins with its input, and with some steps a window does.
        self._first_step = self._first_step or step + _WARMUP_STEPS
        is_due = window is None or (step - 1) % self._interval_steps == 0
        if step >= self._first_step and is_due:
            if window is not None:
                window.last_step, window.end_time = step - 1, now
                self._full_window = window
            self._window = _StepWindow(first_step=step, start_time=now)
            self._wake.set()
        self._print_pending()

    def on_input_starvation(self) -> None:
        """Note that devices had nothing left to do when their input was there."""
        if self._window is not None:
            self._window.local_s["input"] += self._last_input

    def _print_pending(self) -> None:
        while self._texts:
            self._print_line(self._texts.popleft())

    def _run(self) -> None:
        """Publish what a step took of this process, whenever a window is full.

        In a thread of its own: the store of process 0 may answer late, and training
        must not wait for it.
        """
        while not self._stop_event.is_set():
            self._wake.wait()
            self._wake.clear()
            # What a process ran is read at every wake, so it is of one window.
            cpu = self._cpu_time.read_delta()
            window, self._full_window = self._full_window, None
            if self._stop_event.is_set() or window is None:
                continue
            steps = window.last_step - window.first_step + 1
            # Compiling takes seconds or none, as a cache has it, and a short window is
            # the rest of one in which the run began: neither tells how fast it is.
            if window.has_compile or 2 * steps < self._interval_steps:
                continue
            seconds = asdict(cpu)
            if not self._on_cpu:  # an accelerator computes while threads wait for it
                seconds = {"stood": cpu.stood}
            each = {name: s / steps for name, s in seconds.items()}
            own = {phase: s / steps for phase, s in window.local_s.items()}
            share = ProcessStepTime(
                host=socket.gethostname(),
                first=window.first_step,
                last=window.last_step,
                step_s=(window.end_time - window.start_time) / steps,
                own_s={**own, COMPUTE_PHASE: sum(each.values())},
                ran_s=each,
            )
            with suppress(RuntimeError):  # process 0 is gone, and its store
                self._compare(share)

    def _compare(self, share: ProcessStepTime) -> None:
        """Publish a share; in process 0, compare those of all over the same steps."""
        self._group.publish(_STEP_TIME, asdict(share))
        if not self._group.is_primary:
            return
        shares: list[ProcessStepTime] = []
        end = time.monotonic() + _GATHER_TIMEOUT_S
        while time.monotonic() < end and not self._stop_event.is_set():
            found = [*self._group.published(_STEP_TIME, parse_step_time).values()]
            if any(other.last > share.last for other in found):
                return  # another process is a window further: this one is lost
            if [other.last for other in found] == [share.last] * self._group.size:
                shares = found
                break
            self._stop_event.wait(_POLL_S)
        for late in find_stragglers(shares)[:_MAX_REPORTED]:
            row = asdict(late) | {"time": time.time()}
            with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                file.write(json_text(row) + "\n")
            # The training thread prints it: a terminal has one writer.
            self._texts.append(late.text)
