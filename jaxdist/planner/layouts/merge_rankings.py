"""Merging: rankings of several numbers of devices, as one by an objective."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan
from jaxdist.planner.layouts.objective import PlanObjective
from jaxdist.planner.layouts.ranking import PlanRanking, RejectedLayout


@dataclass(frozen=True, kw_only=True)
class MergedRanking:
    """The layouts of one or several numbers of devices."""

    plans: tuple[EvaluatedPlan, ...]
    """Those that fit, the best by the objective first."""
    rejected: tuple[tuple[int, RejectedLayout], ...]
    """Devices, and well-known layouts that are not the first of as many: why not."""
    num_estimated: int
    """Plans that were ordered by the first estimate."""
    num_evaluated: int
    """Plans that were described in full."""


def merge_rankings(
    rankings: Mapping[int, PlanRanking],
    rejection_reasons: Mapping[int, str],
    objective: PlanObjective,
) -> MergedRanking:
    """Put rankings together.

    Args:
        rankings: by their number of devices.
        rejection_reasons: why nothing can be run on other numbers of devices.
        objective: orders plans; of equal ones that of the first ranking is first.
    """
    plans = [one for ranking in rankings.values() for one in ranking.plans]
    lost = [(count, x) for count, ranking in rankings.items() for x in ranking.rejected]
    lost += [
        (
            count,
            RejectedLayout(title=f"all of {count:,} devices", step_s=None, reason=why),
        )
        for count, why in rejection_reasons.items()
    ]
    return MergedRanking(
        plans=tuple(sorted(plans, key=objective.value)),
        rejected=tuple(lost),
        num_estimated=sum(ranking.num_estimated for ranking in rankings.values()),
        num_evaluated=sum(ranking.num_evaluated for ranking in rankings.values()),
    )
