"""Marks: the lines by which a process tells its launcher what nobody is shown.

They go the way of all lines, which is there on every host.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from threading import Event
from typing import Final

from jaxdist.launch.distributed.environment import is_launched, place, was_planned

_TRAINS: Final = "\x1etrains"
_ADAPTS: Final = "\x1eadapts"


def tell_launcher() -> None:
    """Say that there is something to save from now on, where a launcher listens."""
    if was_planned(os.environ) and place()[0] == 0:
        _tell(_TRAINS)


def tell_adapts() -> None:
    """Say that all end to go on under another plan, where a launcher listens."""
    if is_launched(os.environ):
        _tell(_ADAPTS)


def _tell(mark: str) -> None:
    sys.stderr.write(f"{mark}\n")
    sys.stderr.flush()


class LauncherMessages:
    """Shows lines, and hears that process 0 trains, or adapts its plan.

    Args:
        show: is told every other line: rank, line, and whether it is an error's.
    """

    def __init__(self, show: Callable[[int, str, bool], None]) -> None:
        self.trains, self.adapts, self._show = Event(), Event(), show

    def __call__(self, rank: int, line: str, error: bool) -> None:
        """Show a line, or note what it says."""
        if line == _TRAINS:
            self.trains.set()
        elif line == _ADAPTS:
            self.adapts.set()
        else:
            self._show(rank, line, error)


_BEGIN: Final = "stuck: "
_SILENT: Final = "says nothing any more"


def accused(lines: Sequence[str]) -> tuple[int, ...]:
    """Return the ranks that are stuck, or say nothing any more.

    Args:
        lines: what a process wrote last; the newest verdict counts.

    >>> accused(["stuck: rank 2 in step 8, input, at a.py:3 (f); rank 0 waits in ..."])
    (2,)
    >>> accused(["nothing of that kind"])
    ()
    """
    said = [line for line in lines if line.startswith(_BEGIN)]
    found: list[int] = []
    for part in said[-1].removeprefix(_BEGIN).split("; ") if said else ():
        rank = re.match(r"rank (\d+)(?! waits)", part)
        found += [int(rank[1])] if rank else []
        if _SILENT in part:
            break  # what follows is who says it
    return tuple(found)
