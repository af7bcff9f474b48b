"""Searches around the plans that came out well: what no space of columns lists.

Placement: an axis that is moved to the inside has the links of a host, as far as it
fits into one, and all others come to lie farther apart. Collectives move the same, so a
step is described once and predicted for each placement.

Orders of devices: where a cluster has several kinds, stages of the first blocks stand
on the group that comes first. Each order has cuts of its own.

Partial rematerialization: a plan that fits with all blocks recomputed may have memory
for the activations of some. The backward pass reads those of the last blocks first, so
they stay; of the blocks before, as few are recomputed as memory allows. Memory grows
with that tail, so its first block is found by bisection. Source: Wahib et al. 2020,
arXiv:2008.11421, KARMA: blocks stay from the last one on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from jaxdist.core.axes import AXES
from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.oracle.link_groups import link_group
from jaxdist.oracle.rank_devices import rank_devices, rank_groups
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan, PlanEvaluator
from jaxdist.planner.layouts.shortlist import microbatch_neighbours
from jaxdist.planner.layouts.spatial_end import spatial_end_variants
from jaxdist.planner.layouts.stage_cuts import stage_cut_variants

REFINED_PLANS: Final = 3
"""Plans, or meshes, that are refined."""
_SPATIAL_END_TOLERANCE: Final = 1.1
"""Other ends of a split are described up to so many times the first plan's step."""
_LINK_DEPENDENT_TERMS: Final = ("bubble", "input")
"""Terms beside collectives that depend on the links."""

FitCheck = Callable[[Plan], bool]
"""Describes a plan, and tells whether it fits into memory."""


def local_search(evaluator: PlanEvaluator, estimate: CostEstimate) -> None:
    """Describe the first pipelines with other microbatches, while that helps.

    The estimate knows stages of equal FLOPs alone, and the best number of microbatches
    depends on their cuts.
    """
    # Only the first meshes: each round describes up to four more plans.
    staged = (one.plan.mesh for one in evaluator.sorted() if one.plan.stages > 1)
    for mesh in list(dict.fromkeys(staged))[:REFINED_PLANS]:
        last = None
        while True:
            plans = (one.plan for one in evaluator.sorted() if one.plan.mesh == mesh)
            first = next(plans)
            # Ends where no neighbour beat the first: each round either improves it or
            # stops.
            if first == last:
                break
            for plan in microbatch_neighbours(first, estimate):
                evaluator.evaluate(plan)
            last = first


def evaluate_spatial_ends(evaluator: PlanEvaluator, estimate: CostEstimate) -> bool:
    """Describe the first layouts that split images with other ends of the split.

    Only ends that may be about as fast as the first plan, by their estimate.

    Returns:
        Whether one of them is the first now.
    """
    found = evaluator.sorted()
    best: dict[MeshShape, EvaluatedPlan] = {}
    for one in found:
        # The fastest plan of each mesh, in the order of their steps.
        if one.plan.mesh.spatial_shards > 1:
            best.setdefault(one.plan.mesh, one)
    for one in list(best.values())[:REFINED_PLANS]:
        most = _SPATIAL_END_TOLERANCE * found[0].prediction.step_s
        slack = most - one.prediction.step_s
        for plan in spatial_end_variants(one.plan, estimate, slack):
            evaluator.evaluate(plan)
    return evaluator.sorted()[:1] != found[:1]


def search_placements(evaluator: PlanEvaluator, estimate: CostEstimate) -> None:
    """Try other placements of the layouts that were described, and keep the best.

    One more axis is moved to the inside; asked again it moves another. Placements that
    could not be the fastest step even without the traffic that comes nearer are left
    out.

    Args:
        evaluator: of plans that were described.
        estimate: the space, which says the axes that may be moved.
    """
    inside, cluster = estimate.space.choices.inside, estimate.cluster
    firsts: dict[MeshShape, EvaluatedPlan] = {}
    for one in evaluator.sorted():
        firsts.setdefault(one.plan.mesh, one)
    # A placement has to beat the first of all meshes: one that can only improve a slow
    # mesh is left out.
    best = min((one.prediction.step_s for one in firsts.values()), default=0.0)
    for one in firsts.values():
        able = [
            moved
            for moved in placement_variants(one.plan, inside, cluster)
            if step_lower_bound(one, moved, cluster) < best
        ]
        evaluator.evaluate_placements(one.plan, able)
    evaluator.keep_best(lambda plan: replace(plan, placement=()))


def search_host_orders(evaluator: PlanEvaluator, estimate: CostEstimate) -> None:
    """Try other orders of a cluster's host groups, and keep the best.

    Stages are cut again for each order: blocks that one device computes in time may be
    too many for another. So they are where equal FLOPs lack the memory of one kind.

    Args:
        evaluator: of plans that were described.
        estimate: the space, which says the orders that may be tried.
    """
    orders, cluster = estimate.space.choices.host_orders, estimate.cluster
    if len(cluster.kinds) == 1 and not cluster.has_uneven_links:
        return
    firsts: dict[MeshShape, Plan] = {}
    described = [one.plan for one in evaluator.sorted()]
    for plan in (*described, *evaluator.plans_without_memory):
        firsts.setdefault(plan.mesh, plan)
    for plan in firsts.values():
        # The cuts of a search are those for its own order of devices, so each order
        # starts from what was given.
        whole = replace(
            plan, pipe=replace(plan.pipe, cuts=estimate.space.base.pipe.cuts)
        )
        for one in (whole, *host_order_variants(whole, orders, cluster)):
            for variant in (one, *stage_cut_variants(one, estimate)):
                evaluator.evaluate(variant)
    evaluator.keep_best(lambda plan: replace(plan, host_order=()))


