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
    ends_with_stdin: bool = False
    """Whether it ends by itself when its input does, instead of having none."""
    cpus: tuple[int, ...] = ()
    """Those that it may use, on Linux; none are all of its parent's."""


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
        said = (results[rank].stderr or results[rank].stdout).splitlines()[
            -_LAST_LINES:
        ]
        super().__init__("\n".join((message, *(f"  {line}" for line in said))))


def run_and_collect(
    specs: Sequence[ProcessSpec], *, timeout: float
) -> tuple[ProcessResult, ...]:
    """Run processes at once and wait for all of them.

    Each is the head of a process group of its own. Whatever ends the call (a failure,
    the time, Ctrl-C), the groups are killed before it returns.

    Args:
        specs: what to start; the position is the rank.
        timeout: seconds until all must be done.

    Raises:
        ProcessesFailed: a process did not end with 0, or not in time.
    """
    with ExitStack() as stack:
        files = [
            stack.enter_context(tempfile.TemporaryFile()) for _ in [*specs, *specs]
        ]
        running = []
        for task, out, err in zip(specs, files[::2], files[1::2]):
            child = start_process(task, out, err)
            running.append(_Running(process=child, stdout_file=out, stderr_file=err))
            stack.callback(running[-1].kill)
        failure = _wait(running, timeout)
        for each in running:
            each.kill()
        results = tuple(each.result() for each in running)
    if failure:
        rank, how = failure
        raise ProcessesFailed(f"process {rank} of {len(specs)} {how}", results, rank)
    return results


def _wait(running: Sequence["_Running"], timeout: float) -> tuple[int, str] | None:
    """Wait for the end of all, or return who failed and how."""
    end = time.monotonic() + timeout
    while True:
        codes = [each.process.poll() for each in running]
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

    process: subprocess.Popen[bytes]
    stdout_file: IO[bytes]
    stderr_file: IO[bytes]

    def kill(self) -> None:
        """End the group; nothing where it is gone."""
        signal_group(self.process, signal.SIGKILL)
        self.process.wait()

    def result(self) -> ProcessResult:
        """Read what it wrote."""
        out, err = _read_text(self.stdout_file), _read_text(self.stderr_file)
        return ProcessResult(returncode=self.process.returncode, stdout=out, stderr=err)


def start_process(
    spec: ProcessSpec, stdout: IO[bytes] | int | None, stderr: IO[bytes] | int | None
) -> subprocess.Popen[bytes]:
    """Start a process that does not outlive this one, as the head of a group.

    Args:
        spec: what to start.
        stdout: where its standard output goes: a file, `subprocess.PIPE`, or None for
            that of this process.
        stderr: where its standard error goes.
    """
    return subprocess.Popen(
        [*_parent_death_argv(spec.cpus), *spec.command],
        env=dict(spec.env),
        stdin=subprocess.PIPE if spec.ends_with_stdin else subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def signal_group(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    """Send a signal to a process and its children; nothing where they are gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signum)


def _parent_death_argv(cpus: Sequence[int]) -> tuple[str, ...]:
    if sys.platform != "linux":
        return ()
    own = ",".join(map(str, cpus))
    return sys.executable, "-I", "-S", "-c", _PARENT_DEATH_SCRIPT, str(os.getpid()), own


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
