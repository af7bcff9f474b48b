"""Ranking: plans by their predicted step, and why each of the others lost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.text.formatting import format_percent
from jaxdist.oracle.memory import trace_predicts_memory
from jaxdist.oracle.predict import Prediction
from jaxdist.oracle.step_description import StepDescription
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.evaluated_plans import (
    EvaluatedPlan,
    PlanEvaluator,
    no_layout_error,
)
from jaxdist.planner.layouts.partial_remat import search_partial_remat
from jaxdist.planner.layouts.placements import search_placements
from jaxdist.planner.layouts.shortlist import (
    EXACT_ALGORITHMS,
    FEASIBLE_LAYOUTS,
    best_fitting_row,
    best_row_per_mesh,
    best_settings,
    microbatch_neighbours,
    order_by_estimate,
    setting_variants,
    stage_cut_variants,
)
from jaxdist.planner.layouts.space import Column
from jaxdist.planner.layouts.spatial_end import spatial_end_variants

REFINED_PLANS: Final = 3
"""Plans whose other settings are described as well."""
_SPATIAL_END_TOLERANCE: Final = 1.1
"""Other ends of a split are described up to so many times the first plan's step."""
_SAFE_MEMORY_FACTOR: Final = 8
"""A step never needed this many times what its layers say: the most seen is 5.0."""


@dataclass(frozen=True, kw_only=True)
class RejectedLayout:
    """A layout that was described and is not at the top."""

    title: str
    """Of the layout."""
    step_s: float | None
    """Seconds; None where it cannot be run."""
    reason: str
    """In a few words."""


@dataclass(frozen=True, kw_only=True)
class PlanRanking:
    """The layouts of some devices."""

    plans: tuple[EvaluatedPlan, ...]
    """Those that fit, the fastest first."""
    rejected: tuple[RejectedLayout, ...]
    """Well-known ones that are not the first: why not."""
    num_estimated: int
    """Plans that were ordered by the first estimate."""
    num_evaluated: int
    """Plans that were described in full."""


def rank_plans(
    estimate: CostEstimate,
    baselines: Iterable[Plan],
    describe_step: Callable[[Plan], StepDescription],
    *,
    memory_capacity: float | None = None,
    trace_step: Callable[[Plan], StepDescription] | None = None,
) -> PlanRanking:
    """Rank the plans of a space.

    The best settings of the best layouts are described in full, until enough of them
    fit, those in stages with cuts of their own as well, and with other axes side by
    side where that could be fastest; of the first that split images other blocks where
    that ends; of those that come out first, more settings and ways to sum exactly; and
    of those that compute blocks again the longest tail of blocks that need not, where
    no step is traced for a compiler that computes nothing again.

    Args:
        estimate: the space, estimated.
        baselines: layouts whose loss is explained; all of them are described, with the
            best settings that the space has for them.
        describe_step: gives a plan's case; it may refuse.
        memory_capacity: bytes of a device; the device's own where not given.
        trace_step: gives a plan's case with what its traced program keeps; asked for
        the
            first of the ranking where memory may be short, unless every plan has room.

    Raises:
        NoLayout: none of them can be run.
    """
    most = memory_capacity or estimate.cluster.device.memory.value
    heap = PlanEvaluator(
        describe_step=describe_step,
        cluster=estimate.cluster,
        memory_capacity=most,
        needs_margin=estimate.needs_margin,
    )
    order = order_by_estimate(estimate, most)
    best = (best_settings(plan, order, estimate) for plan in baselines)
    asked = {plan.label: plan for plan in best}
    rows = best_row_per_mesh(order, estimate.space)
    _evaluate_shortlist(heap, rows, asked, order, estimate)
    _refine_evaluated(heap, order, estimate)
    traced = trace_step if not estimate.needs_margin else None
    if not traced or not estimate.cluster.device.is_cpu:
        fits = heap.fits_with_margin if traced else heap.evaluate
        search_partial_remat(heap, rows, estimate, REFINED_PLANS, fits)
    heap.keep_best_algorithms(("exact", *EXACT_ALGORITHMS))
    if traced:
        _confirm_memory(heap, traced)
    found = heap.sorted()
    if not found:
        raise no_layout_error(heap.rejection_reasons, heap.missing_bytes, most)
    return PlanRanking(
        plans=tuple(found),
        rejected=tuple(_rejected_layouts(asked, found, heap.rejection_reasons)),
        num_estimated=len(estimate.space),
        num_evaluated=heap.num_evaluated,
    )


def _evaluate_shortlist(
    evaluator: PlanEvaluator,
    rows: Sequence[int],
    baselines: Mapping[str, Plan],
    order: Column,
    estimate: CostEstimate,
) -> None:
    """Describe the best layouts, and those that are asked about."""
    for row in rows:
        _evaluate_row(evaluator, row, order, estimate)
        if len(evaluator.feasible) == FEASIBLE_LAYOUTS:
            break
    for title, plan in baselines.items():
        if not evaluator.evaluate(plan) and True in estimate.space.choices.remat:
            evaluator.retry_with_remat(title, plan)


