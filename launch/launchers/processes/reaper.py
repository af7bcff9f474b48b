"""Survivor: a process that outlives this one, to end what this one has started.

The kernel ends a child whose parent is killed, but not the child's own children. So one
process more waits for the end of its input, which comes however this one goes, and then
kills the groups that it was told of.
"""

import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

_REAPER_SCRIPT = """\
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


class ProcessReaper:
    """Ends groups of processes where this process cannot do so any more."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REAPER_SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        return self

    def add_group(self, pgid: int) -> None:
        """Tell it of a group."""
        self._send(str(pgid))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._send("done")
        self._process.communicate()

    def _send(self, line: str) -> None:
        # Somebody may have killed it: then the kernel ends the children alone.
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)
