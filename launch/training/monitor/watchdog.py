"""Watch: a step that does not end is noticed, with the process that is stuck named.

The threads of a process go on while it waits in a collective. One says, again and
again, where the process is; one looks at how long it has been there, and asks who is
behind (`jaxdist.launch.training.monitor.hang_report`).
"""

import faulthandler
import json
import os
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread, main_thread
from types import TracebackType
from typing import Final, Self

from jaxdist.launch.distributed.process_group import EXIT_RESTART, ProcessGroup
from jaxdist.launch.training.monitor.hang_report import (
    HangReport,
    ProcessHeartbeat,
    diagnose_hang,
    unresponsive_text,
    waiting_text,
)

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
_HEARTBEAT_KEY: Final = "jaxdist/place"


@dataclass(frozen=True, kw_only=True)
class PhasePosition:
    """Where a process is."""

    number: int = 0
    """Places that it has been at; in all processes the same is the same place."""
    step: int = 0
    """Step of the run."""
    phase: str = ""
    """Phase of the step; empty between phases."""
    since: float = 0.0
    """When it came there, on its own monotonic clock."""


def phase_limit_s(phase: str, floor_s: float, steps_s: Sequence[float]) -> float:
    """Return the seconds that a phase may take.

    A first step sets up links, evaluations have many batches, and nobody knows how
    long a compiler takes.

    >>> steps = [0.1, 0.2, 0.1], [4, 5, 6]
    >>> tuple(phase_limit_s("compute", 60, seconds) for seconds in steps)
    (60, 100)
    >>> phase_limit_s("compute", 60, []), phase_limit_s("compile", 60, [])
    (600, 3600)
    """
    step = max(floor_s, HANG_LIMIT_STEPS * median(steps_s or [0]))
    times = _LIMIT_FACTORS.get(phase, _DEFAULT_LIMIT_FACTOR)
    return step * (max(times, _DEFAULT_LIMIT_FACTOR) if not steps_s else times)


