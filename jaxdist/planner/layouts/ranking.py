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
    why: str
    """In a few words."""


@dataclass(frozen=True, kw_only=True)
class PlanRanking:
    """The layouts of some devices."""

    plans: tuple[EvaluatedPlan, ...]
    """Those that fit, the fastest first."""
    lost: tuple[RejectedLayout, ...]
    """Well-known ones that are not the first: why not."""
    counted: int
    """Plans that were ordered by the first estimate."""
    described: int
    """Plans that were described in full."""


def rank_plans(
    coarse: CostEstimate,
    known: Iterable[Plan],
    describe: Callable[[Plan], StepDescription],
    *,
    room: float | None = None,
    trace: Callable[[Plan], StepDescription] | None = None,
) -> PlanRanking:
    """Rank the plans of a space.

    The best settings of the best layouts are described in full, until enough of them
    fit, those in stages with cuts of their own as well, and with other axes side by
    side where that could be fastest; of the first that split images other blocks where
    that ends; of those that come out first, more settings and ways to sum exactly; and
    of those that compute blocks again the longest tail of blocks that need not, where
    no step is traced for a compiler that computes nothing again.

    Args:
        coarse: the space, estimated.
        known: layouts whose loss is explained; all of them are described, with the
            best settings that the space has for them.
        describe: gives a plan's case; it may refuse.
        room: bytes of a device; the device's own where not given.
        trace: gives a plan's case with what its traced program keeps; asked for the
            first of the ranking where memory may be short, unless every plan has room.

    Raises:
        NoLayout: none of them can be run.
    """
    most = room or coarse.cluster.device.memory.value
    heap = PlanEvaluator(
        describe=describe, cluster=coarse.cluster, most=most, roomy=coarse.roomy
    )
    order = order_by_estimate(coarse, most)
    best = (best_settings(plan, order, coarse) for plan in known)
    asked = {plan.label: plan for plan in best}
    rows = best_row_per_mesh(order, coarse.space)
    _evaluate_shortlist(heap, rows, asked, order, coarse)
    _refine_evaluated(heap, order, coarse)
    traced = trace if not coarse.roomy else None
    if not traced or not coarse.cluster.device.is_cpu:
        fits = heap.has_room if traced else heap.describe_in_full
        search_partial_remat(heap, rows, coarse, REFINED_PLANS, fits)
    heap.drop_slower(("exact", *EXACT_ALGORITHMS))
    if traced:
        _confirm_memory(heap, traced)
    found = heap.sorted()
    if not found:
        raise no_layout_error(heap.refused, heap.short, most)
    return PlanRanking(
        plans=tuple(found),
        lost=tuple(_rejected_layouts(asked, found, heap.refused)),
        counted=len(coarse.space),
        described=heap.described,
    )


def _evaluate_shortlist(
    heap: PlanEvaluator,
    rows: Sequence[int],
    asked: Mapping[str, Plan],
    order: Column,
    coarse: CostEstimate,
) -> None:
    """Describe the best layouts, and those that are asked about."""
    for row in rows:
        _evaluate_row(heap, row, order, coarse)
        if len(heap.found) == FEASIBLE_LAYOUTS:
            break
    for title, plan in asked.items():
        if not heap.describe_in_full(plan) and True in coarse.space.choices.remat:
            heap.again(title, plan)


def _refine_evaluated(heap: PlanEvaluator, order: Column, coarse: CostEstimate) -> None:
    """Describe what else may be chosen of the layouts that came out well."""
    for one in heap.sorted():
        for plan in stage_cut_variants(one.plan, coarse):
            heap.describe_in_full(plan)
    search_placements(heap, coarse)
    _evaluate_variants(heap, order, coarse)
    if evaluate_spatial_ends(heap, coarse):
        _evaluate_variants(heap, order, coarse)
    local_search(heap, coarse)
    search_placements(heap, coarse)


def local_search(heap: PlanEvaluator, coarse: CostEstimate) -> None:
    """Describe the first layouts in stages with other microbatches, while that helps.

    The estimate knows stages of equal FLOPs alone, and how many microbatches are best
    hangs on their cuts.
    """
    staged = (one.plan.mesh for one in heap.sorted() if one.plan.stages > 1)
    for mesh in list(dict.fromkeys(staged))[:REFINED_PLANS]:
        last = None
        while (first := _fastest_on_mesh(heap, mesh)) != last:
            for plan in microbatch_neighbours(first, coarse):
                heap.describe_in_full(plan)
            last = first