def _refine_evaluated(
    evaluator: PlanEvaluator, order: Column, estimate: CostEstimate
) -> None:
    """Describe what else may be chosen of the layouts that came out well."""
    for one in evaluator.sorted():
        for plan in stage_cut_variants(one.plan, estimate):
            evaluator.evaluate(plan)
    search_placements(evaluator, estimate)
    _evaluate_variants(evaluator, order, estimate)
    if evaluate_spatial_ends(evaluator, estimate):
        _evaluate_variants(evaluator, order, estimate)
    local_search(evaluator, estimate)
    search_placements(evaluator, estimate)


def local_search(evaluator: PlanEvaluator, estimate: CostEstimate) -> None:
    """Describe the first layouts in stages with other microbatches, while that helps.

    The estimate knows stages of equal FLOPs alone, and how many microbatches are best
    hangs on their cuts.
    """
    staged = (one.plan.mesh for one in evaluator.sorted() if one.plan.stages > 1)
    for mesh in list(dict.fromkeys(staged))[:REFINED_PLANS]:
        last = None
        while (first := _fastest_on_mesh(evaluator, mesh)) != last:
            for plan in microbatch_neighbours(first, estimate):
                evaluator.evaluate(plan)
            last = first


def _evaluate_variants(
    evaluator: PlanEvaluator, order: Column, estimate: CostEstimate
) -> None:
    """Describe other settings of the first plans."""
    for one in evaluator.sorted()[:REFINED_PLANS]:
        for plan in setting_variants(one.plan, order, estimate):
            evaluator.evaluate(plan)


def evaluate_spatial_ends(evaluator: PlanEvaluator, estimate: CostEstimate) -> bool:
    """Describe the first layouts that split images with other ends of the split.

    Those alone whose estimate says that they may be about as fast as the first plan.

    Returns:
        Whether one of them is the first now.
    """
    found = evaluator.sorted()
    best: dict[MeshShape, EvaluatedPlan] = {}
    for one in found:
        if one.plan.mesh.spatial_shards > 1:
            best.setdefault(one.plan.mesh, one)
    for one in list(best.values())[:REFINED_PLANS]:
        room = (
            _SPATIAL_END_TOLERANCE * found[0].prediction.step_s - one.prediction.step_s
        )
        for plan in spatial_end_variants(one.plan, estimate, room):
            evaluator.evaluate(plan)
    return evaluator.sorted()[:1] != found[:1]


def _fastest_on_mesh(evaluator: PlanEvaluator, mesh: MeshShape) -> Plan:
    """Return the fastest plan on a mesh that has one."""
    return next(one.plan for one in evaluator.sorted() if one.plan.mesh == mesh)


def _evaluate_row(
    evaluator: PlanEvaluator, row: int, order: Column, estimate: CostEstimate
) -> None:
    """Describe a row, or one of its layout that should fit where it does not."""
    plan = estimate.space.plan(row)
    if evaluator.evaluate(plan) or plan.label not in evaluator.missing_bytes:
        return
    needed = evaluator.memory_capacity + evaluator.missing_bytes[plan.label]
    row = best_fitting_row(row, needed, evaluator.memory_capacity, order, estimate)
    evaluator.evaluate(estimate.space.plan(row))


def _confirm_memory(
    evaluator: "PlanEvaluator", trace_step: Callable[[Plan], StepDescription]
) -> None:
    """Strike plans from the top until the first is one whose program fits.

    Where one was struck, what layers say of the next is not enough either.
    """
    struck = False
    while evaluator.feasible:
        first = evaluator.sorted()[0]
        if (
            not struck
            and _SAFE_MEMORY_FACTOR * first.prediction.memory_bytes
            <= evaluator.memory_capacity
        ):
            return
        if _is_confirmed(evaluator, first.plan, trace_step):
            return
        struck = True


def _is_confirmed(
    evaluator: PlanEvaluator, plan: Plan, trace_step: Callable[[Plan], StepDescription]
) -> bool:
    """Tell whether a plan fits with a margin, and strike it if not."""
    if trace_predicts_memory(plan, evaluator.cluster.device):
        return evaluator.confirm_traced(plan, trace_step(plan))
    return evaluator.confirm_untraced(plan)


def _rejected_layouts(
    baselines: Mapping[str, Plan],
    feasible: Sequence[EvaluatedPlan],
    rejection_reasons: Mapping[str, str],
) -> Iterable[RejectedLayout]:
    """Yield why each of the well-known layouts is not the first."""
    best = feasible[0]
    by_title = {_layout_key(one.plan): one for one in reversed(feasible)}
    for title, plan in baselines.items():
        one = by_title.get(_layout_key(plan))
        if one is None:
            yield RejectedLayout(
                title=plan.title, step_s=None, reason=rejection_reasons[title]
            )
        elif plan.mesh != best.plan.mesh:
            made = one.prediction
            why = rejection_reason(made, best.prediction)
            yield RejectedLayout(title=plan.title, step_s=made.step_s, reason=why)


def _layout_key(plan: Plan) -> str:
    """Name a plan but for remat, its way of summing and its placement."""
    bare = replace(plan, remat=False, remat_until="", placement=())
    return replace(bare, reduce=plan.reduce.by("exact")).label


def rejection_reason(prediction: Prediction, best: Prediction) -> str:
    """Say which term makes a layout slower than the best, most of all."""
    more = {
        term: took - best.terms_s.get(term, 0.0)
        for term, took in prediction.terms_s.items()
    }
    term = max(more, key=lambda name: more[name])
    share = format_percent(prediction.terms_s[term] / prediction.step_s, 0)
    return f"{term} takes {share} of the step"
