"""Child processes that live and die together: one that fails ends all of them.

One supervisor starts them, reads their output, and ends them. `run_and_collect` returns
what each has written in the end; `run_and_stream` passes every line on as it comes.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from types import FrameType
from typing import IO, Final, NoReturn, Self

from jaxdist.core.errors import FatalError
from jaxdist.launch.distributed.exit_codes import EXIT_RESTART
from jaxdist.launch.distributed.launcher_messages import (
    CHANNEL_VAR,
    LINE_PREFIX,
    LauncherMessage,
    parse_message,
    pipe_channel,
)

FAILURE_GRACE_S: Final = 5.0
"""Seconds that a process has to end by itself after another has failed."""
SAVE_GRACE_S: Final = 30.0
"""Seconds that processes have to save and end where all of them are asked to."""
_TAIL_LINES: Final = 40
_QUOTED_LINES: Final = 12
_CHUNK_BYTES: Final = 1 << 16
_MAX_DRAIN_BYTES: Final = 1 << 20  # the most that a pipe of an ordinary user holds
_POLL_S: Final = 0.1
_EXIT_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)

# The kernel ends a process whose parent is gone, however the parent went. A child asks
# for that itself, in front of its command: asking between fork and exec is not safe in
# a parent with threads, and jax has many. The same for the processors that it may use.
_PARENT_DEATH_SCRIPT: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
if sys.argv[2]:
    os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))
os.execvp(sys.argv[3], sys.argv[3:])
"""

# A killed parent takes its children with it (above), but not the children of these. So
# one process more outlives it: its input ends however the parent goes, and then it
# kills the groups of processes that it was told of.
_REAPER_SCRIPT: Final = """\
import os, signal, sys
groups = set()
for line in sys.stdin:
    if line == "done\\n":
        sys.exit()
    groups.add(int(line))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""

LineCallback = Callable[[int, str, bool], None]
"""Receives the rank, a line, and whether it was written to standard error."""
MessageCallback = Callable[[int, LauncherMessage], None]
"""Receives the rank and what that process tells its launcher."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to start."""

    command: tuple[str, ...]
    """Words of its command line."""
    env: Mapping[str, str]
    """Its whole environment."""
    ends_with_stdin: bool = False
    """Whether it ends by itself when its input does, instead of having none."""
    cpus: tuple[int, ...] = ()
    """Processors that it may use, on Linux; none are all of its parent's."""


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """What one process left."""

    returncode: int
    """Exit code; negative is the signal that ended it."""
    stdout: str
    """Standard output."""
    stderr: str
    """Standard error."""


