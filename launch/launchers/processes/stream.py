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
    code: int
    """Exit code; negative is the signal that ended it."""
    last: tuple[str, ...]
    """Its last lines."""

    @property
    def exit_code(self) -> int:
        """The code as a shell gives it: 128 and the signal."""
        return self.code if self.code > 0 else 128 - self.code

    @property
    def how(self) -> str:
        """How it ended, in words.

        >>> ProcessFailure(rank=1, code=-9, last=()).how
        'was ended by SIGKILL'
        """
        if self.code > 0:
            return f"ended with {self.code}"
        return f"was ended by {signal.Signals(-self.code).name}"


class SignalExit(SystemExit):
    """This process was asked to end, by a signal, and so are those it has started.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)

    def heard(self, codes: Sequence[int | None]) -> None:
        """Note how the others have ended: one that has saved has done so with all."""
        if EXIT_RESTART in codes:
            self.code = EXIT_RESTART


def run_and_stream(
    tasks: Sequence[ProcessSpec],
    show: LineCallback,
    *,
    grace: float = FAILURE_GRACE_S,
    saving: float = SAVE_GRACE_S,
    tell: Callable[[ProcessFailure], None] = lambda failure: None,
    recalls: Callable[[], bool] = lambda: False,
) -> ProcessFailure | None:
    """Run processes at once, show what they write, and wait for all of them.

    Whatever ends the call (a failure, Ctrl-C), those that still run are asked to end,
    and killed with their children some seconds later. Where they are recalled, those
    that save and ask to be started again count as failed, as in any other case.

    Args:
        tasks: what to start; the position is the rank.
        show: is told every line; never by two threads at once.
        grace: seconds from SIGTERM to SIGKILL after a failure.
        saving: the same where nothing has failed: they may save together.
        tell: is told the first failure, before the others are ended.
        recalls: whether all are to save and end; asked again and again.

    Returns:
        The first process that did not end with 0, if there is one.

    Raises:
        Asked: this process was asked to end.
    """
    ends: SimpleQueue[_StreamedProcess] = SimpleQueue()
    lock, running = Lock(), list[_StreamedProcess]()
    with ExitStack() as stack:
        survivor = stack.enter_context(ProcessReaper())
        for rank, task in enumerate(tasks):
            running.append(_StreamedProcess(task, rank, show, lock, ends))
            stack.callback(running[-1].kill)
            survivor.watch(running[-1].child.pid)
        try:
            first = _wait_for_failure(ends, running, recalls, saving)
        except BaseException as end:
            _terminate(running, saving)
            if isinstance(end, SignalExit):
                end.heard([each.child.poll() for each in running])
            raise
        if first is None:
            return None
        for each in running:
            # What others say of a death that the first has caused helps nobody.
            each.is_heard = each is first
        failure = first.failure()
        tell(failure)
        _terminate(running, grace)
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
        self.rank, self._show, self._lock, self._ends = rank, show, lock, ends
        self.is_heard = True
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.child = start_process(task, subprocess.PIPE, subprocess.PIPE)
        out, err = self.child.stdout, self.child.stderr
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
            rank=self.rank, code=self.child.returncode, last=tuple(self._tail)
        )

    def kill(self) -> None:
        """End it and its children, and read what they have left."""
        signal_group(self.child, signal.SIGKILL)
        self.child.wait()
        for thread in self._readers:
            thread.join(FAILURE_GRACE_S)

    def _wait(self) -> None:
        self.child.wait()
        self._ends.put(self)

    def _read(self, stream: IO[bytes], error: bool) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip("\r\n")
                # Where nobody reads any more, it is read on: the writer never waits.
                with self._lock, suppress(OSError):
                    self._tail.append(text)
                    if self.is_heard:
                        self._show(self.rank, text, error)


def _wait_for_failure(
    ends: "SimpleQueue[_StreamedProcess]",
    running: Sequence[_StreamedProcess],
    recalls: Callable[[], bool],
    saving: float,
) -> _StreamedProcess | None:
    """Wait for the end of all, or for the first that fails; recall them meanwhile."""
    left, recalled = len(running), False
    while left:
        try:
            ended = ends.get(timeout=None if recalled else _POLL_S)
        except Empty:
            if recalls():
                recalled = True
                _terminate(running, saving)
                for each in running:
                    each.kill()
            continue
        left -= 1
        if ended.child.returncode:
            return ended
    return None


def _terminate(running: Sequence[_StreamedProcess], grace: float) -> None:
    """Send SIGTERM to those that still run, and give them time.

    Those that end by themselves when their input does read there how much they have.
    """
    alive = [each.child for each in running if each.child.poll() is None]
    for child in alive:
        if child.stdin is None:
            signal_group(child, signal.SIGTERM)
            # One that is stopped hears nothing else before it goes on.
            signal_group(child, signal.SIGCONT)
        else:
            with suppress(BrokenPipeError):
                child.stdin.write(f"{grace}\n".encode())
                child.stdin.close()
    end = time.monotonic() + grace
    for child in alive:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, end - time.monotonic()))