def _evaluate_variants(
    heap: PlanEvaluator, order: Column, coarse: CostEstimate
) -> None:
    """Describe other settings of the first plans."""
    for one in heap.sorted()[:REFINED_PLANS]:
        for plan in setting_variants(one.plan, order, coarse):
            heap.describe_in_full(plan)


def evaluate_spatial_ends(heap: PlanEvaluator, coarse: CostEstimate) -> bool:
    """Describe the first layouts that split images with other ends of the split.

    Those alone whose estimate says that they may be about as fast as the first plan.

    Returns:
        Whether one of them is the first now.
    """
    found = heap.sorted()
    best: dict[MeshShape, EvaluatedPlan] = {}
    for one in found:
        if one.plan.mesh.spatial_shards > 1:
            best.setdefault(one.plan.mesh, one)
    for one in list(best.values())[:REFINED_PLANS]:
        room = (
            _SPATIAL_END_TOLERANCE * found[0].prediction.step_s - one.prediction.step_s
        )
        for plan in spatial_end_variants(one.plan, coarse, room):
            heap.describe_in_full(plan)
    return heap.sorted()[:1] != found[:1]


def _fastest_on_mesh(heap: PlanEvaluator, mesh: MeshShape) -> Plan:
    """Return the fastest plan on a mesh that has one."""
    return next(one.plan for one in heap.sorted() if one.plan.mesh == mesh)


def _evaluate_row(
    heap: PlanEvaluator, row: int, order: Column, coarse: CostEstimate
) -> None:
    """Describe a row, or one of its layout that should fit where it does not."""
    plan = coarse.space.plan(row)
    if heap.describe_in_full(plan) or plan.label not in heap.short:
        return
    needed = heap.most + heap.short[plan.label]
    row = best_fitting_row(row, needed, heap.most, order, coarse)
    heap.describe_in_full(coarse.space.plan(row))


def _confirm_memory(
    heap: "PlanEvaluator", trace: Callable[[Plan], StepDescription]
) -> None:
    """Strike plans from the top until the first is one whose program fits.

    Where one was struck, what layers say of the next is not enough either.
    """
    struck = False
    while heap.found:
        first = heap.sorted()[0]
        if (
            not struck
            and _SAFE_MEMORY_FACTOR * first.prediction.memory_bytes <= heap.most
        ):
            return
        if _is_confirmed(heap, first.plan, trace):
            return
        struck = True


def _is_confirmed(
    heap: PlanEvaluator, plan: Plan, trace: Callable[[Plan], StepDescription]
) -> bool:
    """Tell whether a plan fits with a margin, and strike it if not."""
    if trace_predicts_memory(plan, heap.cluster.device):
        return heap.is_safe(plan, trace(plan))
    return heap.is_roomy(plan)


def _rejected_layouts(
    asked: Mapping[str, Plan],
    found: Sequence[EvaluatedPlan],
    refused: Mapping[str, str],
) -> Iterable[RejectedLayout]:
    """Yield why each of the well-known layouts is not the first."""
    best = found[0]
    by_title = {_layout_key(one.plan): one for one in reversed(found)}
    for title, plan in asked.items():
        one = by_title.get(_layout_key(plan))
        if one is None:
            yield RejectedLayout(title=plan.title, step_s=None, why=refused[title])
        elif plan.mesh != best.plan.mesh:
            made = one.prediction
            why = rejection_reason(made, best.prediction)
            yield RejectedLayout(title=plan.title, step_s=made.step_s, why=why)


def _layout_key(plan: Plan) -> str:
    """Name a plan but for remat, its way of summing and its placement."""
    bare = replace(plan, remat=False, remat_until="", placement=())
    return replace(bare, reduce=plan.reduce.by("exact")).label


def rejection_reason(one: Prediction, best: Prediction) -> str:
    """Say which term makes a layout slower than the best, most of all."""
    more = {
        term: took - best.terms_s.get(term, 0.0) for term, took in one.terms_s.items()
    }
    term = max(more, key=lambda name: more[name])
    share = format_percent(one.terms_s[term] / one.step_s, 0)
    return f"{term} takes {share} of the step"
