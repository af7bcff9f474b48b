"""The watchdog: a step that does not end is noticed, and the stuck process is named.

The threads of a process go on while it waits in a collective. One publishes, again and
again, where the process is; one looks at how long it has been there, and asks who is
behind. All processes of a run go through the same places in the same order, so one that
is behind is stuck; and one that says nothing any more is stopped, or its host is gone.

The status file: where each process of a run is, written while the run goes.

It is read from the folder of the run, without asking a process: a run that has died
cannot be asked.
"""

import faulthandler
import os
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Event, Lock, Thread, main_thread
from types import TracebackType
from typing import Any, Final, Self

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.records import parse_record
from jaxdist.core.validation import json_text
from jaxdist.launch.distributed.exit_codes import EXIT_RESTART
from jaxdist.launch.distributed.launcher_messages import MessageKind, send_to_launcher
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.status import RUNNING, read_status_record

HANG_LIMIT_STEPS: Final = 20
"""Median steps that a step may take, where that is longer than the limit in seconds."""
_LIMIT_FACTORS: Final = {"input": 1, "compute": 1, "compile": 60}
_DEFAULT_LIMIT_FACTOR: Final = 10
"""Limits of other phases and of a first step, in limits of a step."""
_QUERY_FRACTION: Final = 0.85
"""Part of a limit after which the others are asked: their answers take time."""
_INSTALLED_PATH: Final = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<")
_FINISHED: Final = -1
"""Beat of a process that has done its work."""
_HEARTBEAT: Final = "heartbeat"


@dataclass(frozen=True, kw_only=True)
class ProcessHeartbeat:
    """What a process has published of itself."""

    number: int
    """How many places it has been at: the same number is the same place."""
    step: int
    """Step of the run."""
    phase: str
    """Phase of the step."""
    beat: int
    """How often it has published."""
    line: str
    """Line of the source at which its main thread is."""
    host: str = ""
    """Name of its machine."""

    @property
    def where(self) -> str:
        """The place in words."""
        return f"step {self.step}, {self.phase or 'between phases'}"


@dataclass(frozen=True, kw_only=True)
class HangReport:
    """Which process is stuck."""

    text: str
    """For a person."""
    ranks: tuple[int, ...]
    """The ranks that are stuck or gone, for the launcher; none where all wait."""
    speaker: int
    """The process that says it."""


def diagnose_hang(
    before: Mapping[int, ProcessHeartbeat],
    after: Mapping[int, ProcessHeartbeat],
    group: ProcessGroup,
    local: ProcessHeartbeat,
    waited_s: float,
) -> HangReport:
    """Say which process is stuck.

    Args:
        before: what each process had said when one of them was too late.
        after: the same a few beats later; nothing where process 0 did not answer.
        group: the process that asks, among those of its run.
        local: where it is.
        waited_s: seconds that it has been there.
    """
    rank, waits_ = group.rank, waiting_text(group.rank, local, waited_s)
    if not after:
        # Process 0 answers for all, so without it each knows only of itself; of those
        # that are left, rank 1 says it.
        text = f"rank {rank} in {local.where}, for {waited_s:.0f} s, at {local.line}"
        if rank:
            gone = "rank 0 says nothing any more, is stopped or gone"
            text = f"{gone}; {text}"
        speaker = 1 if rank else 0
        return HangReport(text=f"stuck: {text}", ranks=(0,), speaker=speaker)
    # A process that has not spoken since is stopped or gone. If all have, the one that
    # has been at the fewest places is behind, and the others wait for it.
    silent = [r for r in range(group.size) if before.get(r) == after.get(r)]
    speaker = min(set(after) - set(silent), default=rank)
    if silent:
        said = unresponsive_text({r: after.get(r) for r in silent})
        text = f"{said}; {waits_}"
        return HangReport(text=text, ranks=tuple(silent), speaker=speaker)
    # The lowest count is behind, since all enter phases in the same order. Step numbers
    # do not say it: devices are handed steps before earlier ones are awaited.
    least = min(said.number for said in after.values())
    behind = [r for r, said in after.items() if said.number == least]
    if len(behind) < len(after):
        where = "; ".join(
            f"rank {r} in {after[r].where}, at {after[r].line}" for r in behind
        )
        text = f"stuck: {where}; {waits_}"
        return HangReport(text=text, ranks=tuple(behind), speaker=speaker)
    text = f"stuck: no rank is behind, all are in {local.where}, for {waited_s:.0f} s"
    return HangReport(text=f"{text}, at {local.line}", ranks=(), speaker=speaker)


def waiting_text(rank: int, local: ProcessHeartbeat, waited_s: float) -> str:
    """Say where a process waits."""
    return f"rank {rank} waits in {local.where}, for {waited_s:.0f} s"


def unresponsive_text(ranks: Mapping[int, ProcessHeartbeat | None]) -> str:
    """Name the processes that say nothing any more."""
    last = "; ".join(
        f"rank {r}, last in {said.where if said else 'no step'}"
        for r, said in ranks.items()
    )
    return f"stuck: {last}: it says nothing any more, is stopped or gone"


