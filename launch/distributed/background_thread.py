"""A thread that runs while a block of code does, and ends with it."""

from abc import ABC, abstractmethod
from threading import Event, Thread
from types import TracebackType
from typing import Self

_JOIN_TIMEOUT_S = 1.0
"""Seconds in which a thread notices that it should stop."""


class BackgroundThread(ABC):
    """A context whose thread runs `run` until `stopped` is set, at the block's end."""

    def __init__(self) -> None:
        self.stopped = Event()
        self._thread = Thread(target=self.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopped.set()
        self._thread.join(_JOIN_TIMEOUT_S)

    @abstractmethod
    def run(self) -> None:
        """Do the work of the thread; return once `stopped` is set."""
