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
        group: the process among those of its run.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group, self._lock = group, Lock()
        self._polls, self._stop_at = 0, sys.maxsize
        self._stop_key = f"{_STOP_KEY}/{group.rank}"

    def __enter__(self) -> Self:
        """Take the signal, and listen for what others have heard."""
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        self._previous_handler = signal.signal(signal.SIGTERM, _ignore_signal)
        # What libraries wait for in their own threads is not cut short.
        signal.siginterrupt(signal.SIGTERM, False)
        self._previous_wakeup_fd = signal.set_wakeup_fd(
            write, warn_on_full_buffer=False
        )
        self._write = write
        Thread(target=self._listen_for_signals, daemon=True).start()
        self._group_thread = Thread(target=self._listen_to_group, daemon=True)
        if self._group.kv_store is not None:
            self._group_thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        # A run that ends for the signal's sake is not ended by the next one.
        ends = self._stop_at <= self._polls
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN if ends else self._previous_handler
        )
        os.close(self._write)
        if self._group.kv_store is not None:
            with suppress(RuntimeError):  # process 0 is gone, and its store
                self._set_key(self._stop_key, "over")
            self._group_thread.join(1)

    def __call__(self) -> bool:
        """Poll: return whether to end here.

        Every process polls at the same places, as often.
        """
        with self._lock:
            self._polls += 1
            begins, ends = self._polls == 1, self._polls >= self._stop_at
        if begins:
            announce_training()
        return ends

    def _listen_for_signals(self) -> None:
        """Wait for SIGTERM, also while the main thread is busy in a compiler."""
        with os.fdopen(self._read, "rb", buffering=0) as heard:
            while number := heard.read(1):
                if number[0] == signal.SIGTERM:
                    self.request_stop()

    def request_stop(self) -> None:
        """Ask all processes to end, as a signal does."""
        with self._lock:
            polls = self._polls
        if not polls:
            self._exit_before_first_step()
        elif self._group.kv_store is None:
            self._stop_at = polls + 1
        else:
            with suppress(RuntimeError):  # process 0 is gone: there is no run to end
                for rank in range(self._group.size):
                    self._set_key(f"{_STOP_KEY}/{rank}", "end")

    def _exit_before_first_step(self) -> None:
        with self._group.elect_printer() as mine:
            if mine:
                sys.stderr.write(
                    "asked to end before the first step: nothing to save\n"
                )
        sys.stderr.flush()
        os._exit(EXIT_RESTART)

    def _listen_to_group(self) -> None:
        """Wait until somebody was asked to end, and agree where."""
        store = self._group.kv_store
        # What fails here fails for the run as a whole, which its launcher ends.
        with suppress(RuntimeError):
            if store.blocking_key_value_get(self._stop_key, _FOREVER_MS) != "end":
                return
            with self._lock:
                self._set_key(f"{_REACHED_KEY}/{self._group.rank}", str(self._polls))
                store.wait_at_barrier(_REACHED_KEY, _BARRIER_TIMEOUT_MS)
                reached = store.key_value_dir_get(_REACHED_KEY)
                self._stop_at = 1 + max(int(polls) for _, polls in reached)

    def _set_key(self, key: str, text: str) -> None:
        self._group.kv_store.key_value_set(key, text, allow_overwrite=True)


def never_stop() -> bool:
    """Poll nobody: go on."""
    return False


def batches_until(batches: Iterable[T], should_stop: Callable[[], bool]) -> Iterator[T]:
    """Hand batches on, polling before each, until a poll is true."""
    for batch in batches:
        if should_stop():
            return
        yield batch


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: a handler in Python runs late, the thread does not."""