@dataclass(frozen=True, kw_only=True)
class PhasePosition:
    """Where a process is."""

    phase_index: int = 0
    """Places that it has been at; in all processes the same is the same place."""
    step: int = 0
    """Step of the run."""
    phase: str = ""
    """Phase of the step; empty between phases."""
    start_time: float = 0.0
    """When it came there, on its own monotonic clock."""


def phase_limit_s(phase: str, min_limit_s: float, step_times: Sequence[float]) -> float:
    """Return the seconds that a phase may take.

    A first step sets up links, evaluations have many batches, and nobody knows how
    long a compiler takes.

    >>> steps = [0.1, 0.2, 0.1], [4, 5, 6]
    >>> tuple(phase_limit_s("compute", 60, seconds) for seconds in steps)
    (60, 100)
    >>> phase_limit_s("compute", 60, []), phase_limit_s("compile", 60, [])
    (600, 3600)
    """
    # A large network on a slow machine has steps of minutes: the limit grows with them.
    step = max(min_limit_s, HANG_LIMIT_STEPS * median(step_times or [0]))
    times = _LIMIT_FACTORS.get(phase, _DEFAULT_LIMIT_FACTOR)
    return step * (max(times, _DEFAULT_LIMIT_FACTOR) if not step_times else times)


class HangWatchdog:
    """Watches one process of a run, as a context.

    Args:
        group: the process among those of its run.
        min_limit_s: seconds that every step may take; 0 watches nothing.
        stacks: folder for the stacks of all threads of a process that is stuck.
    """

    def __init__(self, group: ProcessGroup, min_limit_s: float, stacks: Path) -> None:
        self._group, self._min_limit_s, self._stacks = group, min_limit_s, stacks
        # Some thirty beats within the limit: a beat that is late or lost is no alarm.
        self._interval_s = min(max(min_limit_s / 30, 0.1), 2.0)
        self._position, self._step_times = PhasePosition(), deque[float](maxlen=100)
        self._step_start = (0, 0.0)
        self._resume_time, self._stop_event = 0.0, Event()
        self._last_heartbeats: dict[int, tuple[int, float]] = {group.rank: (0, 0.0)}
        # Two threads: publishing blocks while process 0 does not answer, and just then
        # somebody must watch.
        self._threads = [Thread(target=self._watch, daemon=True)]
        if group.kv_store is not None:
            self._threads.append(Thread(target=self._send_heartbeats, daemon=True))

    def __enter__(self) -> Self:
        """Begin to watch."""
        for thread in self._threads if self._min_limit_s else ():
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop_event.set()
        for thread in self._threads if self._min_limit_s else ():
            thread.join(1)

    def on_phase(self, phase: str, step: int) -> None:
        """Note that a phase begins, or, with no name, that one has ended."""
        now, old = time.monotonic(), self._position
        self._position = PhasePosition(
            phase_index=old.phase_index + 1, step=step, phase=phase, start_time=now
        )
        # From one step to the next: an evaluation between two of them does
        # not move the median.
        if phase == "compute" and step != self._step_start[0]:
            before, at = self._step_start
            if step == before + 1:
                self._step_times.append(now - at)
            self._step_start = step, now

    def heartbeats(self) -> dict[int, ProcessHeartbeat]:
        """Return where each process is, by what it has said last."""
        return {
            **self._read_heartbeats(),
            self._group.rank: make_heartbeat(self._position),
        }

    def _watch(self) -> None:
        """Look how long the process has been where it is, and whether others speak."""
        self._resume_time = last = time.monotonic()
        while not self._stop_event.wait(self._interval_s):
            now = time.monotonic()
            if now - last > 3 * self._interval_s:
                # Everything was stopped, this thread too: what was then does not count.
                self._resume_time = now
            last = now
            self._check_heartbeats(now)
            place = self._position
            limit = phase_limit_s(
                place.phase, self._min_limit_s, list(self._step_times)
            )
            there_s = now - max(place.start_time, self._resume_time)
            if not place.phase_index or there_s <= _QUERY_FRACTION * limit:
                continue
            # The others are asked twice, some beats apart: those that have spoken in
            # between are alive. The process may go on meanwhile.
            before, pause_s = self._read_heartbeats(), 2.5 * self._interval_s
            has_moved = self._stop_event.wait(pause_s) or self._position is not place
            after = self._read_heartbeats() if before and not has_moved else {}
            is_over = self._stop_event.is_set() or self._position is not place
            if not is_over:
                own, waited = make_heartbeat(place), now - place.start_time
                self._abort(diagnose_hang(before, after, self._group, own, waited))
            # The pause between the two readings was this thread's own and no stop of
            # the machine.
            last = time.monotonic()

    def _check_heartbeats(self, now: float) -> None:
        """End the process where another says nothing any more, whatever it does.

        Process 0 listens to all; the others to it, since it answers what they say.
        """
        heard = self._read_heartbeats() if self._group.is_primary else {}
        for rank, said in heard.items():
            if self._last_heartbeats.get(rank, (0, 0.0))[0] != said.beat:
                self._last_heartbeats[rank] = said.beat, now
        silent = [
            rank
            # A copy: the thread that publishes may add process 0 meanwhile.
            for rank, (beat, at) in self._last_heartbeats.copy().items()
            # 0 has not spoken yet, and _FINISHED is below 0.
            if beat > 0
            and now - max(at, self._resume_time) > _QUERY_FRACTION * self._min_limit_s
        ]
        if silent and not self._stop_event.is_set():
            own, mine = make_heartbeat(self._position), self._group
            waited = now - self._position.start_time
            if mine.is_primary:
                others = {rank: heard.get(rank, own) for rank in silent}
                text = f"{unresponsive_text(others)}; {waiting_text(0, own, waited)}"
                self._abort(HangReport(text=text, ranks=tuple(silent), speaker=0))
            self._abort(diagnose_hang({}, {}, mine, own, waited))

    def _abort(self, found: HangReport) -> None:
        """Write what all threads do, say who is stuck, and leave."""
        # Written first: whoever looks for the reason needs the stacks most.
        path = self._stacks / f"r{self._group.rank:02}.txt"
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w") as file:
                faulthandler.dump_traceback(file, all_threads=True)
        if self._group.rank != found.speaker:
            # The process that speaks ends first; then the launcher ends the others.
            time.sleep(5 * self._interval_s)
        sys.stderr.write(f"{found.text}\n  stacks   {self._stacks}\n")
        sys.stderr.flush()
        send_to_launcher(MessageKind.STUCK, found.ranks)
        # No clean end: the main thread is in a collective and would not leave it.
        os._exit(EXIT_RESTART)

    def _send_heartbeats(self) -> None:
        """Publish where the process is, again and again."""
        beat = 0
        while beat != _FINISHED:
            beat = _FINISHED if self._stop_event.wait(self._interval_s) else beat + 1
            heartbeat = make_heartbeat(self._position, beat)
            # Without an answer process 0 is gone, which the beat before tells in time.
            with suppress(RuntimeError):
                self._group.publish(_HEARTBEAT, asdict(heartbeat))
                if not self._group.is_primary:
                    self._last_heartbeats[0] = beat, time.monotonic()

    def _read_heartbeats(self) -> dict[int, ProcessHeartbeat]:
        """Return what each process has said last; nothing where process 0 is silent.

        The store has no timeout for reading a folder, so a thread asks.
        """
        heard: dict[int, ProcessHeartbeat] = {}
        if self._group.kv_store is None:
            return heard

        def ask() -> None:
            with suppress(RuntimeError):
                heard.update(self._group.published(_HEARTBEAT, parse_heartbeat))

        asking = Thread(target=ask, daemon=True)
        asking.start()
        asking.join(self._interval_s)
        return {} if asking.is_alive() else heard


