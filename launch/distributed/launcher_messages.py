"""Marks: the lines by which a process tells its launcher what nobody is shown.

They go the way of all lines, which is there on every host.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from threading import Event
from typing import Final

from jaxdist.launch.distributed.environment import (
    has_launcher,
    is_elastic,
    rank_assignment,
)

_TRAINING_MESSAGE: Final = "\x1etrains"
_REPLAN_MESSAGE: Final = "\x1eadapts"


def announce_training() -> None:
    """Say that there is something to save from now on, where a launcher listens."""
    if is_elastic(os.environ) and rank_assignment()[0] == 0:
        _send(_TRAINING_MESSAGE)


def announce_replan() -> None:
    """Say that all end to go on under another plan, where a launcher listens."""
    if has_launcher(os.environ):
        _send(_REPLAN_MESSAGE)


def _send(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


class LauncherMessages:
    """Shows lines, and hears that process 0 trains, or adapts its plan.

    Args:
        on_line: is told every other line: rank, line, and whether it is an error's.
    """

    def __init__(self, on_line: Callable[[int, str, bool], None]) -> None:
        self.training_started, self.replan_announced, self._on_line = (
            Event(),
            Event(),
            on_line,
        )

    def __call__(self, rank: int, line: str, error: bool) -> None:
        """Show a line, or note what it says."""
        if line == _TRAINING_MESSAGE:
            self.training_started.set()
        elif line == _REPLAN_MESSAGE:
            self.replan_announced.set()
        else:
            self._on_line(rank, line, error)


_STUCK_PREFIX: Final = "stuck: "
_NO_HEARTBEAT: Final = "says nothing any more"


def stuck_ranks(lines: Sequence[str]) -> tuple[int, ...]:
    """Return the ranks that are stuck, or say nothing any more.

    Args:
        lines: what a process wrote last; the newest verdict counts.

    >>> line = "stuck: rank 2 in step 8, input, at a.py:3 (f); rank 0 waits in ..."
    >>> stuck_ranks([line])
    (2,)
    >>> stuck_ranks(["nothing of that kind"])
    ()
    """
    said = [line for line in lines if line.startswith(_STUCK_PREFIX)]
    found: list[int] = []
    for part in said[-1].removeprefix(_STUCK_PREFIX).split("; ") if said else ():
        rank = re.match(r"rank (\d+)(?! waits)", part)
        found += [int(rank[1])] if rank else []
        if _NO_HEARTBEAT in part:
            break  # what follows is who says it
    return tuple(found)
