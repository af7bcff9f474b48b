"""Elastic: supervision that goes on with what is there, and takes back who returns.

h0 h1 h2 h3    step 1 ... 40, h2 is lost
h0 h1 h3       step 31 ... 75, from the checkpoint of step 30; h2 is back: all save
h0 h1 h2 h3    step 76 ...
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.launch.distributed.launcher_messages import LauncherMessages, stuck_ranks
from jaxdist.launch.distributed.process_group import EXIT_RESTART
from jaxdist.launch.launchers.elastic.backoff import REJOIN_AFTER_S, SlotBackoff
from jaxdist.launch.launchers.elastic.host_pool import HostPool
from jaxdist.launch.launchers.elastic.process_counts import FeasibleCounts
from jaxdist.launch.launchers.elastic.rejoin import RejoinWatcher
from jaxdist.launch.launchers.processes.output import (
    PrefixedOutput,
    exit_on_signals,
    print_failure,
)
from jaxdist.launch.launchers.processes.restart import (
    RestartPolicy,
    restart_policy,
    wait_for_restart,
)
from jaxdist.launch.launchers.processes.stream import ProcessFailure, run_and_stream

DEFAULT_ELASTIC_RESTARTS: Final = 10
"""Restarts of a run that may have fewer processes, unless a number is asked for."""
_POLL_S: Final = 1.0
_CAPACITY_TIMEOUT_S: Final = 600.0
"""Seconds to wait for places, where too few are there to go on."""


def run_elastic_from_args(
    pool: HostPool,
    feasible: FeasibleCounts,
    *,
    restarts: int | None,
    grace: float | None,
    back_after: float | None,
) -> int:
    """Run as the options of a command line ask for; None is an option's default.

    Args:
        pool: the places.
        feasible: with how many processes the run works.
        restarts: starts after the first one.
        grace: seconds to save and end.
        back_after: seconds before a place that was lost is asked again.

    Raises:
        BadInput: numbers that cannot be, or too few places.
    """
    restarts = DEFAULT_ELASTIC_RESTARTS if restarts is None else restarts
    after = REJOIN_AFTER_S if back_after is None else back_after
    if not 0 < after < float("inf"):
        raise BadInput(
            "lost places are not taken back like that",
            rule="--back-after is above 0 seconds",
            values=f"--back-after {after:g}",
            remedy="--back-after 30",
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
    """Run processes, their lines on our own output, on as many places as there are.

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
    run = _ElasticRun(pool, feasible, SlotBackoff(rejoin_after_s), policy)
    with exit_on_signals():
        on = run.initial_slots()
        while True:
            failure, recalled = run.run_attempt(on)
            if failure is None:
                return 0
            if not recalled:
                codes.append(failure.exit_code)
                run.exclude_lost(on, failure)
                if not wait_for_restart(codes, failure, policy):
                    return failure.exit_code
            found = run.wait_for_slots()
            if not found:
                return failure.exit_code
            on = found


@dataclass
class _ElasticRun:
    """A run between its attempts."""

    pool: HostPool
    feasible: FeasibleCounts
    backoff: SlotBackoff
    policy: RestartPolicy
    attempt_count: int = 0

    def initial_slots(self) -> tuple[int, ...]:
        """Choose where the first processes run.

        Raises:
            BadInput: too few places are there.
        """
        names = self.pool.slot_names
        found = self.pool.available(range(len(names)))
        if on := self._choose_slots(found):
            return on
        gone = [name for place, name in enumerate(names) if place not in found]
        raise BadInput(
            "too few places are there",
            rule=f"{self.feasible.counts[0]} are needed at least",
            values=f"{len(found)} of {len(names)}; not there: {', '.join(gone)}",
            remedy=f"-n {max(len(found), 1)}:{self.feasible.max_processes}, or more "
            "of them",
        )

    def run_attempt(self, slots: Sequence[int]) -> tuple[ProcessFailure | None, bool]:
        """Run once: who failed first, and whether that was to take places back."""
        tasks = self.pool.process_specs(slots, self.attempt_count)
        self.attempt_count += 1
        self._print_size(slots)
        shown = LauncherMessages(PrefixedOutput(len(tasks)))
        if not self.feasible.reports_training:
            shown.training_started.set()
        with RejoinWatcher(
            lambda: self.can_grow(slots), shown.training_started
        ) as returning:
            failure = run_and_stream(
                tasks,
                shown,
                save_grace_s=self.policy.save_grace_s,
                on_failure=lambda failure: self._print_failure(
                    failure, len(tasks), returning
                ),
                should_recall=returning,
            )
        if failure is None:
            return None, False
        adapts = shown.replan_announced.is_set() and failure.returncode == EXIT_RESTART
        again = adapts and not stuck_ranks(failure.last_lines)
        return failure, again or returning.is_recall(failure)

    def exclude_lost(self, slots: Sequence[int], failure: ProcessFailure) -> None:
        """Find out which places were lost, and let them rest."""
        gone = set(slots) - self.pool.available(slots)
        named = stuck_ranks(failure.last_lines)
        if not gone and not named and failure.returncode != EXIT_RESTART:
            named = (failure.rank,)
        lost = sorted(gone) or [slots[rank] for rank in named if rank < len(slots)]
        self.backoff.exclude(lost, time.monotonic())
        if lost:
            _print_line(
                f"lost: {', '.join(self.pool.slot_names[place] for place in lost)}"
            )

    def wait_for_slots(self) -> tuple[int, ...]:
        """Choose where to go on, waiting for places; nothing where they stay away."""
        end, said = time.monotonic() + _CAPACITY_TIMEOUT_S, False
        while True:
            if on := self._choose_slots(self.pool.available(self._candidate_slots(()))):
                return on
            # Too few without those that rest.
            there = self.pool.available(range(len(self.pool.slot_names)))
            if on := self._choose_slots(there):
                return on
            if time.monotonic() > end:
                return ()
            if not said:
                need = self.feasible.counts[0]
                _print_line(f"{len(there)} are there and {need} are needed: waiting")
                said = True
            time.sleep(_POLL_S)

    def can_grow(self, slots: Sequence[int]) -> bool:
        """Whether places are there, beside these, with which more can run."""
        beside = self._candidate_slots(slots)
        if self.feasible.largest_feasible(len(slots) + len(beside)) <= len(slots):
            return False
        there = len(self.pool.available(beside))
        return self.feasible.largest_feasible(len(slots) + there) > len(slots)

    def _candidate_slots(self, running: Sequence[int]) -> set[int]:
        """Return the places that are asked now."""
        resting = self.backoff.excluded(time.monotonic())
        return set(range(len(self.pool.slot_names))) - resting - set(running)

    def _choose_slots(self, available: frozenset[int]) -> tuple[int, ...]:
        return tuple(sorted(available))[
            : self.feasible.largest_feasible(len(available))
        ]

    def _print_size(self, slots: Sequence[int]) -> None:
        """Say how many run, where those are not as many as there could be."""
        names, most = self.pool.slot_names, self.feasible.max_processes
        if self.attempt_count > 1 or len(slots) < most:
            without = [name for place, name in enumerate(names) if place not in slots]
            beside = f", without {', '.join(without)}" if without else ""
            _print_line(f"{len(slots)} of {most} processes{beside}")

    def _print_failure(
        self, failure: ProcessFailure, count: int, watcher: RejoinWatcher
    ) -> None:
        if watcher.is_recall(failure):
            _print_line("more places are there: all end, to go on with them")
        else:
            print_failure(failure, count)


def _print_line(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"elastic   {text}\n")
    sys.stderr.flush()
