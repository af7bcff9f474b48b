"""Restarts: all processes are started again where one of them has failed."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.exit_codes import EXIT_BAD_INPUT, EXIT_RESTART
from jaxdist.launch.distributed.launcher_messages import ReceivedMessages
from jaxdist.launch.launchers.processes.group import (
    SAVE_GRACE_S,
    ProcessFailure,
    ProcessSpec,
    exit_on_signals,
    run_and_stream,
)
from jaxdist.launch.launchers.processes.output import PrefixedOutput, print_failure

MAX_RESTARTS: Final = 1000
"""The most restarts that can be asked for."""
_MAX_BACKOFF_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How often processes are started again, and how long they may take to end."""

    max_restarts: int = 0
    """Starts after the first one, whatever the reason."""
    save_grace_s: float = SAVE_GRACE_S
    """Seconds to save and end, where the launcher is asked to end."""

    def backoff_s(self, exit_codes: Sequence[int]) -> float:
        """Return the seconds to wait before the next attempt: exponential backoff.

        Failures in a row double the time; a request to be started again resets it.

        Args:
            exit_codes: exit codes of the attempts so far.

        >>> failures = [1], [1, 1], [1, 1, 1], [1] * 9
        >>> [RestartPolicy().backoff_s(codes) for codes in failures]
        [1.0, 2.0, 4.0, 60.0]
        >>> tuple(RestartPolicy().backoff_s(c) for c in ([1, 1, 75], [1, 1, 75, 1]))
        (1.0, 1.0)
        """
        in_a_row = takewhile(lambda code: code != EXIT_RESTART, reversed(exit_codes))
        return min(2.0 ** max(len([*in_a_row]) - 1, 0), _MAX_BACKOFF_S)


def restart_policy(
    max_restarts: int | None, save_grace_s: float | None
) -> RestartPolicy:
    """Return a checked policy.

    Args:
        max_restarts: starts after the first one; None: the default.
        save_grace_s: seconds to save and end; None: the default.

    Raises:
        BadInput: a number is out of range.
    """
    restarts = 0 if max_restarts is None else max_restarts
    grace_s = SAVE_GRACE_S if save_grace_s is None else save_grace_s
    if not (0 <= restarts <= MAX_RESTARTS and 0 < grace_s < float("inf")):
        raise BadInput(
            "processes are not started again like that",
            rule=f"--restarts is between 0 and {MAX_RESTARTS}, --grace above 0 seconds",
            values=f"--restarts {restarts}, --grace {grace_s:g}",
            remedy="--restarts 3 --grace 30",
        )
    return RestartPolicy(max_restarts=restarts, save_grace_s=grace_s)


def run_with_restarts(
    make_specs: Callable[[int], Sequence[ProcessSpec]], policy: RestartPolicy
) -> int:
    """Run processes, print their lines, and start all again where one fails.

    What they refuse (exit code 2) they would refuse again. Everything else is tried
    again, the request to do so (75) as well: a run resumes from what it has saved.

    Args:
        make_specs: returns what to start, by rank, for an attempt counted from 0. Each
            attempt has another address for process 0: its port may still be in use.
        policy: how often.

    Returns:
        0, or the exit code of the process that failed first in the last attempt.
    """
    codes: list[int] = []
    attempt = 0
    with exit_on_signals():
        while True:
            specs, messages = make_specs(attempt), ReceivedMessages()
            attempt += 1
            failure = run_and_stream(
                specs,
                PrefixedOutput(len(specs)),
                on_message=messages,
                save_grace_s=policy.save_grace_s,
                on_failure=partial(print_failure, num_processes=len(specs)),
            )
            if failure is None:
                return 0
            # A run that is started again under another plan has not failed, so it takes
            # no restart from the budget and does not wait.
            if failure.returncode == EXIT_RESTART and messages.adapting.is_set():
                continue
            codes.append(failure.exit_code)
            if not wait_for_restart(codes, failure, policy):
                return failure.exit_code


def wait_for_restart(
    exit_codes: Sequence[int], failure: ProcessFailure, policy: RestartPolicy
) -> bool:
    """Wait until the next attempt, and return whether there is one.

    Args:
        exit_codes: exit codes of the attempts so far.
        failure: the last one.
        policy: how often.
    """
    # A request to be started again counts as well: a hang that comes back every time
    # ends with that code, and would be restarted for ever.
    if len(exit_codes) > policy.max_restarts or failure.returncode == EXIT_BAD_INPUT:
        return False
    pause = policy.backoff_s(exit_codes)
    again = f"{len(exit_codes)} of {policy.max_restarts}"
    sys.stderr.write(f"restart {again}, in {pause:g} s\n")
    sys.stderr.flush()
    time.sleep(pause)
    return True
