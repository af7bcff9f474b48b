"""Tails: how many of the last blocks keep their insides, where not all can.

A plan that fits with all blocks computed again may have room for the insides of some.
The backward pass reads those of the last blocks first, so they stay; of the blocks
before, as few are computed again as memory allows. Memory grows with the tail, so the
place where it begins is found by bisection.

Source: Wahib et al. 2020, arXiv:2008.11421, KARMA: blocks stay from the last one on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from jaxdist.core.plan import Plan
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.evaluated_plans import PlanEvaluator

FitCheck = Callable[[Plan], bool]
"""Describes a plan, and tells whether it has room enough."""


def search_partial_remat(
    evaluator: PlanEvaluator,
    rows: Sequence[int],
    estimate: CostEstimate,
    count: int,
    fits: FitCheck,
) -> None:
    """Describe the first plans that compute blocks again with as long a tail as fits.

    Stages are one program, whose arrays have room for the largest of them: a tail in
    the last saves nothing, and is not looked for.

    Args:
        evaluator: what was described.
        rows: of the space, the best first, some of which may not fit.
        estimate: says what may be chosen, and the network.
        count: meshes that are looked at, and plans that do not fit.
        fits: describes a plan, and tells whether it has room enough.
    """
    if {*estimate.space.choices.remat} != {False, True}:
        return
    for plan in islice(_out_of_memory_plans(evaluator, rows, estimate), count):
        evaluator.retry_with_remat(plan.label, plan)
    again = [one.plan for one in evaluator.sorted() if _is_full_remat(one.plan)]
    first = {plan.mesh: plan for plan in reversed(again)}
    meshes = dict.fromkeys(plan.mesh for plan in again)
    for plan in [first[mesh] for mesh in islice(meshes, count)]:
        if not fits(replace(plan, remat=False)):
            bisect_remat_until(evaluator, plan, estimate.block_costs.block_names, fits)


def bisect_remat_until(
    evaluator: PlanEvaluator, plan: Plan, blocks: Sequence[str], fits: FitCheck
) -> None:
    """Describe a plan with the longest tail that fits, beside what it is.

    Args:
        evaluator: where it fits with all blocks computed again, and not with none.
        plan: computes all of them again.
        blocks: of the network, in order.
        fits: as of `search_partial_remat`.
    """
    none, all_fit = 0, len(blocks)
    while all_fit - none > 1:
        middle = (none + all_fit) // 2
        if fits(replace(plan, remat_until=blocks[middle])):
            if all_fit < len(blocks):
                evaluator.drop(replace(plan, remat_until=blocks[all_fit]))
            all_fit = middle
        else:
            none = middle


def _out_of_memory_plans(
    evaluator: PlanEvaluator, rows: Sequence[int], estimate: CostEstimate
) -> Iterator[Plan]:
    """Yield plans that lack memory, keep all, and should fit where they keep less."""
    space = estimate.space
    for row in rows:
        plan = space.plan(row)
        if plan.stages > 1 or plan.remat or plan.label not in evaluator.missing_bytes:
            continue
        alike = (space.mesh == space.mesh[row]) & (space.micro == space.micro[row])
        least = estimate.memory_bytes[alike & (space.remat == 1)].min()
        needed = evaluator.memory_capacity + evaluator.missing_bytes[plan.label]
        if least * needed / estimate.memory_bytes[row] <= evaluator.memory_capacity:
            yield plan


def _is_full_remat(plan: Plan) -> bool:
    return plan.stages == 1 and plan.remat and not plan.remat_until
