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
        can_grow: whether places are there with which more can run; may take seconds.
        training_started: set when there is something to save; before that nobody is
        asked.
    """

    def __init__(self, can_grow: Callable[[], bool], training_started: Event) -> None:
        self._can_grow, self._training_started = can_grow, training_started
        self._growth_found = Event()
        super().__init__()

    def __call__(self) -> bool:
        """Whether more can run."""
        return self._growth_found.is_set()

    def is_recall(self, failure: ProcessFailure) -> bool:
        """Whether a process ended because it was asked to, for more to run."""
        asked = self() and failure.returncode in _RECALL_CODES
        return asked and not stuck_ranks(failure.last_lines)

    def goes_on(self) -> None:
        """Look for more, until there are some."""
        while not self.over.wait(_POLL_S):
            if self._training_started.is_set() and self._can_grow():
                self._growth_found.set()
                return
