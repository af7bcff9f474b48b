"""Runs a command on a remote host that ends with the ssh connection of its launcher.

Over ssh nothing tells a program that its launcher is gone, except the end of its
standard input. So that is read here, and the command has none. A launcher that ends the
command on purpose first writes there how many seconds it has.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

from jaxdist.launch.distributed.launcher_messages import CHANNEL_VAR, STDERR_CHANNEL
from jaxdist.launch.launchers.processes.group import (
    FAILURE_GRACE_S,
    ProcessSpec,
    signal_group,
    start_process,
)


def run_until_stdin_closes(command: Sequence[str]) -> int:
    """Run a command until it ends, or until standard input does.

    Returns:
        Its exit code; 128 and the signal where one ended it.
    """
    # ssh forwards three streams and no pipe, so messages go among the error lines.
    env = {**os.environ, CHANNEL_VAR: STDERR_CHANNEL}
    child = start_process(ProcessSpec(command=tuple(command), env=env), None, None)
    Thread(target=_terminate_on_stdin_eof, args=(child,), daemon=True).start()
    code = child.wait()
    # Its children may have outlived it.
    signal_group(child, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _terminate_on_stdin_eof(process: subprocess.Popen[bytes]) -> None:
    last = b""
    while read := os.read(0, 1 << 16):
        last = read
    signal_group(process, signal.SIGTERM)
    grace = FAILURE_GRACE_S  # the launcher is gone without a word
    with suppress(ValueError):
        # A launcher that says how many seconds writes them last, and closes.
        grace = float(last)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    signal_group(process, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run_until_stdin_closes(sys.argv[1:]))
