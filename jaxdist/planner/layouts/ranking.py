"""Ranking: plans by their predicted step, and why each of the others lost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.text.formatting import percent
from jaxdist.oracle.memory import is_told_by_trace
from jaxdist.oracle.predict import Prediction
from jaxdist.oracle.step_description import StepDescription
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.evaluated_plans import (
    EvaluatedPlan,
    PlanEvaluator,
    none_of,
)
from jaxdist.planner.layouts.partial_remat import keep_tails
from jaxdist.planner.layouts.placements import place
from jaxdist.planner.layouts.shortlist import (
    EXACT,
    LAYOUTS,
    at_best,
    first_of,
    neighbours,
    recut,
    shortlist,
    smaller,
    variants,
)
from jaxdist.planner.layouts.space import Column
from jaxdist.planner.layouts.spatial_end import ended

REFINED: Final = 3
"""Plans whose other settings are described as well."""
_NEAR: Final = 1.1
"""Other ends of a split are described up to so many times the first plan's step."""
_SAFE: Final = 8
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


def rank(
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
    order = shortlist(coarse, most)
    best = (at_best(plan, order, coarse) for plan in known)
    asked = {plan.label: plan for plan in best}
    rows = first_of(order, coarse.space)
    _begin(heap, rows, asked, order, coarse)
    _go_on(heap, order, coarse)
    traced = trace if not coarse.roomy else None
    if not traced or not coarse.cluster.device.is_cpu:
        fits = heap.has_room if traced else heap.describe_in_full
        keep_tails(heap, rows, coarse, REFINED, fits)
    heap.drop_slower(("exact", *EXACT))
    if traced:
        _confirm(heap, traced)
    found = heap.sorted()
    if not found:
        raise none_of(heap.refused, heap.short, most)
    return PlanRanking(
        plans=tuple(found),
        lost=tuple(_losses(asked, found, heap.refused)),
        counted=len(coarse.space),
        described=heap.described,
    )


def _begin(
    heap: PlanEvaluator,
    rows: Sequence[int],
    asked: Mapping[str, Plan],
    order: Column,
    coarse: CostEstimate,
) -> None:
    """Describe the best layouts, and those that are asked about."""
    for row in rows:
        _describe(heap, row, order, coarse)
        if len(heap.found) == LAYOUTS:
            break
    for title, plan in asked.items():
        if not heap.describe_in_full(plan) and True in coarse.space.choices.remat:
            heap.again(title, plan)


def _go_on(heap: PlanEvaluator, order: Column, coarse: CostEstimate) -> None:
    """Describe what else may be chosen of the layouts that came out well."""
    for one in heap.sorted():
        for plan in recut(one.plan, coarse):
            heap.describe_in_full(plan)
    place(heap, coarse)
    _refine(heap, order, coarse)
    if end_splits(heap, coarse):
        _refine(heap, order, coarse)
    climb(heap, coarse)
    place(heap, coarse)


def climb(heap: PlanEvaluator, coarse: CostEstimate) -> None:
    """Describe the first layouts in stages with other microbatches, while that helps.

    The estimate knows stages of equal FLOPs alone, and how many microbatches are best
    hangs on their cuts.
    """
    staged = (one.plan.mesh for one in heap.sorted() if one.plan.stages > 1)
    for mesh in list(dict.fromkeys(staged))[:REFINED]:
        last = None
        while (first := _first(heap, mesh)) != last:
            for plan in neighbours(first, coarse):
                heap.describe_in_full(plan)
            last = first


def _refine(heap: PlanEvaluator, order: Column, coarse: CostEstimate) -> None:
    """Describe other settings of the first plans."""
    for one in heap.sorted()[:REFINED]:
        for plan in variants(one.plan, order, coarse):
            heap.describe_in_full(plan)


def end_splits(heap: PlanEvaluator, coarse: CostEstimate) -> bool:
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
    for one in list(best.values())[:REFINED]:
        room = _NEAR * found[0].prediction.step_s - one.prediction.step_s
        for plan in ended(one.plan, coarse, room):
            heap.describe_in_full(plan)
    return heap.sorted()[:1] != found[:1]


def _first(heap: PlanEvaluator, mesh: MeshShape) -> Plan:
    """Return the fastest plan on a mesh that has one."""
    return next(one.plan for one in heap.sorted() if one.plan.mesh == mesh)


def _describe(
    heap: PlanEvaluator, row: int, order: Column, coarse: CostEstimate
) -> None:
    """Describe a row, or one of its layout that should fit where it does not."""
    plan = coarse.space.plan(row)
    if heap.describe_in_full(plan) or plan.label not in heap.short:
        return
    needed = heap.most + heap.short[plan.label]
    row = smaller(row, needed, heap.most, order, coarse)
    heap.describe_in_full(coarse.space.plan(row))


def _confirm(heap: "PlanEvaluator", trace: Callable[[Plan], StepDescription]) -> None:
    """Strike plans from the top until the first is one whose program fits.

    Where one was struck, what layers say of the next is not enough either.
    """
    struck = False
    while heap.found:
        first = heap.sorted()[0]
        if not struck and _SAFE * first.prediction.memory_bytes <= heap.most:
            return
        if _is_confirmed(heap, first.plan, trace):
            return
        struck = True


def _is_confirmed(
    heap: PlanEvaluator, plan: Plan, trace: Callable[[Plan], StepDescription]
) -> bool:
    """Tell whether a plan fits with a margin, and strike it if not."""
    if is_told_by_trace(plan, heap.cluster.device):
        return heap.is_safe(plan, trace(plan))
    return heap.is_roomy(plan)


def _losses(
    asked: Mapping[str, Plan],
    found: Sequence[EvaluatedPlan],
    refused: Mapping[str, str],
) -> Iterable[RejectedLayout]:
    """Yield why each of the well-known layouts is not the first."""
    best = found[0]
    by_title = {_bare(one.plan): one for one in reversed(found)}
    for title, plan in asked.items():
        one = by_title.get(_bare(plan))
        if one is None:
            yield RejectedLayout(title=plan.title, step_s=None, why=refused[title])
        elif plan.mesh != best.plan.mesh:
            made = one.prediction
            why = reason(made, best.prediction)
            yield RejectedLayout(title=plan.title, step_s=made.step_s, why=why)


def _bare(plan: Plan) -> str:
    """Name a plan but for remat, its way of summing and its placement."""
    bare = replace(plan, remat=False, remat_until="", placement=())
    return replace(bare, reduce=plan.reduce.by("exact")).label


def reason(one: Prediction, best: Prediction) -> str:
    """Say which term makes a layout slower than the best, most of all."""
    more = {
        term: took - best.terms_s.get(term, 0.0) for term, took in one.terms_s.items()
    }
    term = max(more, key=lambda name: more[name])
    share = percent(one.terms_s[term] / one.step_s, 0)
    return f"{term} takes {share} of the step"
