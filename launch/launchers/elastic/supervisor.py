"""Elastic: supervision that goes on with what is there, and takes back who returns.

h0 h1 h2 h3    step 1 ... 40, h2 is lost
h0 h1 h3       step 31 ... 75, from the checkpoint of step 30; h2 is back: all save
h0 h1 h2 h3    step 76 ...
"""

import sys
import time
from argparse import Namespace
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
    ground: HostPool, able: FeasibleCounts, args: Namespace
) -> int:
    """Run as the words of a command line ask for.

    Args:
        ground: the places.
        able: with how many processes the run works.
        args: `restarts`, `grace` and `back_after`, None where they are not given.

    Raises:
        BadInput: numbers that cannot be, or too few places.
    """
    restarts = DEFAULT_ELASTIC_RESTARTS if args.restarts is None else args.restarts
    after = REJOIN_AFTER_S if args.back_after is None else args.back_after
    if not 0 < after < float("inf"):
        raise BadInput(
            "lost places are not taken back like that",
            rule="--back-after is above 0 seconds",
            values=f"--back-after {after:g}",
            remedy="--back-after 30",
        )
    for why in able.why:
        _print_line(f"left out: {why}")
    wanted = restart_policy(restarts, args.grace)
    return run_elastic(ground, able, wanted, back_after_s=after)


def run_elastic(
    ground: HostPool,
    able: FeasibleCounts,
    wanted: RestartPolicy,
    *,
    back_after_s: float = REJOIN_AFTER_S,
) -> int:
    """Run processes, their lines on our own output, on as many places as there are.

    Args:
        ground: the places.
        able: with how many processes the run works.
        wanted: how often they are started again after a failure. A start that takes
            places back is not counted.
        back_after_s: seconds before a place that was lost is asked again; twice as
            many each time.

    Returns:
        0, or the exit code of the process that failed first in the last attempt.

    Raises:
        BadInput: too few places are there at the start.
    """
    codes: list[int] = []
    run = _ElasticRun(ground, able, SlotBackoff(back_after_s), wanted)
    with exit_on_signals():
        on = run.first()
        while True:
            failure, recalled = run.attempt(on)
            if failure is None:
                return 0
            if not recalled:
                codes.append(failure.exit_code)
                run.loses(on, failure)
                if not wait_for_restart(codes, failure, wanted):
                    return failure.exit_code
            found = run.gathers()
            if not found:
                return failure.exit_code
            on = found


@dataclass
class _ElasticRun:
    """A run between its attempts."""

    ground: HostPool
    able: FeasibleCounts
    aside: SlotBackoff
    patience: RestartPolicy
    attempts: int = 0

    def first(self) -> tuple[int, ...]:
        """Choose where the first processes run.

        Raises:
            BadInput: too few places are there.
        """
        names = self.ground.names
        found = self.ground.there(range(len(names)))
        if on := self._chosen(found):
            return on
        gone = [name for place, name in enumerate(names) if place not in found]
        raise BadInput(
            "too few places are there",
            rule=f"{self.able.counts[0]} are needed at least",
            values=f"{len(found)} of {len(names)}; not there: {', '.join(gone)}",
            remedy=f"-n {max(len(found), 1)}:{self.able.most}, or more of them",
        )

    def attempt(self, on: Sequence[int]) -> tuple[ProcessFailure | None, bool]:
        """Run once: who failed first, and whether that was to take places back."""
        tasks = self.ground.tasks(on, self.attempts)
        self.attempts += 1
        self._tell(on)
        shown = LauncherMessages(PrefixedOutput(len(tasks)))
        if not self.able.marks:
            shown.trains.set()
        with RejoinWatcher(lambda: self.more(on), shown.trains) as returning:
            failure = run_and_stream(
                tasks,
                shown,
                saving=self.patience.saving_s,
                tell=lambda failure: self._failed(failure, len(tasks), returning),
                recalls=returning,
            )
        if failure is None:
            return None, False
        adapts = shown.adapts.is_set() and failure.code == EXIT_RESTART
        again = adapts and not stuck_ranks(failure.last)
        return failure, again or returning.recalled(failure)

    def loses(self, on: Sequence[int], failure: ProcessFailure) -> None:
        """Find out which places were lost, and let them rest."""
        gone = set(on) - self.ground.there(on)
        named = stuck_ranks(failure.last)
        if not gone and not named and failure.code != EXIT_RESTART:
            named = (failure.rank,)
        lost = sorted(gone) or [on[rank] for rank in named if rank < len(on)]
        self.aside.put(lost, time.monotonic())
        if lost:
            _print_line(
                f"lost: {', '.join(self.ground.names[place] for place in lost)}"
            )

    def gathers(self) -> tuple[int, ...]:
        """Choose where to go on, waiting for places; nothing where they stay away."""
        end, said = time.monotonic() + _CAPACITY_TIMEOUT_S, False
        while True:
            if on := self._chosen(self.ground.there(self._asked(()))):
                return on
            # Too few without those that rest.
            there = self.ground.there(range(len(self.ground.names)))
            if on := self._chosen(there):
                return on
            if time.monotonic() > end:
                return ()
            if not said:
                need = self.able.counts[0]
                _print_line(f"{len(there)} are there and {need} are needed: waiting")
                said = True
            time.sleep(_POLL_S)

    def more(self, on: Sequence[int]) -> bool:
        """Whether places are there, beside these, with which more can run."""
        beside = self._asked(on)
        if self.able.fitting(len(on) + len(beside)) <= len(on):
            return False
        there = len(self.ground.there(beside))
        return self.able.fitting(len(on) + there) > len(on)

    def _asked(self, without: Sequence[int]) -> set[int]:
        """Return the places that are asked now."""
        resting = self.aside.resting(time.monotonic())
        return set(range(len(self.ground.names))) - resting - set(without)

    def _chosen(self, there: frozenset[int]) -> tuple[int, ...]:
        return tuple(sorted(there))[: self.able.fitting(len(there))]

    def _tell(self, on: Sequence[int]) -> None:
        """Say how many run, where those are not as many as there could be."""
        names, most = self.ground.names, self.able.most
        if self.attempts > 1 or len(on) < most:
            without = [name for place, name in enumerate(names) if place not in on]
            beside = f", without {', '.join(without)}" if without else ""
            _print_line(f"{len(on)} of {most} processes{beside}")

    def _failed(
        self, failure: ProcessFailure, count: int, returning: RejoinWatcher
    ) -> None:
        if returning.recalled(failure):
            _print_line("more places are there: all end, to go on with them")
        else:
            print_failure(failure, count)


def _print_line(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"elastic   {text}\n")
    sys.stderr.flush()
