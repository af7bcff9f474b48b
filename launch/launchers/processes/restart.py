"""Supervision: processes that are started again, all of them, where one has failed."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, takewhile
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.launcher_messages import LauncherMessages
from jaxdist.launch.distributed.process_group import EXIT_RESTART
from jaxdist.launch.launchers.processes.group import ProcessSpec
from jaxdist.launch.launchers.processes.output import (
    PrefixedOutput,
    exit_on_signals,
    print_failure,
)
from jaxdist.launch.launchers.processes.stream import (
    SAVE_GRACE_S,
    ProcessFailure,
    run_and_stream,
)

MAX_RESTARTS: Final = 1000
"""Restarts that are asked for."""
_EXIT_BAD_INPUT: Final = 2
_MAX_BACKOFF_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How often processes are started again, and how long they may take to end."""

    restarts: int = 0
    """Starts after the first one, whatever the reason."""
    saving_s: float = SAVE_GRACE_S
    """Seconds to save and end, where the launcher is asked to end."""

    def pause_s(self, codes: Sequence[int]) -> float:
        """Return the seconds to wait before the next attempt.

        What fails again and again is given time; who asks to be started again is not.

        Args:
            codes: exit codes of the attempts so far.

        >>> failures = [1], [1, 1], [1, 1, 1], [1] * 9
        >>> [RestartPolicy().pause_s(codes) for codes in failures]
        [1.0, 2.0, 4.0, 60.0]
        >>> RestartPolicy().pause_s([1, 1, 75]), RestartPolicy().pause_s([1, 1, 75, 1])
        (1.0, 1.0)
        """
        failed = list(takewhile(lambda code: code != EXIT_RESTART, reversed(codes)))
        return min(2.0 ** max(len(failed) - 1, 0), _MAX_BACKOFF_S)


def restart_policy(restarts: int | None, saving_s: float | None) -> RestartPolicy:
    """Return what was asked for; None is as it is by itself.

    Raises:
        BadInput: numbers that cannot be.
    """
    found = RestartPolicy(
        restarts=0 if restarts is None else restarts,
        saving_s=SAVE_GRACE_S if saving_s is None else saving_s,
    )
    if 0 <= found.restarts <= MAX_RESTARTS and 0 < found.saving_s < float("inf"):
        return found
    raise BadInput(
        "processes are not started again like that",
        rule=f"--restarts is between 0 and {MAX_RESTARTS}, --grace above 0 seconds",
        values=f"--restarts {found.restarts}, --grace {found.saving_s:g}",
        remedy="--restarts 3 --grace 30",
    )


def run_with_restarts(
    attempt: Callable[[int], Sequence[ProcessSpec]], patience: RestartPolicy
) -> int:
    """Run processes, their lines on our own output, and start them again.

    What they refuse (exit code 2) they would refuse again. Everything else is tried
    again, the request to do so (75) as well: a run goes on from what it has saved.

    Args:
        attempt: returns what to start, by rank, for an attempt counted from 0. An
            attempt has an address of its own for process 0.
        patience: how often.

    Returns:
        0, or the exit code of the process that failed first in the last attempt.
    """
    codes: list[int] = []
    numbers = count()
    with exit_on_signals():
        while True:
            tasks = attempt(next(numbers))
            shown = LauncherMessages(PrefixedOutput(len(tasks)))
            failure = run_and_stream(
                tasks,
                shown,
                saving=patience.saving_s,
                tell=partial(print_failure, count=len(tasks)),
            )
            if failure is None:
                return 0
            if failure.code == EXIT_RESTART and shown.adapts.is_set():
                continue  # no failure: it goes on under another plan
            codes.append(failure.exit_code)
            if not wait_for_restart(codes, failure, patience):
                return failure.exit_code


def wait_for_restart(
    codes: Sequence[int], failure: ProcessFailure, patience: RestartPolicy
) -> bool:
    """Wait for the time of the next attempt; whether there is one.

    Args:
        codes: exit codes of the attempts so far.
        failure: the last one.
        patience: how often.
    """
    if len(codes) > patience.restarts or failure.code == _EXIT_BAD_INPUT:
        return False
    pause = patience.pause_s(codes)
    again = f"{len(codes)} of {patience.restarts}"
    sys.stderr.write(f"restart {again}, in {pause:g} s\n")
    sys.stderr.flush()
    time.sleep(pause)
    return True