class HangWatchdog:
    """Watches one process of a run, as a context.

    Args:
        mine: the process among those of its run.
        floor_s: seconds that every step may take; 0 watches nothing.
        stacks: folder for the stacks of all threads of a process that is stuck.
    """

    def __init__(self, mine: ProcessGroup, floor_s: float, stacks: Path) -> None:
        self._mine, self._floor, self._stacks = mine, floor_s, stacks
        self._every = min(max(floor_s / 30, 0.1), 2.0)
        self._place, self._steps = PhasePosition(), deque[float](maxlen=100)
        self._step_began = (0, 0.0)
        self._awake, self._over = 0.0, Event()
        self._beats: dict[int, tuple[int, float]] = {mine.rank: (0, 0.0)}
        self._threads = [Thread(target=self._looks, daemon=True)]
        if mine.store is not None:
            self._threads.append(Thread(target=self._says, daemon=True))

    def __enter__(self) -> Self:
        """Begin to watch."""
        for thread in self._threads if self._floor else ():
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for thread in self._threads if self._floor else ():
            thread.join(1)

    def enters(self, phase: str, step: int) -> None:
        """Note that a phase begins, or, with no name, that one has ended."""
        now, old = time.monotonic(), self._place
        self._place = PhasePosition(
            number=old.number + 1, step=step, phase=phase, since=now
        )
        if phase == "compute" and step != self._step_began[0]:
            before, at = self._step_began
            if step == before + 1:
                self._steps.append(now - at)
            self._step_began = step, now

    def places(self) -> dict[int, ProcessHeartbeat]:
        """Return where each process is, by what it has said last."""
        return {**self._heard(), self._mine.rank: make_heartbeat(self._place)}

    def _looks(self) -> None:
        """Look how long the process has been where it is."""
        self._awake = last = time.monotonic()
        while not self._over.wait(self._every):
            now = time.monotonic()
            if now - last > 3 * self._every:
                # Everything was stopped, this thread too: what was then does not count.
                self._awake = now
            last = now
            self._listens(now)
            place = self._place
            most = phase_limit_s(place.phase, self._floor, list(self._steps))
            if (
                place.number
                and now - max(place.since, self._awake) > _QUERY_FRACTION * most
            ):
                self._asks(place)
                last = time.monotonic()

    def _listens(self, now: float) -> None:
        """End the process where another says nothing any more, whatever it does.

        Process 0 listens to all; the others to it, since it answers what they say.
        """
        heard = self._heard() if self._mine.leads else {}
        for rank, said in heard.items():
            if self._beats.get(rank, (0, 0.0))[0] != said.beat:
                self._beats[rank] = said.beat, now
        silent = [
            rank
            for rank, (beat, at) in self._beats.items()
            if beat > 0 and now - max(at, self._awake) > _QUERY_FRACTION * self._floor
        ]
        if silent and not self._over.is_set():
            own, mine = make_heartbeat(self._place), self._mine
            waited = now - self._place.since
            if mine.leads:
                others = {rank: heard.get(rank, own) for rank in silent}
                text = f"{unresponsive_text(others)}; {waiting_text(0, own, waited)}"
                self._ends(HangReport(text=text, speaker=0))
            self._ends(diagnose_hang({}, {}, mine, own, waited))

    def _asks(self, place: PhasePosition) -> None:
        """Ask the others where they are; end the process unless it has gone on."""
        asked, before = time.monotonic(), self._heard()
        if self._over.wait(2.5 * self._every) or self._place is not place:
            return
        after = self._heard() if before else {}
        if self._over.is_set() or self._place is not place:
            return
        waited = asked - place.since
        own = make_heartbeat(place)
        self._ends(diagnose_hang(before, after, self._mine, own, waited))

    def _ends(self, found: HangReport) -> None:
        """Write what all threads do, say who is stuck, and leave."""
        path = self._stacks / f"r{self._mine.rank:02}.txt"
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w") as file:
                faulthandler.dump_traceback(file, all_threads=True)
        if self._mine.rank != found.speaker:
            # Who speaks leaves first, and the launcher ends the others.
            time.sleep(5 * self._every)
        sys.stderr.write(f"{found.text}\n  stacks   {self._stacks}\n")
        sys.stderr.flush()
        os._exit(EXIT_RESTART)

    def _says(self) -> None:
        """Say where the process is, again and again."""
        beat = 0
        while not self._over.wait(self._every):
            beat += 1
            said = make_heartbeat(self._place, beat)
            self._tells(said)
        self._tells(make_heartbeat(self._place, _FINISHED))

    def _tells(self, said: ProcessHeartbeat) -> None:
        # Process 0 is gone, or does not answer: who looks on sees it by the beat.
        with suppress(RuntimeError):
            self._mine.store.key_value_set(
                f"{_HEARTBEAT_KEY}/{self._mine.rank:06}",
                json.dumps(asdict(said)),
                allow_overwrite=True,
            )
            if not self._mine.leads:
                self._beats[0] = said.beat, time.monotonic()

    def _heard(self) -> dict[int, ProcessHeartbeat]:
        """Return what each process has said last; nothing where process 0 is silent."""
        heard: dict[int, ProcessHeartbeat] = {}
        if self._mine.store is None:
            return heard

        def ask() -> None:
            with suppress(RuntimeError):
                for key, text in self._mine.store.key_value_dir_get(_HEARTBEAT_KEY):
                    heard[int(key.rsplit("/")[-1])] = ProcessHeartbeat(
                        **json.loads(text)
                    )

        asking = Thread(target=ask, daemon=True)
        asking.start()
        asking.join(self._every)
        return {} if asking.is_alive() else heard


def make_heartbeat(place: PhasePosition, beat: int = 0) -> ProcessHeartbeat:
    """Return what this process says of a place of its own."""
    return ProcessHeartbeat(
        number=place.number,
        step=place.step,
        phase=place.phase,
        beat=beat,
        line=_main_thread_line(),
        host=socket.gethostname(),
    )


def _main_thread_line() -> str:
    """Return the innermost line of the main thread that no installed package has."""
    frame = innermost = sys._current_frames().get(main_thread().ident or 0)
    while frame is not None and _INSTALLED_PATH.search(frame.f_code.co_filename):
        frame = frame.f_back
    found = frame or innermost
    if found is None:
        return "no line"
    code = found.f_code
    return f"{code.co_filename}:{found.f_lineno} ({code.co_name})"
