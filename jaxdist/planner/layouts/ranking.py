"""The search for a plan: plans ranked by their predicted step, and why others lost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.core.plan import Plan
from jaxdist.core.profile import Profile
from jaxdist.core.text.formatting import format_percent
from jaxdist.oracle.memory import trace_predicts_memory
from jaxdist.oracle.predict import predict
from jaxdist.oracle.step_description import StepDescription
from jaxdist.planner.layouts.activation_policies import search_activation_policies
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan, PlanEvaluator
from jaxdist.planner.layouts.objective import PlanObjective
from jaxdist.planner.layouts.refinement import (
    REFINED_PLANS,
    evaluate_spatial_ends,
    local_search,
    search_host_orders,
    search_partial_remat,
    search_placements,
)
from jaxdist.planner.layouts.shortlist import (
    EXACT_ALGORITHMS,
    FEASIBLE_LAYOUTS,
    best_fitting_row,
    best_row_per_mesh,
    best_settings,
    order_by_estimate,
    setting_variants,
)
from jaxdist.planner.layouts.stage_cuts import stage_cut_variants

_SAFE_MEMORY_FACTOR: Final = 8
"""Times its predicted bytes that no step ever needed: the most seen is 5.0."""


@dataclass(frozen=True, kw_only=True)
class RejectedLayout:
    """A layout that was described and is not the first."""

    title: str
    """Of the layout."""
    step_s: float | None
    """Seconds; None where it cannot be run."""
    reason: str
    """In a few words."""
    interval_s: tuple[float, float] | None = None
    """Its 90 % interval, seconds; None where it cannot be run."""


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


def rank_plans(
    estimate: CostEstimate,
    baselines: Iterable[Plan],
    describe_step: Callable[[Plan], StepDescription],
    *,
    memory_capacity: float | None = None,
    trace_step: Callable[[Plan], StepDescription] | None = None,
) -> PlanRanking:
    """Rank the plans of a space.

    The best settings of the best layouts are described in full and predicted, until
    enough of them fit. Those that come out well are refined: pipelines with cuts of
    their own and other microbatches, other axes side by side in a host, other ends of
    the split of images, more settings and all-reduce algorithms, and with remat the
    longest tail of blocks that fits without.

    Args:
        estimate: the space, estimated.
        baselines: layouts whose loss is explained; all of them are described, with the
            best settings that the space has for them.
        describe_step: describes a plan's step; it may refuse the plan.
        memory_capacity: bytes of a device; the device's own where not given.
        trace_step: describes a plan's step with its traced memory; asked for the first
            of the ranking where memory may be short.

    Raises:
        NoLayoutError: none of them can be run.
    """
    space, cluster = estimate.space, estimate.cluster
    profile = estimate.block_costs.profile
    most = memory_capacity or estimate.memory_capacity
    evaluator = PlanEvaluator(
        describe_step=describe_step,
        cluster=cluster,
        memory_capacity=memory_capacity,
        needs_margin=estimate.needs_margin,
    )
    # First the layouts: of each mesh the best row, until enough of them fit.
    order = order_by_estimate(estimate, most)
    rows = best_row_per_mesh(order, space)
    for row in rows:
        plan = space.plan(row)
        if not evaluator.evaluate(plan) and plan.label in evaluator.missing_bytes:
            # The estimate of memory was too low. Other settings of the layout are off
            # by as much, so the best that should fit then is tried once.
            needed = evaluator.needed_bytes[plan.label]
            room = needed - evaluator.missing_bytes[plan.label]
            other = best_fitting_row(row, needed, room, order, estimate)
            evaluator.evaluate(space.plan(other))
        if len(evaluator.feasible) == FEASIBLE_LAYOUTS:
            break
    best = (best_settings(plan, order, estimate) for plan in baselines)
    asked = {plan.label: plan for plan in best}
    evaluator.evaluate_all(asked.values())
    # A well-known layout that lacks memory may fit with remat, and then its time says
    # why it is not the first.
    if True in space.choices.remat:
        evaluator.evaluate_all(
            replace(plan, remat=True)
            for title, plan in asked.items()
            if title in evaluator.missing_bytes and not plan.remat
        )

    # The order matters: cuts decide which layouts are fast, placements which links they
    # use, and only of the first few more settings are worth their time.
    for one in evaluator.sorted():
        evaluator.evaluate_all(stage_cut_variants(one.plan, estimate))
    search_host_orders(evaluator, estimate)
    search_placements(evaluator, estimate)
    for one in evaluator.sorted()[:REFINED_PLANS]:
        evaluator.evaluate_all(setting_variants(one.plan, order, estimate))
    # A new first plan has not had its settings tried.
    if evaluate_spatial_ends(evaluator, estimate):
        for one in evaluator.sorted()[:REFINED_PLANS]:
            evaluator.evaluate_all(setting_variants(one.plan, order, estimate))
    local_search(evaluator, estimate)
    search_placements(evaluator, estimate)

    # XLA's CPU backend saves no memory by remat, so where its trace decides no tail is
    # looked for.
    traced = trace_step if not estimate.needs_margin else None
    if not traced or not cluster.device.is_cpu:
        fits = evaluator.fits_with_margin if traced else evaluator.evaluate
        search_partial_remat(evaluator, rows, estimate, fits)
        typed = space.base.remat_saves or space.base.offload
        if True in space.choices.remat and not typed:
            search_activation_policies(evaluator, profile, fits)
    # Lossless all-reduce algorithms and placements train the same network, so of plans
    # that differ in these alone one is enough. Lossy ways stay beside each other.
    exact = ("exact", *EXACT_ALGORITHMS)
    evaluator.keep_best(
        lambda plan: (
            replace(plan, reduce=plan.reduce.by("exact"), placement=())
            if plan.reduce.algorithm in exact
            else None
        )
    )
    if traced:
        names = estimate.block_costs.block_names
        _confirm_memory(evaluator, traced, profile, names)
    found = evaluator.sorted()
    if not found:
        raise evaluator.no_layout_error
    return PlanRanking(
        plans=tuple(found),
        rejected=tuple(_rejected_layouts(asked, found, evaluator.rejection_reason)),
        num_estimated=len(space),
        num_evaluated=evaluator.num_evaluated,
    )


def _confirm_memory(
    evaluator: PlanEvaluator,
    trace_step: Callable[[Plan], StepDescription],
    profile: Profile,
    blocks: Sequence[str],
) -> None:
    """Drop plans from the top until the program of the first one fits.

    A plan whose last blocks are kept comes again with fewer of them.

    Args:
        evaluator: of plans that were described.
        trace_step: as of `rank_plans`.
        profile: of the network.
        blocks: its blocks, in order.
    """
    dropped = False
    while evaluator.feasible:
        first = evaluator.sorted()[0]
        plan, prediction = first.plan, first.prediction
        # Tracing takes seconds, so plans far below the limit are not traced; but where
        # one was dropped, the prediction of the next is not enough either.
        capacity = evaluator.capacity_of(prediction)
        if not dropped and _SAFE_MEMORY_FACTOR * prediction.memory_bytes <= capacity:
            return
        if trace_predicts_memory(plan, evaluator.cluster.device, profile):
            prediction = predict(trace_step(plan), evaluator.cluster)
            needed, how = prediction.traced_bytes_with_margin, ", traced"
        else:
            needed, how = prediction.untraced_bytes_with_margin, ", not traced"
        if evaluator.record_fit(plan, prediction, needed, how):
            return
        dropped = True
        if plan.remat_end and plan.stages == 1:
            whole = evaluator.feasible.get(replace(plan, remat_end="").label)
            least = whole.prediction.untraced_bytes_with_margin if whole else needed
            until = shorter_tail(blocks, plan.remat_end, least, needed, capacity)
            if until:
                evaluator.evaluate(replace(plan, remat_end=until))


def shorter_tail(
    blocks: Sequence[str], until: str, least: float, needed: float, capacity: float
) -> str:
    """Return the block until which remat fits, if each block's inside is as large.

    Args:
        blocks: of the network, in order.
        until: block until which it needs too much.
        least: bytes with remat of all blocks.
        needed: bytes with remat until that block, more than `capacity`.
        capacity: bytes of the device.

    Returns:
        A later block; empty where no tail fits.

    >>> shorter_tail(["a", "b", "c", "d"], "b", 10, 40, 30)
    'c'
    """
    if needed <= least or capacity <= least:
        return ""
    tail = len(blocks) - blocks.index(until)
    kept = int(tail * (capacity - least) / (needed - least))
    return blocks[len(blocks) - min(kept, tail - 1)] if kept and tail > 1 else ""


def _rejected_layouts(
    baselines: Mapping[str, Plan],
    feasible: Sequence[EvaluatedPlan],
    rejection_reason: Callable[[str], str],
) -> Iterable[RejectedLayout]:
    """Yield why each of the well-known layouts is not the first."""
    best, fastest = feasible[0], dict[str, EvaluatedPlan]()
    keys = {}
    for plan in (*(one.plan for one in feasible), *baselines.values()):
        # The layout alone: without remat, its all-reduce algorithm and its placement.
        bare = replace(plan.without_remat, placement=(), host_order=())
        keys[plan] = replace(bare, reduce=plan.reduce.by("exact")).label
    for one in feasible:
        fastest.setdefault(keys[one.plan], one)
    for title, plan in baselines.items():
        found = fastest.get(keys[plan])
        if found is None:
            reason = rejection_reason(title)
            yield RejectedLayout(title=plan.title, step_s=None, reason=reason)
        elif plan.mesh != best.plan.mesh:
            # The term that exceeds the best plan's by most.
            terms, least = found.prediction.terms_s, best.prediction.terms_s
            more = {term: took - least.get(term, 0.0) for term, took in terms.items()}
            term, step_s = (
                max(more, key=lambda name: more[name]),
                found.prediction.step_s,
            )
            share = format_percent(terms[term] / step_s, 0)
            reason = f"{term} takes {share} of the step"
            yield RejectedLayout(
                title=plan.title,
                step_s=step_s,
                reason=reason,
                interval_s=found.prediction.interval_s,
            )


def merge_rankings(
    rankings: Mapping[int, PlanRanking],
    rejection_reasons: Mapping[int, str],
    objective: PlanObjective,
) -> MergedRanking:
    """Merge the rankings of several numbers of devices.

    Args:
        rankings: by their number of devices.
        rejection_reasons: why nothing can be run on other numbers of devices.
        objective: orders plans; of equal ones that of the first ranking is first.
    """
    plans = [one for ranking in rankings.values() for one in ranking.plans]
    lost = [(count, x) for count, ranking in rankings.items() for x in ranking.rejected]
    for count, why in rejection_reasons.items():
        title = f"all of {count:,} devices"
        lost.append((count, RejectedLayout(title=title, step_s=None, reason=why)))
    return MergedRanking(
        # sorted is stable, which keeps the first ranking in front among equals.
        plans=tuple(sorted(plans, key=objective.value)),
        rejected=tuple(lost),
        num_estimated=sum(ranking.num_estimated for ranking in rankings.values()),
        num_evaluated=sum(ranking.num_evaluated for ranking in rankings.values()),
    )
