"""Preempted: a run that is asked to end, by SIGTERM, ends in all processes at one step.

process 0   step 41 ... 42 ... 43, saved
process 1   step 41 ... 42 ... 43, saved      SIGTERM comes here, in step 41: it tells
                                              all; each says how far it is; the one
                                              that is furthest has begun step 42

Nobody is asked between steps: a poll counts. Only after a signal do threads speak, in
the store of the process group, and polls wait while they do.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import Lock, Thread
from types import FrameType, TracebackType
from typing import Final, Self, TypeVar

from jaxdist.launch.distributed.launcher_messages import announce_training
from jaxdist.launch.distributed.process_group import EXIT_RESTART, ProcessGroup

_STOP_KEY: Final = "jaxdist/asked-to-end"
_REACHED_KEY: Final = "jaxdist/reached"
_FOREVER_MS: Final = 365 * 24 * 60 * 60 * 1000
_BARRIER_TIMEOUT_MS: Final = 60_000
T = TypeVar("T")


class PreemptionHandler:
    """The one owner of SIGTERM in a process that trains, as a context.

    Before the first poll there is nothing to save, so the process leaves at once. From
    then on polls become true, in all processes at the same one.

    Args:
        mine: the process among those of its run.
    """

    def __init__(self, mine: ProcessGroup) -> None:
        self._mine, self._lock = mine, Lock()
        self._polls, self._last = 0, sys.maxsize
        self._asked = f"{_STOP_KEY}/{mine.rank}"

    def __enter__(self) -> Self:
        """Take the signal, and listen for what others have heard."""
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        self._before = signal.signal(signal.SIGTERM, _ignore_signal)
        # What libraries wait for in their own threads is not cut short.
        signal.siginterrupt(signal.SIGTERM, False)
        self._woken = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._write = write
        Thread(target=self._hear_signals, daemon=True).start()
        self._company = Thread(target=self._hear_company, daemon=True)
        if self._mine.store is not None:
            self._company.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._woken)
        # A run that ends for the signal's sake is not ended by the next one.
        ends = self._last <= self._polls
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ends else self._before)
        os.close(self._write)
        if self._mine.store is not None:
            with suppress(RuntimeError):  # process 0 is gone, and its store
                self._tell(self._asked, "over")
            self._company.join(1)

    def __call__(self) -> bool:
        """Poll: return whether to end here.

        Every process polls at the same places, as often.
        """
        with self._lock:
            self._polls += 1
            begins, ends = self._polls == 1, self._polls >= self._last
        if begins:
            announce_training()
        return ends

    def _hear_signals(self) -> None:
        """Wait for SIGTERM, also while the main thread is busy in a compiler."""
        with os.fdopen(self._read, "rb", buffering=0) as heard:
            while number := heard.read(1):
                if number[0] == signal.SIGTERM:
                    self.ask()

    def ask(self) -> None:
        """Ask all processes to end, as a signal does."""
        with self._lock:
            polls = self._polls
        if not polls:
            self._leave()
        elif self._mine.store is None:
            self._last = polls + 1
        else:
            with suppress(RuntimeError):  # process 0 is gone: there is no run to end
                for rank in range(self._mine.count):
                    self._tell(f"{_STOP_KEY}/{rank}", "end")

    def _leave(self) -> None:
        with self._mine.speaking() as mine:
            if mine:
                sys.stderr.write(
                    "asked to end before the first step: nothing to save\n"
                )
        sys.stderr.flush()
        os._exit(EXIT_RESTART)

    def _hear_company(self) -> None:
        """Wait until somebody was asked to end, and agree where."""
        store = self._mine.store
        # What fails here fails for the run as a whole, which its launcher ends.
        with suppress(RuntimeError):
            if store.blocking_key_value_get(self._asked, _FOREVER_MS) != "end":
                return
            with self._lock:
                self._tell(f"{_REACHED_KEY}/{self._mine.rank}", str(self._polls))
                store.wait_at_barrier(_REACHED_KEY, _BARRIER_TIMEOUT_MS)
                reached = store.key_value_dir_get(_REACHED_KEY)
                self._last = 1 + max(int(polls) for _, polls in reached)

    def _tell(self, key: str, text: str) -> None:
        self._mine.store.key_value_set(key, text, allow_overwrite=True)


def never_stop() -> bool:
    """Poll nobody: go on."""
    return False


def batches_until(batches: Iterable[T], ends: Callable[[], bool]) -> Iterator[T]:
    """Hand batches on, polling before each, until a poll is true."""
    for batch in batches:
        if ends():
            return
        yield batch


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: a handler in Python runs late, the thread does not."""
