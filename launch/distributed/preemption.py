"""Preemption: a run that gets SIGTERM ends in all processes at the same step.

Any process may get the signal. Between steps nothing is sent, a poll only counts; after
a signal all agree on the step at which they save and end
(`jaxdist.launch.distributed.process_group`).
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from types import FrameType
from typing import Self, TypeVar

from jaxdist.launch.distributed.exit_codes import EXIT_RESTART
from jaxdist.launch.distributed.launcher_messages import MessageKind, send_to_launcher
from jaxdist.launch.distributed.process_group import ProcessGroup, StepAgreement

T = TypeVar("T")


class PreemptionHandler:
    """The one owner of SIGTERM in a process that trains, as a context.

    Before the first poll there is nothing to save, so the process leaves at once. From
    then on polls become true, in all processes at the same one.

    Args:
        group: the process among those of its run.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group, self._polls = group, 0
        self._agreement = StepAgreement(group, "preemption")

    def __enter__(self) -> Self:
        """Handle the signal from now on, here and where others get it."""
        # A handler in Python runs between two bytecodes of the main thread, so not
        # before a compilation or a collective has ended. The C handler writes the
        # number of each signal into this pipe at once, where a thread reads it.
        self._read, self._write = os.pipe()
        # A C handler must not block where the pipe is full (Python demands it as well).
        os.set_blocking(self._write, False)
        self._previous_handler = signal.signal(signal.SIGTERM, _ignore_signal)
        # System calls of libraries are continued, not ended with EINTR.
        signal.siginterrupt(signal.SIGTERM, False)
        self._previous_wakeup_fd = signal.set_wakeup_fd(
            self._write, warn_on_full_buffer=False
        )
        Thread(target=self._listen_for_signals, daemon=True).start()
        self._agreement.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._previous_wakeup_fd)
        # A run that ends because of the signal is not ended by the next one.
        ends = self._agreement.agreed_step <= self._polls
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN if ends else self._previous_handler
        )
        os.close(self._write)
        self._agreement.__exit__(*error)

    def __call__(self) -> bool:
        """Poll: return whether to end here.

        Every process polls at the same places, as often.
        """
        # The count goes first: a signal from now on finds something to save.
        self._polls += 1
        if self._polls == 1 and self._group.is_primary:
            send_to_launcher(MessageKind.TRAINING)
        return self._agreement.reached(self._polls) <= self._polls

    def _listen_for_signals(self) -> None:
        with os.fdopen(self._read, "rb", buffering=0) as pipe:
            while number := pipe.read(1):
                if number[0] == signal.SIGTERM:
                    self.request_stop()

    def request_stop(self) -> None:
        """Ask all processes to end, as a signal does."""
        if self._polls:
            self._agreement.request()
            return
        with self._group.elect_printer() as elected:
            if elected:
                sys.stderr.write(
                    "asked to end before the first step: nothing to save\n"
                )
        sys.stderr.flush()
        # From a thread only this ends the process while the main thread is in C.
        os._exit(EXIT_RESTART)


def never_stop() -> bool:
    """Poll of a run that nobody preempts: go on."""
    return False


def batches_until(batches: Iterable[T], should_stop: Callable[[], bool]) -> Iterator[T]:
    """Yield batches, polling before each, until a poll is true."""
    for batch in batches:
        if should_stop():
            return
        yield batch


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread that reads the pipe acts on the signal."""
