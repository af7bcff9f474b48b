"""Held: a command that ends with the connection over which it was started.

Over ssh nothing tells a program that whoever started it is gone, except the end of its
standard input. So that is read here, and the command has none. Who ends it on purpose
writes there how many seconds it has.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from jaxdist.launch.launchers.processes.group import (
    ProcessSpec,
    signal_group,
    start_process,
)
from jaxdist.launch.launchers.processes.stream import FAILURE_GRACE_S


def run_until_stdin_closes(command: Sequence[str]) -> int:
    """Run a command until it ends, or until standard input does.

    Returns:
        Its exit code; 128 and the signal where one ended it.
    """
    task = ProcessSpec(command=tuple(command), env=dict(os.environ))
    child = start_process(task, None, None)
    Thread(target=_terminate_on_stdin_eof, args=(child,), daemon=True).start()
    code = child.wait()
    signal_group(child, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _terminate_on_stdin_eof(process: subprocess.Popen[bytes]) -> None:
    said = b""
    while read := os.read(0, 1 << 16):
        said = read
    signal_group(process, signal.SIGTERM)
    grace = FAILURE_GRACE_S
    with suppress(ValueError):
        grace = float(said)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    signal_group(process, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run_until_stdin_closes(sys.argv[1:]))
