"""Processes that live and die together: started at once, ended at the first failure."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, Final

from jaxdist.core.errors import FatalError

_POLL_S: Final = 0.02
_LAST_LINES: Final = 12

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


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process to start."""

    command: tuple[str, ...]
    """Words of its command line."""
    env: Mapping[str, str]
    """Its whole environment."""
    held: bool = False
    """Whether it ends by itself when its input does, instead of having none."""
    processors: tuple[int, ...] = ()
    """Those that it may use, on Linux; none are all of its parent's."""


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """What one process left."""

    code: int
    """Exit code; negative is the signal that ended it."""
    out: str
    """Standard output."""
    err: str
    """Standard error."""


class ProcessesFailed(FatalError):
    """One of several processes failed or took too long; all of them were ended.

    Args:
        what: what happened, in a line.
        results: what each process left.
        rank: the process that is quoted.
    """

    def __init__(
        self, what: str, results: tuple[ProcessResult, ...], rank: int
    ) -> None:
        self.results = results
        said = (results[rank].err or results[rank].out).splitlines()[-_LAST_LINES:]
        super().__init__("\n".join((what, *(f"  {line}" for line in said))))


def run_and_collect(
    tasks: Sequence[ProcessSpec], *, timeout: float
) -> tuple[ProcessResult, ...]:
    """Run processes at once and wait for all of them.

    Each is the head of a process group of its own. Whatever ends the call (a failure,
    the time, Ctrl-C), the groups are killed before it returns.

    Args:
        tasks: what to start; the position is the rank.
        timeout: seconds until all must be done.

    Raises:
        ProcessesFailed: a process did not end with 0, or not in time.
    """
    with ExitStack() as stack:
        files = [
            stack.enter_context(tempfile.TemporaryFile()) for _ in [*tasks, *tasks]
        ]
        running = []
        for task, out, err in zip(tasks, files[::2], files[1::2]):
            child = start_process(task, out, err)
            running.append(_Running(child=child, out=out, err=err))
            stack.callback(running[-1].kill)
        failure = _wait(running, timeout)
        for each in running:
            each.kill()
        results = tuple(each.finished() for each in running)
    if failure:
        rank, how = failure
        raise ProcessesFailed(f"process {rank} of {len(tasks)} {how}", results, rank)
    return results


def _wait(running: Sequence["_Running"], timeout: float) -> tuple[int, str] | None:
    """Wait for the end of all, or return who failed and how."""
    end = time.monotonic() + timeout
    while True:
        codes = [each.child.poll() for each in running]
        for rank, code in enumerate(codes):
            if code:
                return rank, f"ended with {code}"
        if None not in codes:
            return None
        if time.monotonic() > end:
            return codes.index(None), f"ran past {timeout:g} s"
        time.sleep(_POLL_S)


@dataclass(frozen=True, kw_only=True)
class _Running:
    """A process with its output in files, so that it never waits for a reader."""

    child: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    def kill(self) -> None:
        """End the group; nothing where it is gone."""
        signal_group(self.child, signal.SIGKILL)
        self.child.wait()

    def finished(self) -> ProcessResult:
        """Read what it wrote."""
        out, err = _read_text(self.out), _read_text(self.err)
        return ProcessResult(code=self.child.returncode, out=out, err=err)


def start_process(
    task: ProcessSpec, out: IO[bytes] | int | None, err: IO[bytes] | int | None
) -> subprocess.Popen[bytes]:
    """Start a process that does not outlive this one, as the head of a group.

    Args:
        task: what to start.
        out: where its standard output goes: a file, `subprocess.PIPE`, or None for
            that of this process.
        err: where its standard error goes.
    """
    return subprocess.Popen(
        [*_parent_death_argv(task.processors), *task.command],
        env=dict(task.env),
        stdin=subprocess.PIPE if task.held else subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


def signal_group(child: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Send a signal to a process and its children; nothing where they are gone."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, how)


def _parent_death_argv(processors: Sequence[int]) -> tuple[str, ...]:
    if sys.platform != "linux":
        return ()
    own = ",".join(map(str, processors))
    return sys.executable, "-I", "-S", "-c", _PARENT_DEATH_SCRIPT, str(os.getpid()), own


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
