"""Merged: several processes as one view, with one end."""

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from jaxdist.launch.distributed.process_group import EXIT_RESTART
from jaxdist.launch.launchers.processes.stream import ProcessFailure, SignalExit

_NOISE_PATTERN: Final = re.compile(
    r"\[Gloo\] Rank |connected to \d+ peer ranks|coordination_service_agent\.cc"
    r"|Terminating process because the JAX distributed service|coordination_service "
    r"while calling|grpc_status"
)
"""Lines of gloo for each group of devices, and of jax where another process has died:
nothing turns them off, and who died first is said in the end."""
_EXIT_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class PrefixedOutput:
    """Writes each line behind the rank it comes from: `r03 │ `.

    Args:
        num_processes: how many processes there are.
    """

    def __init__(self, num_processes: int) -> None:
        self._digits = max(len(str(num_processes - 1)), 2)

    def __call__(self, rank: int, line: str, error: bool) -> None:
        """Write a line to the output that it was written to."""
        if _NOISE_PATTERN.search(line):
            return
        out = sys.stderr if error else sys.stdout
        utf = (out.encoding or "").lower().startswith("utf")
        out.write(f"r{rank:0{self._digits}} {'│' if utf else '|'} {line}\n")
        out.flush()


def print_failure(failure: ProcessFailure, num_processes: int) -> None:
    """Print which process failed first, behind what it has written itself."""
    sys.stdout.flush()
    sys.stderr.write(failure_report(failure, num_processes))
    sys.stderr.flush()


def failure_report(failure: ProcessFailure, num_processes: int) -> str:
    """Say which process failed first, with its last lines.

    A program that refuses, or asks to be started again, has said all that there is.
    """
    head = f"process {failure.rank} of {num_processes} {failure.exit_description}"
    if failure.returncode in (2, EXIT_RESTART):
        return f"{head}, so all were ended\n"
    lines = [
        f"error: {head}; its last lines:",
        *(f"  {one}" for one in failure.last_lines),
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Let what ends this process end those that it has started first."""
    before = {one: signal.signal(one, _raise_signal_exit) for one in _EXIT_SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _raise_signal_exit(number: int, frame: FrameType | None) -> NoReturn:
    # Those who stop a job may do so twice; what has begun to end is not hurried.
    for one in _EXIT_SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    raise SignalExit(number)
