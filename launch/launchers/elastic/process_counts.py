"""Process counts with which an elastic run works, up to its maximum.

4 processes   data 8 x tensor 2    batch 64, 8 on each shard
3             data 6 x tensor 2    64 does not divide over 6: two of the 3 go on
2             data 4 x tensor 2    batch 64, 16 on each shard
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan_resize import resize_plan
from jaxdist.launch.launchers.elastic.process_range import ProcessRange

if TYPE_CHECKING:
    from jaxdist.launch.config import Experiment


@dataclass(frozen=True, kw_only=True)
class FeasibleCounts:
    """The numbers of processes with which a run works."""

    counts: tuple[int, ...]
    """Least first."""
    infeasible_reasons: tuple[str, ...] = ()
    """Why others between the least and the most do not, a sentence each."""
    reports_training: bool = False
    """Whether process 0 says when it trains, and has something to save."""

    def largest_feasible(self, available: int) -> int:
        """Return how many of those that are there can run; 0 where too few are.

        >>> counts = FeasibleCounts(counts=(2, 4))
        >>> counts.largest_feasible(3), counts.largest_feasible(1)
        (2, 0)
        """
        return max((count for count in self.counts if count <= available), default=0)

    @property
    def max_processes(self) -> int:
        """As many as the plan is written for."""
        return self.counts[-1]


def feasible_counts(
    config: "Experiment", process_range: ProcessRange
) -> FeasibleCounts:
    """Return with how many processes a configuration works.

    Args:
        config: checked settings.
        process_range: the least and the most that were asked for.

    Raises:
        BadInput: not with the least or the most of them; naming the nearest that do.
    """
    least, most = process_range.min_processes, process_range.max_processes
    devices = config.plan.mesh.devices
    if devices % most:
        fits = [n for n in range(1, devices + 1) if devices % n == 0]
        near = min(fits, key=lambda n: (abs(n - most), n))
        raise BadInput(
            "the most processes do not share the plan evenly",
            rule="the devices of the plan divide over the most processes",
            values=f"{config.plan.title}: {devices} devices, {most} processes",
            remedy=f"{_option_text(min(least, near), near)}, or a plan of "
            f"{most * max(1, devices // most)} devices",
        )
    # With fewer processes a device has more samples, and so would its batch statistics.
    if not process_range.is_fixed and config.model.norm == "replica":
        raise BadInput(
            "batch statistics would be of other samples with fewer processes",
            rule="an elastic run computes the same on any number of processes",
            values="model.norm = replica: of as many samples as a device has",
            remedy=("model.norm=global", f"or {_option_text(most, most)}"),
        )
    # Of all counts, also below the least: the nearest that works is the remedy.
    why = {n: infeasible_reason(config, n, most) for n in range(1, most + 1)}
    if why[least]:
        works = [n for n in why if not why[n]]
        below = [n for n in works if n < least][-1:]
        above = [n for n in works if n > least][:1]
        nearest = sorted([*above, *below], key=lambda n: abs(n - least))
        raise BadInput(
            f"{least} of {most} processes cannot run this plan",
            rule="with fewer processes the axis data is shorter, and the batch "
            "divides over it",
            values=why[least],
            remedy=" or ".join(_option_text(n, most) for n in nearest),
        )
    between = range(least, most + 1)
    return FeasibleCounts(
        counts=tuple(n for n in between if not why[n]),
        infeasible_reasons=tuple(why[n] for n in between if why[n]),
        reports_training=True,
    )


def infeasible_reason(
    config: "Experiment", num_processes: int, planned_processes: int
) -> str:
    """Return why a configuration does not work on so many processes; empty: it does."""
    try:
        plan = resize_plan(config.plan, num_processes, planned_processes)
        # Some algorithms take powers of two only, and say so when they are built.
        if plan.reduce.algorithm in SCHEDULES and plan.mesh.data > 1:
            SCHEDULES[plan.reduce.algorithm](plan.mesh.data)
    except BadInput as error:
        return f"with {num_processes}, {error.values}"
    # Compressors keep what they did not send for the next step (error feedback). On one
    # device nothing is sent, so a checkpoint's rest would never be added.
    ways = (
        plan.reduce.candidates
        if plan.reduce.algorithm == "auto"
        else (plan.reduce.algorithm,)
    )
    keeps_rest = any(way != "exact" and way not in SCHEDULES for way in ways)
    if plan.mesh.data == 1 < config.plan.mesh.data and keeps_rest:
        return (
            f"with {num_processes}, {plan.title}: nothing is sent along data, and what "
            f"plan.reduce.algorithm = {plan.reduce.algorithm} had not sent has no place"
        )
    batch, parts = config.data.batch, plan.batch_shards * config.optim.accumulate
    if batch % parts:
        broken = f"data.batch = {batch} is no multiple of {parts}"
        return f"with {num_processes}, {plan.title}: {broken}"
    return ""


def _option_text(least: int, most: int) -> str:
    return f"-n {least}:{most}" if least < most else f"-n {most}"
