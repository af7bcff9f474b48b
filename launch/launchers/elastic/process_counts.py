"""Able: with how many processes a run works, where there may be fewer than its most.

4 processes   data 8 x tensor 2    batch 64, 8 on each shard
3             data 6 x tensor 2    64 does not divide: 3 are not able, 2 of them go on
2             data 4 x tensor 2    batch 64, 16 on each shard
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan_resize import resize_plan
from jaxdist.launch.launchers.elastic.process_range import ProcessRange

if TYPE_CHECKING:
    from jaxdist.core.plan import Plan
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
    """Say with how many processes a configuration works.

    Args:
        config: checked settings.
        process_range: the least and the most that were asked for.

    Raises:
        BadInput: not with the least or the most of them; naming the nearest that do.
    """
    _check_even_split(config, process_range)
    _check_batch_norm(config, process_range)
    why = {
        n: infeasible_reason(config, n, process_range.max_processes)
        for n in range(1, process_range.max_processes + 1)
    }
    if why[process_range.min_processes]:
        works = [n for n in why if not why[n]]
        raise BadInput(
            f"{process_range.min_processes} of {process_range.max_processes} "
            "processes cannot run this plan",
            rule="with fewer processes the axis data is shorter, and the batch "
            "divides over it",
            values=why[process_range.min_processes],
            remedy=" or ".join(
                _option_text(n, process_range.max_processes)
                for n in _nearest_feasible(process_range, works)
            ),
        )
    between = {
        n: why[n]
        for n in range(process_range.min_processes, process_range.max_processes + 1)
    }
    return FeasibleCounts(
        counts=tuple(n for n, reason in between.items() if not reason),
        infeasible_reasons=tuple(filter(None, between.values())),
        reports_training=True,
    )


def _check_even_split(config: "Experiment", span: ProcessRange) -> None:
    """Refuse a most that does not share the devices of the plan."""
    devices = config.plan.mesh.devices
    if devices % span.max_processes:
        fits = [n for n in range(1, devices + 1) if devices % n == 0]
        near = min(fits, key=lambda n: (abs(n - span.max_processes), n))
        raise BadInput(
            "the most processes do not share the plan evenly",
            rule="the devices of the plan divide over the most processes",
            values=f"{config.plan.title}: {devices} devices, {span.max_processes} "
            "processes",
            remedy=f"{_option_text(min(span.min_processes, near), near)}, or a plan of "
            f"{span.max_processes * max(1, devices // span.max_processes)} devices",
        )


def _check_batch_norm(config: "Experiment", span: ProcessRange) -> None:
    """Refuse batch statistics that are of as many samples as a device has."""
    if not span.is_fixed and config.model.norm == "replica":
        raise BadInput(
            "batch statistics would be of other samples with fewer processes",
            rule="an elastic run computes the same on any number of processes",
            values="model.norm = replica: of as many samples as a device has",
            remedy=(
                "model.norm=global",
                f"or {_option_text(span.max_processes, span.max_processes)}",
            ),
        )


def infeasible_reason(
    config: "Experiment", num_processes: int, planned_processes: int
) -> str:
    """Say why a configuration does not work on so many processes; empty: it does."""
    try:
        plan = resize_plan(config.plan, num_processes, planned_processes)
        if plan.reduce.via in SCHEDULES and plan.mesh.data > 1:
            SCHEDULES[plan.reduce.via](plan.mesh.data)
    except BadInput as error:
        return f"with {num_processes}, {error.values}"
    if plan.mesh.data == 1 < config.plan.mesh.data and _has_error_feedback(plan):
        return (
            f"with {num_processes}, {plan.title}: nothing is sent along data, and what "
            f"plan.reduce.via = {plan.reduce.via} had not sent has no place"
        )
    batch, parts = config.data.batch, plan.batch_shards * config.optim.accumulate
    if batch % parts:
        broken = f"data.batch = {batch} is no multiple of {parts}"
        return f"with {num_processes}, {plan.title}: {broken}"
    return ""


def _has_error_feedback(plan: "Plan") -> bool:
    """Whether a way that gradients may take leaves something for the next step."""
    ways = plan.reduce.among if plan.reduce.via == "auto" else (plan.reduce.via,)
    return any(way != "exact" and way not in SCHEDULES for way in ways)


def _nearest_feasible(span: ProcessRange, works: Sequence[int]) -> list[int]:
    """Return the numbers that work next to the least one, nearest first."""
    below = [n for n in works if n < span.min_processes][-1:]
    above = [n for n in works if n > span.min_processes][:1]
    return sorted([*above, *below], key=lambda n: abs(n - span.min_processes))


def _option_text(least: int, most: int) -> str:
    return f"-n {least}:{most}" if least < most else f"-n {most}"
