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
    lost: tuple[tuple[int, RejectedLayout], ...]
    """Devices, and well-known layouts that are not the first of as many: why not."""
    counted: int
    """Plans that were ordered by the first estimate."""
    described: int
    """Plans that were described in full."""


def merge_rankings(
    rankings: Mapping[int, PlanRanking],
    refused: Mapping[int, str],
    objective: PlanObjective,
) -> MergedRanking:
    """Put rankings together.

    Args:
        rankings: by their number of devices.
        refused: why nothing can be run on other numbers of devices.
        objective: orders plans; of equal ones that of the first ranking is first.
    """
    plans = [one for ranking in rankings.values() for one in ranking.plans]
    lost = [(count, x) for count, ranking in rankings.items() for x in ranking.lost]
    lost += [
        (count, RejectedLayout(title=f"all of {count:,} devices", step_s=None, why=why))
        for count, why in refused.items()
    ]
    return MergedRanking(
        plans=tuple(sorted(plans, key=objective.of)),
        lost=tuple(lost),
        counted=sum(ranking.counted for ranking in rankings.values()),
        described=sum(ranking.described for ranking in rankings.values()),
    )
