"""Elastic supervision: a run continues with the places there are, and grows again.

h0 h1 h2 h3    step 1 ... 40, h2 is lost
h0 h1 h3       step 31 ... 75, from the checkpoint of step 30; h2 is back: all save
h0 h1 h2 h3    step 76 ...

A place is a slot for one process: a host, or a number on this machine.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from signal import SIGTERM
from threading import Event
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.background_thread import BackgroundThread
from jaxdist.launch.distributed.exit_codes import EXIT_RESTART
from jaxdist.launch.distributed.launcher_messages import ReceivedMessages
from jaxdist.launch.launchers.elastic.host_pool import HostPool
from jaxdist.launch.launchers.elastic.process_counts import FeasibleCounts
from jaxdist.launch.launchers.processes.group import (
    ProcessFailure,
    exit_on_signals,
    run_and_stream,
)
from jaxdist.launch.launchers.processes.output import PrefixedOutput, print_failure
from jaxdist.launch.launchers.processes.restart import (
    RestartPolicy,
    restart_policy,
    wait_for_restart,
)

DEFAULT_ELASTIC_RESTARTS: Final = 10
"""Restarts of a run that may have fewer processes, unless a number is asked for."""
REJOIN_AFTER_S: Final = 30.0
"""Seconds before a place that was lost is asked again."""
_MAX_BACKOFF_FACTOR: Final = 64
_POLL_S: Final = 1.0
# Seconds to wait for places, where too few are there to go on.
_CAPACITY_TIMEOUT_S: Final = 600.0
# Codes of processes that end because they were asked to.
_RECALL_CODES: Final = (EXIT_RESTART, -SIGTERM, 128 + SIGTERM)


class SlotBackoff:
    """Lost places are left out for a while, twice as long each time.

    Args:
        initial_s: seconds of the first time.

    >>> backoff = SlotBackoff(30)
    >>> backoff.exclude([1], now=100)
    >>> backoff.excluded(129), backoff.excluded(131)
    ({1}, set())
    """

    def __init__(self, initial_s: float = REJOIN_AFTER_S) -> None:
        self._initial_s = initial_s
        self._failures: Counter[int] = Counter()
        self._excluded_until: dict[int, float] = {}

    def exclude(self, slots: Iterable[int], now: float) -> None:
        """Leave places out from now on."""
        for slot in slots:
            factor = min(2 ** self._failures[slot], _MAX_BACKOFF_FACTOR)
            self._excluded_until[slot] = now + self._initial_s * factor
            self._failures[slot] += 1

    def excluded(self, now: float) -> set[int]:
        """Return the places that are left out now."""
        return {slot for slot, until in self._excluded_until.items() if until > now}


class RejoinWatcher(BackgroundThread):
    """Looks in a thread of its own whether more places are there, as a context.

    Args:
        can_grow: whether more processes could run; may take seconds.
        messages: of the processes; before they train nobody is recalled.
    """

    def __init__(
        self, can_grow: Callable[[], bool], messages: ReceivedMessages
    ) -> None:
        self._can_grow, self._messages = can_grow, messages
        self._growth_found = Event()
        super().__init__()

    def __call__(self) -> bool:
        """Whether more processes could run, so all are to save and end."""
        return self._growth_found.is_set()

    def is_recall(self, failure: ProcessFailure) -> bool:
        """Whether a process ended because it was asked to, for more to run."""
        # A process that finds others stuck ends with the same code, which is a loss.
        asked = self() and failure.returncode in _RECALL_CODES
        return asked and not self._messages.stuck_ranks(failure.rank)

    def run(self) -> None:
        """Look again and again, until there are more."""
        while not self.stopped.wait(_POLL_S):
            if self._messages.training.is_set() and self._can_grow():
                self._growth_found.set()
                return


def run_elastic_from_args(
    pool: HostPool,
    feasible: FeasibleCounts,
    *,
    restarts: int | None,
    grace: float | None,
    rejoin_after: float | None,
) -> int:
    """Run as the options of a command line ask for; None is an option's default.

    Args:
        pool: the places.
        feasible: with how many processes the run works.
        restarts: starts after the first one.
        grace: seconds to save and end.
        rejoin_after: seconds before a place that was lost is asked again.

    Raises:
        BadInput: numbers that cannot be, or too few places.
    """
    restarts = DEFAULT_ELASTIC_RESTARTS if restarts is None else restarts
    after = REJOIN_AFTER_S if rejoin_after is None else rejoin_after
    if not 0 < after < float("inf"):
        raise BadInput(
            "lost places are not taken back like that",
            rule="--rejoin-after is above 0 seconds",
            values=f"--rejoin-after {after:g}",
            remedy="--rejoin-after 30",
        )
    for why in feasible.infeasible_reasons:
        _print_line(f"left out: {why}")
    wanted = restart_policy(restarts, grace)
    return run_elastic(pool, feasible, wanted, rejoin_after_s=after)


def run_elastic(
    pool: HostPool,
    feasible: FeasibleCounts,
    policy: RestartPolicy,
    *,
    rejoin_after_s: float = REJOIN_AFTER_S,
) -> int:
    """Run processes on as many places as there are, and print their lines.

    Args:
        pool: the places.
        feasible: with how many processes the run works.
        policy: how often they are started again after a failure. A start that takes
            places back is not counted.
        rejoin_after_s: seconds before a place that was lost is asked again; twice as
            many each time.

    Returns:
        0, or the exit code of the process that failed first in the last attempt.

    Raises:
        BadInput: too few places are there at the start.
    """
    codes: list[int] = []
    run = _ElasticRun(pool, feasible, policy, rejoin_after_s)
    names = pool.slot_names
    with exit_on_signals():
        there = pool.available(range(len(names)))
        if not (slots := run.choose_slots(there)):
            gone = [name for slot, name in enumerate(names) if slot not in there]
            raise BadInput(
                "too few places are there",
                rule=f"{feasible.counts[0]} are needed at least",
                values=f"{len(there)} of {len(names)}; not there: {', '.join(gone)}",
                remedy=f"-n {max(len(there), 1)}:{feasible.max_processes}, or more "
                "of them",
            )
        while True:
            failure, planned = run.run_attempt(slots)
            if failure is None:
                return 0
            if not planned:
                codes.append(failure.exit_code)
                run.exclude_lost(slots, failure)
                # Losses alone are counted: a start that takes a place back is planned.
                if not wait_for_restart(codes, failure, policy):
                    return failure.exit_code
            slots = run.wait_for_slots()
            if not slots:
                return failure.exit_code


class _ElasticRun:
    """A run between its attempts."""

    def __init__(
        self,
        pool: HostPool,
        feasible: FeasibleCounts,
        policy: RestartPolicy,
        rejoin_after_s: float,
    ) -> None:
        self._pool, self._feasible, self._policy = pool, feasible, policy
        self._backoff, self._attempts = SlotBackoff(rejoin_after_s), 0
        self._messages = ReceivedMessages()

    def run_attempt(self, slots: Sequence[int]) -> tuple[ProcessFailure | None, bool]:
        """Run once: the first failure, and whether all ended as planned.

        They do so to take places back, or to go on under another plan.
        """
        specs = self._pool.process_specs(slots, self._attempts)
        self._attempts += 1
        names, most = self._pool.slot_names, self._feasible.max_processes
        if self._attempts > 1 or len(slots) < most:
            without = [name for slot, name in enumerate(names) if slot not in slots]
            beside = f", without {', '.join(without)}" if without else ""
            _print_line(f"{len(slots)} of {most} processes{beside}")

        messages = self._messages = ReceivedMessages()
        if not self._feasible.reports_training:
            # A program that never says when it trains may be recalled at any time.
            messages.training.set()
        with RejoinWatcher(lambda: self._can_grow(slots), messages) as rejoin:
            failure = run_and_stream(
                specs,
                PrefixedOutput(len(specs)),
                on_message=messages,
                save_grace_s=self._policy.save_grace_s,
                on_failure=lambda failure: (
                    _print_line("more places are there: all end, to continue with them")
                    if rejoin.is_recall(failure)
                    else print_failure(failure, len(specs))
                ),
                should_recall=rejoin,
            )
        if failure is None:
            return None, False
        # All have ended, so every message has arrived, from whichever process it came.
        adapts = messages.adapting.is_set() and failure.returncode == EXIT_RESTART
        adapts = adapts and not messages.stuck_ranks(failure.rank)
        return failure, adapts or rejoin.is_recall(failure)

    def exclude_lost(self, slots: Sequence[int], failure: ProcessFailure) -> None:
        """Find out which places were lost, and leave them out for a while."""
        # Places that cannot be reached are lost for certain. Without any, those are
        # that the watchdog of the failed process named, or else that process itself.
        lost = sorted(set(slots) - self._pool.available(slots))
        if not lost:
            ranks = self._messages.stuck_ranks(failure.rank)
            # One that asks to be started again has nothing wrong with its place.
            if not ranks and failure.returncode != EXIT_RESTART:
                ranks = (failure.rank,)
            lost = [slots[rank] for rank in ranks if rank < len(slots)]
        self._backoff.exclude(lost, time.monotonic())
        if lost:
            names = self._pool.slot_names
            _print_line(f"lost: {', '.join(names[slot] for slot in lost)}")

    def wait_for_slots(self) -> tuple[int, ...]:
        """Choose where to continue, waiting for places; none where they stay away."""
        end, said = time.monotonic() + _CAPACITY_TIMEOUT_S, False
        while True:
            if slots := self.choose_slots(self._pool.available(self._candidates(()))):
                return slots
            # Too few without those that were lost lately: then they are taken as well.
            there = self._pool.available(range(len(self._pool.slot_names)))
            if slots := self.choose_slots(there):
                return slots
            if time.monotonic() > end:
                return ()
            if not said:
                need = self._feasible.counts[0]
                _print_line(f"{len(there)} are there and {need} are needed: waiting")
                said = True
            time.sleep(_POLL_S)

    def choose_slots(self, available: frozenset[int]) -> tuple[int, ...]:
        """Return as many of the places as can run; none where they are too few."""
        count = self._feasible.largest_feasible(len(available))
        # The first places: names and ranks change as little as they can.
        return tuple(sorted(available))[:count]

    def _can_grow(self, slots: Sequence[int]) -> bool:
        """Whether more processes could run with the places beside these."""
        beside = self._candidates(slots)
        # To ask a place takes seconds, so not where even all of them would not do.
        if self._feasible.largest_feasible(len(slots) + len(beside)) <= len(slots):
            return False
        there = len(self._pool.available(beside))
        return self._feasible.largest_feasible(len(slots) + there) > len(slots)

    def _candidates(self, running: Sequence[int]) -> set[int]:
        """Return the places that may be asked now."""
        resting = self._backoff.excluded(time.monotonic())
        return set(range(len(self._pool.slot_names))) - resting - set(running)


def _print_line(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"elastic   {text}\n")
    sys.stderr.flush()
