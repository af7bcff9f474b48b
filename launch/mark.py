"""Marks: the lines by which a process tells its launcher what nobody is shown.

They go the way of all lines, which is there on every host.
"""

import os
import sys
from collections.abc import Callable
from threading import Event
from typing import Final

from jaxdist.launch.placed import is_launched, place, was_planned

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


class Marked:
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
