"""Beside: a thread that goes on beside a block of code, and ends with it."""

from abc import ABC, abstractmethod
from threading import Event, Thread
from types import TracebackType
from typing import Self

_JOIN_TIMEOUT_S = 1.0
"""Seconds in which a thread ends that looks whether it should."""


class BackgroundThread(ABC):
    """A context whose thread runs `goes_on` until `over` is set, at the block's end."""

    def __init__(self) -> None:
        self.over = Event()
        self._thread = Thread(target=self.goes_on, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self._thread.join(_JOIN_TIMEOUT_S)

    @abstractmethod
    def goes_on(self) -> None:
        """Do what is to be done, and look at `over` again and again."""