class ProcessesFailed(FatalError):
    """One of several processes failed or took too long; all of them were ended.

    Args:
        message: what happened, in a line.
        results: what each process left.
        rank: the process that is quoted.
    """

    def __init__(
        self, message: str, results: tuple[ProcessResult, ...], rank: int
    ) -> None:
        self.results = results
        lines = (results[rank].stderr or results[rank].stdout).splitlines()
        quoted = (f"  {line}" for line in lines[-_QUOTED_LINES:])
        super().__init__("\n".join((message, *quoted)))


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
    """This process was asked to end by a signal, and so are those it has started."""


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise `SignalExit` on SIGTERM and SIGHUP, so that child processes end first."""
    before = {one: signal.signal(one, _raise_exit) for one in _EXIT_SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _raise_exit(number: int, frame: FrameType | None) -> NoReturn:
    # Schedulers may signal twice; what has begun to end is not cut short.
    for one in _EXIT_SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    raise SignalExit(128 + number)


def run_and_collect(
    specs: Sequence[ProcessSpec], *, timeout: float
) -> tuple[ProcessResult, ...]:
    """Run processes at once, wait for all of them, and return their output.

    Whatever ends the call (a failure, the time, Ctrl-C), they and their children are
    killed before it returns.

    Args:
        specs: what to start; the position is the rank.
        timeout: seconds until all must be done.

    Raises:
        ProcessesFailed: a process did not end with 0, or not in time.
    """
    written: list[tuple[list[str], list[str]]] = [([], []) for _ in specs]
    # False and True, whether a line is from standard error, are indices 0 and 1.
    with _Supervisor(
        specs, lambda rank, line, error: written[rank][error].append(line)
    ) as group:
        failed, how = group.wait(timeout_s=timeout), ""
        if failed is not None:
            how = f"ended with {failed.process.returncode}"
        elif late := [c for c in group.children if c.process.poll() is None]:
            failed, how = late[0], f"ran past {timeout:g} s"
    # All are killed now, and their output is read to its end.
    results = tuple(
        ProcessResult(
            returncode=child.process.returncode,
            stdout="".join(out),
            stderr="".join(err),
        )
        for child, (out, err) in zip(group.children, written)
    )
    if failed is not None:
        message = f"process {failed.rank} of {len(specs)} {how}"
        raise ProcessesFailed(message, results, failed.rank)
    return results


def run_and_stream(
    specs: Sequence[ProcessSpec],
    on_line: LineCallback,
    *,
    on_message: MessageCallback | None = None,
    failure_grace_s: float = FAILURE_GRACE_S,
    save_grace_s: float = SAVE_GRACE_S,
    on_failure: Callable[[ProcessFailure], None] = lambda failure: None,
    should_recall: Callable[[], bool] = lambda: False,
) -> ProcessFailure | None:
    """Run processes at once, pass on what they write, and wait for all of them.

    Whatever ends the call (a failure, Ctrl-C), those that still run are asked to end,
    and killed with their children some seconds later. Where they are recalled, those
    that save and ask to be started again count as failed, as in any other case.

    Args:
        specs: what to start; the position is the rank.
        on_line: receives every line; never in two threads at once.
        on_message: receives what processes tell their launcher, as `on_line` does
            lines; None gives them no channel.
        failure_grace_s: seconds from SIGTERM to SIGKILL after a failure.
        save_grace_s: the same where nothing has failed: they may save together.
        on_failure: receives the first failure, before the others are ended.
        should_recall: whether all are to save and end; polled.

    Returns:
        The first process that did not end with 0, if there is one.

    Raises:
        SignalExit: this process was asked to end.
    """
    with _Supervisor(
        specs,
        lambda rank, line, error: on_line(rank, line.rstrip("\r\n"), error),
        on_message,
    ) as group:
        try:
            first = group.wait(should_recall=should_recall, save_grace_s=save_grace_s)
        except BaseException as end:
            group.terminate(save_grace_s)
            # One process that has saved has done so with all: the run can go on.
            codes = [child.process.poll() for child in group.children]
            if isinstance(end, SignalExit) and EXIT_RESTART in codes:
                end.code = EXIT_RESTART
            raise
        if first is None:
            return None
        # One process may have said for all why they end, and another be the first to
        # end: what is in the pipes by now was written before that.
        group.drain()
        # Others fail because the first did; what they say of it helps nobody.
        group.only_rank = first.rank
        failure = ProcessFailure(
            rank=first.rank,
            returncode=first.process.returncode,
            last_lines=tuple(first.tail),
        )
        on_failure(failure)
        group.terminate(failure_grace_s)
    return failure


class _LineReader:
    """Passes on the lines of a pipe: by a thread as they come, or at once by `drain`.

    Args:
        pipe: the end to read from.
        on_line: receives each line with its end; the last one may have none.
    """

    def __init__(self, pipe: IO[bytes], on_line: Callable[[bytes], None]) -> None:
        self._pipe, self._on_line, self._rest = pipe, on_line, b""
        # The thread may find that somebody else has read what it was woken for.
        os.set_blocking(pipe.fileno(), False)
        self._lock, self._closed = Lock(), False
        self.thread = Thread(target=self._run, daemon=True)

    def drain(self, *, ended: bool) -> None:
        """Pass on what is in the pipe now, whenever the thread gets its turn.

        Args:
            ended: whether the writer has ended: the last line may have no end.
        """
        with self._lock:
            count = 0
            while count < _MAX_DRAIN_BYTES and (chunk := self._read()):
                count += len(chunk)
            if ended:
                self._pass_rest()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while not self._closed:
            poll.poll()
            with self._lock:
                if self._read() == b"":
                    self._closed = True
                    self._pass_rest()
                    self._pipe.close()

    def _read(self) -> bytes | None:
        """Read once; empty at the end of the pipe, None where nothing is there."""
        if self._closed:
            return None
        try:
            chunk = os.read(self._pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._on_line(line + b"\n")
        return chunk

    def _pass_rest(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._on_line(rest)


@dataclass(kw_only=True, eq=False)
class _Child:
    """A process that was started."""

    rank: int
    process: subprocess.Popen[bytes]
    readers: list[_LineReader] = field(default_factory=list)
    """They read its messages, standard output and standard error."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    """Its last lines."""


class _Supervisor:
    """Processes that run at the same time, as a context that kills what is left.

    Args:
        specs: what to start; the position is the rank.
        on_line: the sink of their output; receives lines with their ends.
        on_message: the sink of their messages; None gives them no channel.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        on_line: LineCallback,
        on_message: MessageCallback | None = None,
    ) -> None:
        self._specs, self._on_line, self._on_message = specs, on_line, on_message
        self.children: list[_Child] = []
        self.only_rank: int | None = None
        """The one process whose lines are passed on; None: those of all."""
        self._ended: SimpleQueue[_Child] = SimpleQueue()
        self._lock = Lock()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            reaper = subprocess.Popen(
                # Without variables and packages (-I, -S), which take time to load.
                [sys.executable, "-I", "-S", "-c", _REAPER_SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            # Called last: it stands by until all are killed.
            stack.callback(reaper.communicate, "done\n")
            for rank, spec in enumerate(self._specs):
                self.children.append(self._start(spec, rank))
                stack.callback(self._kill, self.children[-1])
                # Somebody may have killed it: then the kernel ends the children alone.
                with suppress(BrokenPipeError):
                    pid = self.children[-1].process.pid
                    print(pid, file=reaper.stdin, flush=True)
            # From here on the end of this context kills them; until here, an error.
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def wait(
        self,
        *,
        timeout_s: float = float("inf"),
        should_recall: Callable[[], bool] = lambda: False,
        save_grace_s: float = SAVE_GRACE_S,
    ) -> _Child | None:
        """Return the first process that fails; None: all ended, or the time is up."""
        end, left, recalled = time.monotonic() + timeout_s, len(self.children), False
        while left and time.monotonic() < end:
            try:
                child = self._ended.get(timeout=_POLL_S)
            except Empty:
                # Between ends of processes: one that has failed goes before a recall.
                if not recalled and should_recall():
                    recalled = True
                    self.terminate(save_grace_s)
                    for each in self.children:
                        self._kill(each)
                continue
            left -= 1
            if child.process.returncode:
                return child
        return None

    def terminate(self, grace_s: float) -> None:
        """Send SIGTERM to those that still run, and give them time to end."""
        alive = [c.process for c in self.children if c.process.poll() is None]
        for process in alive:
            if process.stdin is None:
                signal_group(process, signal.SIGTERM)
                # A process that is stopped handles no signal before it is continued.
                signal_group(process, signal.SIGCONT)
            else:
                # No signal crosses ssh. The end of its input ends the remote process,
                # which reads there how many seconds it has.
                with suppress(BrokenPipeError):
                    process.stdin.write(f"{grace_s}\n".encode())
                    process.stdin.close()
        end = time.monotonic() + grace_s
        for process in alive:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))

    def _start(self, spec: ProcessSpec, rank: int) -> _Child:
        """Start a process, and the threads that read what it writes."""
        receive, send = (None, None) if self._on_message is None else os.pipe()
        try:
            process = start_process(spec, subprocess.PIPE, subprocess.PIPE, send)
        finally:
            if send is not None:
                os.close(send)  # a pipe ends when nobody has its end for writing open
        child = _Child(rank=rank, process=process)
        # Messages first: they say what is to be done about the lines.
        if receive is not None:
            pipe = os.fdopen(receive, "rb", 0)
            child.readers.append(_LineReader(pipe, partial(self._pass_text, child)))
        for stream, error in ((process.stdout, False), (process.stderr, True)):
            assert stream is not None  # both are pipes
            child.readers.append(
                _LineReader(stream, partial(self._pass_line, child, error))
            )
        # A thread waits for each process, where polling all of them would be simpler:
        # the first death causes others within milliseconds, and is the one to report.
        waits = Thread(target=self._await_end, args=(child,), daemon=True)
        for thread in (*(reader.thread for reader in child.readers), waits):
            thread.start()
        return child

    def _await_end(self, child: _Child) -> None:
        child.process.wait()
        self._ended.put(child)

    def drain(self) -> None:
        """Pass on all that the processes have written until now."""
        for child in self.children:
            for reader in child.readers:
                reader.drain(ended=child.process.poll() is not None)

    def _pass_line(self, child: _Child, error: bool, raw: bytes) -> None:
        line = raw.decode(errors="replace")
        told = error and line.startswith(LINE_PREFIX)
        if told and self._pass_message(child, line.removeprefix(LINE_PREFIX)):
            return
        # Where our own output is closed, theirs is read on: a process whose pipe is
        # full would block.
        with self._lock, suppress(OSError):
            child.tail.append(line.rstrip("\r\n"))
            if self.only_rank in (None, child.rank):
                self._on_line(child.rank, line, error)

    def _pass_text(self, child: _Child, raw: bytes) -> None:
        self._pass_message(child, raw.decode(errors="replace"))

    def _pass_message(self, child: _Child, text: str) -> bool:
        """Pass a message on; whether it is one."""
        message = parse_message(text)
        if message is None or self._on_message is None:
            return False
        with self._lock:
            self._on_message(child.rank, message)
        return True

    def _kill(self, child: _Child) -> None:
        """End a process and its children, and read what they have left."""
        signal_group(child.process, signal.SIGKILL)
        child.process.wait()
        for reader in child.readers:
            reader.drain(ended=True)
            # A grandchild in a session of its own may hold the pipe for ever.
            reader.thread.join(FAILURE_GRACE_S)


