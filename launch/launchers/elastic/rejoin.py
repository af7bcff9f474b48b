"""Returning: the processes of a run are asked to end when more of them can run."""

from collections.abc import Callable
from signal import SIGTERM
from threading import Event
from typing import Final

from jaxdist.launch.distributed.background_thread import BackgroundThread
from jaxdist.launch.distributed.launcher_messages import stuck_ranks
from jaxdist.launch.distributed.process_group import EXIT_RESTART
from jaxdist.launch.launchers.processes.stream import ProcessFailure

_POLL_S: Final = 1.0
_RECALL_CODES: Final = (EXIT_RESTART, -SIGTERM, 128 + SIGTERM)
"""Codes of processes that end because they were asked to."""


class RejoinWatcher(BackgroundThread):
    """Looks whether more can run, in a thread of its own, as a context.

    Args:
        more: whether places are there with which more can run; may take seconds.
        begun: set when there is something to save; before that nobody is asked.
    """

    def __init__(self, more: Callable[[], bool], begun: Event) -> None:
        self._more, self._begun = more, begun
        self._found = Event()
        super().__init__()

    def __call__(self) -> bool:
        """Whether more can run."""
        return self._found.is_set()

    def recalled(self, failure: ProcessFailure) -> bool:
        """Whether a process ended because it was asked to, for more to run."""
        asked = self() and failure.code in _RECALL_CODES
        return asked and not stuck_ranks(failure.last)

    def goes_on(self) -> None:
        """Look for more, until there are some."""
        while not self.over.wait(_POLL_S):
            if self._begun.is_set() and self._more():
                self._found.set()
                return
