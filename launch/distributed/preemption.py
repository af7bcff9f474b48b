"""Preemption: a run that gets SIGTERM or Ctrl-C ends in all processes at one step.

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
from typing import Any, NoReturn, Self, TypeVar

from jaxdist.launch.distributed.exit_codes import EXIT_INTERRUPTED, EXIT_RESTART
from jaxdist.launch.distributed.launcher_messages import MessageKind, send_to_launcher
from jaxdist.launch.distributed.process_group import ProcessGroup, StepAgreement

T = TypeVar("T")


class PreemptionHandler:
    """The one owner of SIGTERM and SIGINT in a process that trains, as a context.

    Before the first poll there is nothing to save, so the process leaves at once. From
    then on polls become true, in all processes at the same one. A second SIGINT, which
    Ctrl-C sends, does not wait for that.

    Args:
        group: the process among those of its run.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group, self._polls, self._interrupts = group, 0, 0
        self._agreement = StepAgreement(group, "preemption")
        self._previous_handlers: dict[int, Any] = {}
        self.on_abort: Callable[[], None] = lambda: None
        """Called, from a thread, before the process is ended at once."""

    def __enter__(self) -> Self:
        """Handle the signal from now on, here and where others get it."""
        # A handler in Python runs between two bytecodes of the main thread, so not
        # before a compilation or a collective has ended. The C handler writes the
        # number of each signal into this pipe at once, where a thread reads it.
        self._read, self._write = os.pipe()
        # A C handler must not block where the pipe is full (Python demands it as well).
        os.set_blocking(self._write, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A shell starts its background jobs with Ctrl-C ignored: it is not theirs.
            if number == signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous_handlers[number] = signal.signal(number, _ignore_signal)
            # System calls of libraries are continued, not ended with EINTR.
            signal.siginterrupt(number, False)
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
        for number, previous in self._previous_handlers.items():
            is_ignored = ends and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if is_ignored else previous)
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
                elif number[0] == signal.SIGINT:
                    self._interrupt()

    def _interrupt(self) -> None:
        """Save and end at the first Ctrl-C, end at once at the second one."""
        self._interrupts += 1
        if not self._polls:
            self._abort(
                "stopped before the first step: nothing to save", EXIT_INTERRUPTED
            )
        if self._interrupts > 1:
            self._abort("stopped at once: nothing was saved", EXIT_INTERRUPTED)
        if self._group.is_primary:
            sys.stderr.write("\nsaving this step; Ctrl-C again ends at once\n")
            sys.stderr.flush()
        self._agreement.request()

    def request_stop(self) -> None:
        """Ask all processes to end, as a signal does."""
        if self._polls:
            self._agreement.request()
            return
        self._abort("asked to end before the first step: nothing to save", EXIT_RESTART)

    def _abort(self, text: str, exit_code: int) -> NoReturn:
        """Say why, and end the process at once."""
        self.on_abort()
        with self._group.elect_printer() as elected:
            if elected:
                sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
        # From a thread only this ends the process while the main thread is in C.
        os._exit(exit_code)


def never_stop() -> bool:
    """Poll of a run that nobody preempts: continue."""
    return False


def batches_until(batches: Iterable[T], should_stop: Callable[[], bool]) -> Iterator[T]:
    """Yield batches, polling before each, until a poll is true."""
    for batch in batches:
        if should_stop():
            return
        yield batch


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the thread that reads the pipe acts on the signal."""
