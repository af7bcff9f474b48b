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

    max_restarts: int = 0
    """Starts after the first one, whatever the reason."""
    save_grace_s: float = SAVE_GRACE_S
    """Seconds to save and end, where the launcher is asked to end."""

    def backoff_s(self, exit_codes: Sequence[int]) -> float:
        """Return the seconds to wait before the next attempt.

        What fails again and again is given time; who asks to be started again is not.

        Args:
            exit_codes: exit codes of the attempts so far.

        >>> failures = [1], [1, 1], [1, 1, 1], [1] * 9
        >>> [RestartPolicy().backoff_s(codes) for codes in failures]
        [1.0, 2.0, 4.0, 60.0]
        >>> tuple(RestartPolicy().backoff_s(c) for c in ([1, 1, 75], [1, 1, 75, 1]))
        (1.0, 1.0)
        """
        failed = list(
            takewhile(lambda code: code != EXIT_RESTART, reversed(exit_codes))
        )
        return min(2.0 ** max(len(failed) - 1, 0), _MAX_BACKOFF_S)


def restart_policy(
    max_restarts: int | None, save_grace_s: float | None
) -> RestartPolicy:
    """Return what was asked for; None is as it is by itself.

    Raises:
        BadInput: numbers that cannot be.
    """
    found = RestartPolicy(
        max_restarts=0 if max_restarts is None else max_restarts,
        save_grace_s=SAVE_GRACE_S if save_grace_s is None else save_grace_s,
    )
    if 0 <= found.max_restarts <= MAX_RESTARTS and 0 < found.save_grace_s < float(
        "inf"
    ):
        return found
    raise BadInput(
        "processes are not started again like that",
        rule=f"--restarts is between 0 and {MAX_RESTARTS}, --grace above 0 seconds",
        values=f"--restarts {found.max_restarts}, --grace {found.save_grace_s:g}",
        remedy="--restarts 3 --grace 30",
    )


def run_with_restarts(
    make_specs: Callable[[int], Sequence[ProcessSpec]], policy: RestartPolicy
) -> int:
    """Run processes, their lines on our own output, and start them again.

    What they refuse (exit code 2) they would refuse again. Everything else is tried
    again, the request to do so (75) as well: a run goes on from what it has saved.

    Args:
        make_specs: returns what to start, by rank, for an attempt counted from 0. An
            attempt has an address of its own for process 0.
        policy: how often.

    Returns:
        0, or the exit code of the process that failed first in the last attempt.
    """
    codes: list[int] = []
    numbers = count()
    with exit_on_signals():
        while True:
            tasks = make_specs(next(numbers))
            shown = LauncherMessages(PrefixedOutput(len(tasks)))
            failure = run_and_stream(
                tasks,
                shown,
                save_grace_s=policy.save_grace_s,
                on_failure=partial(print_failure, num_processes=len(tasks)),
            )
            if failure is None:
                return 0
            if failure.returncode == EXIT_RESTART and shown.replan_announced.is_set():
                continue  # no failure: it goes on under another plan
            codes.append(failure.exit_code)
            if not wait_for_restart(codes, failure, policy):
                return failure.exit_code


def wait_for_restart(
    exit_codes: Sequence[int], failure: ProcessFailure, policy: RestartPolicy
) -> bool:
    """Wait for the time of the next attempt; whether there is one.

    Args:
        exit_codes: exit codes of the attempts so far.
        failure: the last one.
        policy: how often.
    """
    if len(exit_codes) > policy.max_restarts or failure.returncode == _EXIT_BAD_INPUT:
        return False
    pause = policy.backoff_s(exit_codes)
    again = f"{len(exit_codes)} of {policy.max_restarts}"
    sys.stderr.write(f"restart {again}, in {pause:g} s\n")
    sys.stderr.flush()
    time.sleep(pause)
    return True
