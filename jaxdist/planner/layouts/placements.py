"""Placements: which axes of a layout lie side by side in a host, chosen by its links.

An axis that is moved to the inside has the links of a host, as far as it fits into one,
and all others come to lie farther apart. What collectives move stays the same, so a
step is described once and predicted for each placement.
"""

from collections.abc import Iterator
from dataclasses import replace

from jaxdist.core.axes import AXES
from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.oracle.link_groups import link_group
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan, PlanEvaluator

_LINK_DEPENDENT_TERMS = ("bubble", "input")
"""Terms beside collectives that hang on how fast links are."""


def search_placements(evaluator: PlanEvaluator, estimate: CostEstimate) -> None:
    """Try other placements of the layouts that were described, and keep the best.

    One more axis is moved to the inside; asked again it moves another. What could not
    be the fastest step if all that comes nearer took no time is left out.

    Args:
        evaluator: of plans that were described.
        estimate: the space, which says the axes that may be moved.
    """
    inside, cluster = estimate.space.choices.inside, estimate.cluster
    firsts = list(_best_per_mesh(evaluator))
    best = firsts[0].prediction.step_s if firsts else 0.0
    for one in firsts:
        found = placement_variants(one.plan, inside, cluster)
        able = [
            moved for moved in found if step_lower_bound(one, moved, cluster) < best
        ]
        evaluator.evaluate_placements(one.plan, able)
    evaluator.keep_best_placements()


def placement_variants(
    plan: Plan, innermost_axes: tuple[str, ...], cluster: Cluster
) -> Iterator[Plan]:
    """Yield a plan with one axis more on the inside, where links then differ.

    Args:
        plan: a layout.
        innermost_axes: axes that may be moved there.
        cluster: whose links they cross.
    """
    before = _axis_links(plan, cluster)
    for axis in innermost_axes:
        others = tuple(name for name in plan.placement if name != axis)
        moved = replace(plan, placement=(*others, axis))
        if plan.mesh.size(axis) > 1 and _axis_links(moved, cluster) != before:
            yield moved


def step_lower_bound(
    evaluated: EvaluatedPlan, variant: Plan, cluster: Cluster
) -> float:
    """Return seconds below which no step is under another placement.

    Collectives along axes that come nearer may take no time, and nobody waits for them
    or for samples; others take what they took, or longer.

    Args:
        evaluated: a plan and its prediction.
        variant: it under another placement.
        cluster: the machines.
    """
    total = 0.0
    for term, took in evaluated.prediction.terms_s.items():
        what, talks, axes = term.partition(", ")
        if not talks:
            total += took if what not in _LINK_DEPENDENT_TERMS else 0.0
            continue
        was, now = (
            link_group(cluster, plan.placed, axes.split(" x "))
            for plan in (evaluated.plan, variant)
        )
        nearer = now.bandwidth > was.bandwidth or now.alpha < was.alpha
        total += 0.0 if nearer else took
    return total


def _best_per_mesh(evaluator: PlanEvaluator) -> Iterator[EvaluatedPlan]:
    """Yield the fastest plan of each mesh that has one."""
    seen: set[MeshShape] = set()
    for one in evaluator.sorted():
        if one.plan.mesh not in seen:
            seen.add(one.plan.mesh)
            yield one


def _axis_links(plan: Plan, cluster: Cluster) -> list[tuple[str, float]]:
    """Return the level and the rate that each axis has."""
    used = (axis for axis in AXES if plan.mesh.size(axis) > 1)
    groups = (link_group(cluster, plan.placed, (axis,)) for axis in used)
    return [(group.level, group.bandwidth) for group in groups]