def parse_heartbeat(tree: object) -> ProcessHeartbeat:
    """Read what `make_heartbeat` returned in another process.

    Raises:
        BadInput: it is something else.
    """
    return parse_record(ProcessHeartbeat, tree, "a heartbeat")


def make_heartbeat(position: PhasePosition, sequence: int = 0) -> ProcessHeartbeat:
    """Return what this process publishes of a place that it is at."""
    # The innermost line of the main thread that is of no installed package: a user
    # looks for the place in a script, not in jax.
    frame = innermost = sys._current_frames().get(main_thread().ident or 0)
    while frame is not None and _INSTALLED_PATH.search(frame.f_code.co_filename):
        frame = frame.f_back
    line, found = "no line", frame or innermost
    if found is not None:
        code = found.f_code
        line = f"{code.co_filename}:{found.f_lineno} ({code.co_name})"
    return ProcessHeartbeat(
        number=position.phase_index,
        step=position.step,
        phase=position.phase,
        beat=sequence,
        line=line,
        host=socket.gethostname(),
    )


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
            "attempt": 1 if before is None else before.attempt + 1,
            "steps": steps,
            "count": group.size,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "began": time.time(),
        }
        self._thread = Thread(target=self._run, daemon=True)
        self._lock, self._is_over = Lock(), False

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
        """Write the final state of this attempt, from any thread."""
        self._stop_event.set()
        if self._is_writer:
            self._write(state)

    def _run(self) -> None:
        while not self._stop_event.wait(HEARTBEAT_INTERVAL_S):
            self._write(RUNNING)

    def _write(self, state: str) -> None:
        # A full disk must not end the run here, where nothing is lost. A thread of its
        # own writes: a disk that hangs must not stop heartbeats between processes.
        # Nothing is written after a final state, which another thread may write.
        with self._lock, suppress(OSError):
            if self._is_over:
                return
            self._is_over = state != RUNNING
            places = {
                str(rank): {"host": said.host, "step": said.step, "phase": said.phase}
                for rank, said in sorted(self._heartbeats().items())
            }
            news = {"state": state, **self._record, "processes": places}
            # Written again in two seconds: it need not wait for a busy disk.
            write_atomic(self._path, json_text(news) + "\n", durable=False)
