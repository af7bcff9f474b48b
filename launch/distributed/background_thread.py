"""A thread that runs while a block of code does, and ends with it."""

from abc import ABC, abstractmethod
from threading import Event, Thread
from typing import Self

# Seconds in which a thread notices that it should stop.
_JOIN_TIMEOUT_S = 1.0


class BackgroundThread(ABC):
    """A context whose thread runs `run` until `stopped` is set, at the block's end."""

    def __init__(self) -> None:
        self.stopped = Event()
        # A daemon: one that is stuck does not keep the interpreter from ending.
        self._thread = Thread(target=self.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self._thread.join(_JOIN_TIMEOUT_S)

    @abstractmethod
    def run(self) -> None:
        """Do the work of the thread; return once `stopped` is set."""
