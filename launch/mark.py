"""Mark: the line by which a process tells its launcher that it trains.

It goes the way of all lines, which is there on every host, and nobody is shown it.
"""

import os
import sys
from collections.abc import Callable
from threading import Event
from typing import Final

from jaxdist.launch.joined import place, was_planned

_TRAINS: Final = "\x1etrains"


def tell_launcher() -> None:
    """Say that there is something to save from now on, where a launcher listens."""
    if was_planned(os.environ) and place()[0] == 0:
        sys.stderr.write(f"{_TRAINS}\n")
        sys.stderr.flush()


class Marked:
    """Shows lines, and hears that process 0 trains.

    Args:
        show: is told every other line: rank, line, and whether it is an error's.
    """

    def __init__(self, show: Callable[[int, str, bool], None]) -> None:
        self.trains, self._show = Event(), show

    def __call__(self, rank: int, line: str, error: bool) -> None:
        """Show a line, or note what it says."""
        if line == _TRAINS:
            self.trains.set()
        else:
            self._show(rank, line, error)