def host_order_variants(
    plan: Plan, orders: Sequence[tuple[str, ...]], cluster: Cluster
) -> Iterator[Plan]:
    """Yield a plan with other orders of host groups, where it stands on others then.

    Args:
        plan: a layout.
        orders: names of groups that come first.
        cluster: with these groups.
    """
    used = [axis for axis in AXES if plan.mesh.size(axis) > 1]
    seen: list[list[object]] = []
    for one in (plan, *(replace(plan, host_order=order) for order in orders)):
        placed = one.placed
        ranks = range(plan.mesh.pipe)
        stands: list[object] = [rank_devices(cluster, placed, rank) for rank in ranks]
        stands += [link_group(cluster, placed, (axis,)) for axis in used]
        # Links of a stage's own devices count too, where they are not all alike.
        if cluster.has_uneven_links:
            stands += [rank_groups(cluster, placed, rank) for rank in ranks]
        if stands not in seen:
            seen.append(stands)
            if len(seen) > 1:
                yield one


def placement_variants(
    plan: Plan, innermost_axes: tuple[str, ...], cluster: Cluster
) -> Iterator[Plan]:
    """Yield a plan with one axis more on the inside, where links then differ.

    Args:
        plan: a layout.
        innermost_axes: axes that may be moved there.
        cluster: whose links they cross.
    """
    used = [axis for axis in AXES if plan.mesh.size(axis) > 1]
    variants = [plan]
    for axis in innermost_axes:
        if axis in used:
            others = tuple(name for name in plan.placement if name != axis)
            variants.append(replace(plan, placement=(*others, axis)))
    links = []
    for one in variants:
        groups = (link_group(cluster, one.placed, (axis,)) for axis in used)
        # A placement that leaves every axis its level and bandwidth costs the same.
        links.append([(group.level, group.bandwidth) for group in groups])
    yield from (one for one, own in zip(variants, links) if own != links[0])


def step_lower_bound(
    evaluated: EvaluatedPlan, variant: Plan, cluster: Cluster
) -> float:
    """Return seconds below which no step is under another placement.

    Collectives along axes that come nearer may take no time, without a wait for them
    or for samples; others take what they took, or longer.

    Args:
        evaluated: a plan and its prediction.
        variant: it under another placement.
        cluster: the machines.
    """
    ranks = range(variant.mesh.pipe)
    before, after = (
        [rank_devices(cluster, plan.placed, rank) for rank in ranks]
        for plan in (evaluated.plan, variant)
    )
    # On other kinds of devices stages may compute as fast as they like.
    if before != after:
        return 0.0
    total = 0.0
    for term, took in evaluated.prediction.terms_s.items():
        what, is_collective, axes = term.partition(", ")
        if not is_collective:
            total += took if what not in _LINK_DEPENDENT_TERMS else 0.0
            continue
        was, now = (
            link_group(cluster, plan.placed, axes.split(" x "))
            for plan in (evaluated.plan, variant)
        )
        # A lower bound may not charge what could become free.
        nearer = now.bandwidth > was.bandwidth or now.alpha < was.alpha
        total += 0.0 if nearer else took
    return total


def search_partial_remat(
    evaluator: PlanEvaluator,
    rows: Sequence[int],
    estimate: CostEstimate,
    fits: FitCheck,
) -> None:
    """Describe the first plans with remat with as long a tail without as fits.

    Stages are one program, whose arrays have room for the largest of them: a tail in
    the last saves nothing, and is not looked for.

    Args:
        evaluator: of plans that were described.
        rows: of the space, the best first, some of which may not fit.
        estimate: says what may be chosen, and the network.
        fits: describes a plan, and tells whether it fits.
    """
    space, memory = estimate.space, estimate.memory_bytes
    if {*space.choices.remat} != {False, True}:
        return
    tried = 0
    for row in rows:
        plan = space.plan(row)
        if plan.stages > 1 or plan.remat or plan.label not in evaluator.missing_bytes:
            continue
        # The estimate may be off by a factor: that of this plan, whose bytes are known.
        alike = (space.mesh == space.mesh[row]) & (space.micro == space.micro[row])
        least = memory[alike & (space.remat == 1)].min()
        needed = evaluator.needed_bytes[plan.label]
        capacity = needed - evaluator.missing_bytes[plan.label]
        if least * needed / memory[row] <= capacity:
            evaluator.evaluate(replace(plan, remat=True))
            tried += 1
        if tried == REFINED_PLANS:
            break
    first: dict[MeshShape, Plan] = {}
    for one in evaluator.sorted():
        if one.plan.stages == 1 and one.plan.remat and not one.plan.remat_end:
            first.setdefault(one.plan.mesh, one.plan)
    for plan in list(first.values())[:REFINED_PLANS]:
        if not fits(plan.without_remat):
            bisect_remat_until(evaluator, plan, estimate.block_costs.block_names, fits)


def bisect_remat_until(
    evaluator: PlanEvaluator, plan: Plan, blocks: Sequence[str], fits: FitCheck
) -> None:
    """Describe a plan with the longest tail of blocks without remat that fits.

    Args:
        evaluator: where it fits with remat of all blocks, and not with none.
        plan: with remat of all blocks.
        blocks: of the network, in order.
        fits: as of `search_partial_remat`.
    """
    # Invariant: remat until `none` does not fit, remat until `all_fit` does.
    none, all_fit = 0, len(blocks)
    while all_fit - none > 1:
        middle = (none + all_fit) // 2
        if fits(replace(plan, remat_end=blocks[middle])):
            if all_fit < len(blocks):
                # A shorter tail that fits is no plan of its own beside a longer one.
                shorter = replace(plan, remat_end=blocks[all_fit])
                del evaluator.feasible[shorter.label]
            all_fit = middle
        else:
            none = middle