def start_process(
    spec: ProcessSpec,
    stdout: IO[bytes] | int | None,
    stderr: IO[bytes] | int | None,
    message_pipe: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that does not outlive this one, as the head of a group.

    Args:
        spec: what to start.
        stdout: where its standard output goes: a file, `subprocess.PIPE`, or None for
            that of this process.
        stderr: where its standard error goes.
        message_pipe: the end of a pipe to which it writes messages for its launcher.
    """
    argv, env = spec.command, dict(spec.env)
    if sys.platform == "linux":
        cpus = ",".join(map(str, spec.cpus))
        guard = sys.executable, "-I", "-S", "-c", _PARENT_DEATH_SCRIPT
        argv = *guard, str(os.getpid()), cpus, *argv
    if message_pipe is not None:
        env[CHANNEL_VAR] = pipe_channel(message_pipe)
    return subprocess.Popen(
        argv,
        env=env,
        # Several processes that read one terminal would each get some of its lines.
        stdin=subprocess.PIPE if spec.ends_with_stdin else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=() if message_pipe is None else (message_pipe,),
        # A session of its own: Ctrl-C at the terminal reaches the launcher alone, which
        # gives its processes time to save.
        start_new_session=True,
    )


def signal_group(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    """Send a signal to a process and its children; nothing where they are gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signum)
