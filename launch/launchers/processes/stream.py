"""Streamed: processes that live and die together, their lines shown as they come."""

import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import IO, Final

from jaxdist.launch.distributed.process_group import EXIT_RESTART
from jaxdist.launch.launchers.processes.group import (
    ProcessSpec,
    signal_group,
    start_process,
)
from jaxdist.launch.launchers.processes.reaper import ProcessReaper

FAILURE_GRACE_S: Final = 5.0
"""Seconds that a process has to end by itself after another has failed."""
SAVE_GRACE_S: Final = 30.0
"""Seconds that processes have to save and end where all of them are asked to."""
_TAIL_LINES: Final = 40
_READ_TIMEOUT_S: Final = 0.5
_POLL_S: Final = 0.1

LineCallback = Callable[[int, str, bool], None]
"""Is told the rank, a line, and whether it was written to standard error."""


@dataclass(frozen=True, kw_only=True)
class ProcessFailure:
    """The first of several processes that failed."""

    rank: int
    """Which one."""
    returncode: int
    """Exit code; negative is the signal that ended it."""
    last_lines: tuple[str, ...]
    """Its last lines."""

    @property
    def exit_code(self) -> int:
        """The code as a shell gives it: 128 and the signal."""
        return self.returncode if self.returncode > 0 else 128 - self.returncode

    @property
    def exit_description(self) -> str:
        """How it ended, in words.

        >>> ProcessFailure(rank=1, returncode=-9, last_lines=()).exit_description
        'was ended by SIGKILL'
        """
        if self.returncode > 0:
            return f"ended with {self.returncode}"
        return f"was ended by {signal.Signals(-self.returncode).name}"


class SignalExit(SystemExit):
    """This process was asked to end, by a signal, and so are those it has started.

    Args:
        signum: of the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)

    def adopt_exit_codes(self, codes: Sequence[int | None]) -> None:
        """Note how the others have ended: one that has saved has done so with all."""
        if EXIT_RESTART in codes:
            self.code = EXIT_RESTART


def run_and_stream(
    specs: Sequence[ProcessSpec],
    on_line: LineCallback,
    *,
    failure_grace_s: float = FAILURE_GRACE_S,
    save_grace_s: float = SAVE_GRACE_S,
    on_failure: Callable[[ProcessFailure], None] = lambda failure: None,
    should_recall: Callable[[], bool] = lambda: False,
) -> ProcessFailure | None:
    """Run processes at once, show what they write, and wait for all of them.

    Whatever ends the call (a failure, Ctrl-C), those that still run are asked to end,
    and killed with their children some seconds later. Where they are recalled, those
    that save and ask to be started again count as failed, as in any other case.

    Args:
        specs: what to start; the position is the rank.
        on_line: is told every line; never by two threads at once.
        failure_grace_s: seconds from SIGTERM to SIGKILL after a failure.
        save_grace_s: the same where nothing has failed: they may save together.
        on_failure: is told the first failure, before the others are ended.
        should_recall: whether all are to save and end; asked again and again.

    Returns:
        The first process that did not end with 0, if there is one.

    Raises:
        Asked: this process was asked to end.
    """
    ends: SimpleQueue[_StreamedProcess] = SimpleQueue()
    lock, running = Lock(), list[_StreamedProcess]()
    with ExitStack() as stack:
        survivor = stack.enter_context(ProcessReaper())
        for rank, task in enumerate(specs):
            running.append(_StreamedProcess(task, rank, on_line, lock, ends))
            stack.callback(running[-1].kill)
            survivor.add_group(running[-1].process.pid)
        try:
            first = _wait_for_failure(ends, running, should_recall, save_grace_s)
        except BaseException as end:
            _terminate(running, save_grace_s)
            if isinstance(end, SignalExit):
                end.adopt_exit_codes([each.process.poll() for each in running])
            raise
        if first is None:
            return None
        for each in running:
            # What others say of a death that the first has caused helps nobody.
            each.forwards_lines = each is first
        failure = first.failure()
        on_failure(failure)
        _terminate(running, failure_grace_s)
    return failure


class _StreamedProcess:
    """A process, and the threads that read what it writes."""

    def __init__(
        self,
        task: ProcessSpec,
        rank: int,
        show: LineCallback,
        lock: Lock,
        ends: "SimpleQueue[_StreamedProcess]",
    ) -> None:
        self.rank, self._on_line, self._lock, self._exit_queue = rank, show, lock, ends
        self.forwards_lines = True
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.process = start_process(task, subprocess.PIPE, subprocess.PIPE)
        out, err = self.process.stdout, self.process.stderr
        self._readers = [
            Thread(target=self._read, args=pair, daemon=True)
            for pair in ((out, False), (err, True))
        ]
        for thread in (*self._readers, Thread(target=self._wait, daemon=True)):
            thread.start()

    def failure(self) -> ProcessFailure:
        """Say how it has ended, with what it wrote last."""
        for thread in self._readers:
            thread.join(
                _READ_TIMEOUT_S
            )  # what it has started may still hold its output
        return ProcessFailure(
            rank=self.rank,
            returncode=self.process.returncode,
            last_lines=tuple(self._tail),
        )

    def kill(self) -> None:
        """End it and its children, and read what they have left."""
        signal_group(self.process, signal.SIGKILL)
        self.process.wait()
        for thread in self._readers:
            thread.join(FAILURE_GRACE_S)

    def _wait(self) -> None:
        self.process.wait()
        self._exit_queue.put(self)

    def _read(self, stream: IO[bytes], error: bool) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip("\r\n")
                # Where nobody reads any more, it is read on: the writer never waits.
                with self._lock, suppress(OSError):
                    self._tail.append(text)
                    if self.forwards_lines:
                        self._on_line(self.rank, text, error)


def _wait_for_failure(
    exit_queue: "SimpleQueue[_StreamedProcess]",
    running: Sequence[_StreamedProcess],
    should_recall: Callable[[], bool],
    save_grace_s: float,
) -> _StreamedProcess | None:
    """Wait for the end of all, or for the first that fails; recall them meanwhile."""
    left, recalled = len(running), False
    while left:
        try:
            ended = exit_queue.get(timeout=None if recalled else _POLL_S)
        except Empty:
            if should_recall():
                recalled = True
                _terminate(running, save_grace_s)
                for each in running:
                    each.kill()
            continue
        left -= 1
        if ended.process.returncode:
            return ended
    return None


def _terminate(running: Sequence[_StreamedProcess], grace_s: float) -> None:
    """Send SIGTERM to those that still run, and give them time.

    Those that end by themselves when their input does read there how much they have.
    """
    alive = [each.process for each in running if each.process.poll() is None]
    for child in alive:
        if child.stdin is None:
            signal_group(child, signal.SIGTERM)
            # One that is stopped hears nothing else before it goes on.
            signal_group(child, signal.SIGCONT)
        else:
            with suppress(BrokenPipeError):
                child.stdin.write(f"{grace_s}\n".encode())
                child.stdin.close()
    end = time.monotonic() + grace_s
    for child in alive:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, end - time.monotonic()))
