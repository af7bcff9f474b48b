"""PipeDream's stages of a graph on devices, and what they cost.

Times are seconds for a minibatch in the steady state: the slowest of all stages and
cuts. Bytes are what all devices send for a minibatch: a ring all-reduce over m copies
of W bytes is 2 (m - 1) / m W, a cut 2 A.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_size
from jaxdist.planner.stages.cut_points import (
    CutPoints,
    all_cut_points,
    ordered_cut_points,
    useful_cut_mask,
)
from jaxdist.planner.stages.graph_contraction import ContractedGraph, contract_graph
from jaxdist.planner.stages.memory import minibatches_in_flight
from jaxdist.planner.stages.search import (
    LevelAllocation,
    PipeDreamSolver,
    check_search_cost,
)
from jaxdist.planner.stages.stage_plan import StageAllocation, StagePlan, StageQuery

_BISECTION_STEPS: Final = 12
"""Halvings of the range in which the least memory lies."""
EnclosingAllocation = tuple[int, int, int]
"""Copies, place before and place behind of a part."""


def partition_graph(query: StageQuery) -> StagePlan:
    """Return the stages whose slowest is fastest.

    Raises:
        BadInput: none fits, or there is too much to look at.
    """
    graph, levels, budget = query.graph, query.levels, query.memory_budget
    # The search between neighbours is fast, and its answer is needed either way: as the
    # plan, or as the bound that cuts down the sets of nodes.
    places = ordered_cut_points(graph)
    check_search_cost(len(places), levels)
    solver = _make_solver(query, places, budget.limit)
    nodes = ContractedGraph(
        graph=graph, merged_nodes={n.name: (n.name,) for n in graph.nodes}
    )
    if query.cuts == "any" and not graph.is_chain:
        # The plan between neighbours of one order bounds the sets that are looked at.
        fewer = contract_graph(graph, memory_limited=budget.is_limited)
        useful = all_cut_points(
            fewer.graph,
            lambda found: useful_cut_mask(
                found, levels, query.cost_convention, solver.seconds
            ),
            multi_level=len(levels) > 1,
        )
        wider = _make_solver(query, useful, budget.limit)
        # Contraction loses stages without work, so the ordered plan may be the faster
        # one.
        if wider.seconds <= solver.seconds:
            solver, nodes = wider, fewer
    if not math.isfinite(solver.seconds):
        raise _infeasible_error(query, solver)

    places, parts = solver.cut_points, solver.allocations
    # All nodes on all devices, for comparison.
    whole, own = float(places.seconds[-1]), [tier.size for tier in levels]
    everywhere = [(size, 0, len(places) - 1) for size in own]
    weights = float(places.parameters[-1])
    # The recurrences use all devices, where fewer may be faster.
    subset = None
    if not budget.is_limited:
        times = solver.seconds_by_size
        best = int(np.argmin(times))
        if times[best] < solver.seconds * (1 - 1e-9):
            subset = math.prod(own[:-1]) * (best + 1), float(times[best])
    return StagePlan(
        query=query,
        stages=tuple(_stage_allocations(query, places, parts, nodes)),
        config=_config_text(parts),
        seconds=solver.seconds,
        single_device_seconds=whole,
        data_parallel_seconds=_outer_seconds(query, places, whole, everywhere),
        sent_bytes=_sent_bytes(places, parts),
        # A ring on each level, over the components of that level.
        data_parallel_bytes=sum(2 * (size - 1) / size * weights for size in own),
        faster_subset=subset,
        cut_point_count=len(places),
    )


def _make_solver(
    query: StageQuery, cut_points: CutPoints, memory_limit: float
) -> PipeDreamSolver:
    return PipeDreamSolver(
        cut_points,
        query.levels,
        query.cost_convention,
        replace(query.memory_budget, limit=memory_limit),
        straight_pipeline=query.straight_pipeline,
    )


def _infeasible_error(query: StageQuery, solver: PipeDreamSolver) -> BadInput:
    """Return the refusal of a search that found nothing, with what would lift it."""
    places, budget, source = solver.cut_points, query.memory_budget, query.graph.source
    devices, room = query.devices, len(places) - 1
    if query.straight_pipeline and devices > room:
        return BadInput(
            "there are more devices than stages",
            rule="--straight has a stage of at least a node on each device",
            values=f"--workers {devices}, {source} can be cut into {room}",
            remedy=(f"--workers {room}", "no --straight: stages with replicas"),
        )
    # The limit is not enough, and everything on each device is: the least memory lies
    # between, and is found by bisection of its logarithm.
    most = sum(float(sums[-1]) for sums in (places.output_bytes, places.parameters))
    low, high = budget.limit, most * (devices + 1)
    for _ in range(_BISECTION_STEPS):
        middle = math.sqrt(max(low, high / 1e6) * high)
        if math.isfinite(_make_solver(query, places, middle).seconds):
            high = middle
        else:
            low = middle
    # Rounded up to three digits, as the remedy is written.
    step = 10.0 ** (math.floor(math.log10(high)) - 2)
    least = math.ceil(high / step) * step
    return BadInput(
        f"out of memory by {format_size(least - budget.limit)} on every plan",
        rule=f"a device holds what is in flight ({budget.model} model)",
        values=f"--memory {budget.limit:g}, {devices} devices, {source}",
        remedy=(f"--memory {least:.3g}", "a profile of a smaller minibatch"),
    )


def _outer_seconds(
    query: StageQuery,
    cut_points: CutPoints,
    seconds: float,
    enclosing: Sequence[EnclosingAllocation],
) -> float:
    """Return what seconds inside of parts are outside of them.

    Args:
        query: has the cost convention and the levels.
        cut_points: what weights lie between.
        seconds: of the innermost.
        enclosing: parts, innermost first; the last is of the outermost level.
    """
    # Each level outside adds the sum of gradients over its copies.
    for tier, (copies, start, end) in zip(query.levels[-len(enclosing) :], enclosing):
        weights = cut_points.parameters[end] - cut_points.parameters[start]
        value, bytes_ = np.array(seconds), np.array(weights)
        seconds = float(
            query.cost_convention.stage_seconds(value, bytes_, copies, tier.bandwidth)
        )
    return seconds


def _device_allocations(
    allocations: Sequence[LevelAllocation], enclosing: tuple[LevelAllocation, ...] = ()
) -> Iterator[tuple[LevelAllocation, tuple[LevelAllocation, ...]]]:
    """Yield the parts that are on devices, each with those around it, inside out."""
    for part in allocations:
        if part.inner:
            yield from _device_allocations(part.inner, (part, *enclosing))
        else:
            yield part, (part, *enclosing)


def _stage_allocations(
    query: StageQuery,
    cut_points: CutPoints,
    allocations: Sequence[LevelAllocation],
    contraction: ContractedGraph,
) -> Iterator[StageAllocation]:
    order = [query.graph.nodes[i].name for i in query.graph.order]
    cost, levels, done = query.cost_convention, query.levels, set[str]()
    for leaf, line in _device_allocations(allocations):
        around = [(part.replicas, part.start, part.end) for part in line]
        compute, kept, parameters = (
            float(sums[leaf.end] - sums[leaf.start])
            for sums in (
                cut_points.seconds,
                cut_points.saved_bytes,
                cut_points.parameters,
            )
        )
        kept += float(cut_points.passed_bytes[leaf.start])
        # Nodes before the end of this part that no part in front of it has: with sets
        # of nodes a stage is no run of the order.
        held = {*contraction.first_stage_nodes} - done
        for i, node in enumerate(contraction.graph.nodes):
            if cut_points.node_masks[leaf.end] >> i & 1:
                held |= {*contraction.merged_nodes[node.name]} - done
        done |= held
        crossing, cut = float(cut_points.crossing_bytes[leaf.start]), 0.0
        if leaf.start:
            # The cut in front of a leaf is one of the outermost level on which a part
            # begins there, and not before.
            begins = max(k for k, part in enumerate(line) if part.start == leaf.start)
            rate, copies = levels[begins].bandwidth, line[begins].replicas
            cut = float(cost.cut_seconds(np.array(crossing), copies, rate))
            if outside := around[begins + 1 :]:
                cut = _outer_seconds(query, cut_points, cut, outside)
        most = minibatches_in_flight(leaf.downstream_per_replica)
        yield StageAllocation(
            nodes=tuple(name for name in order if name in held),
            replicas=math.prod(part.replicas for part in line),
            seconds=_outer_seconds(query, cut_points, compute, around),
            compute=compute,
            parameters=parameters,
            in_flight=most,
            memory=most * (kept + parameters) + parameters,
            cut=cut,
            crossing=crossing,
            after=len(done),
        )


def _sent_bytes(cut_points: CutPoints, allocations: Sequence[LevelAllocation]) -> float:
    """Return the bytes that all devices send for a minibatch."""
    total = 0.0
    for number, part in enumerate(allocations):
        weights = cut_points.parameters[part.end] - cut_points.parameters[part.start]
        total += 2 * (part.replicas - 1) / part.replicas * float(weights)
        # Activations forward and gradients back; the first part has no cut in front.
        total += 2 * float(cut_points.crossing_bytes[part.start]) * bool(number)
        total += _sent_bytes(cut_points, part.inner)
    return total


def _config_text(allocations: Sequence[LevelAllocation]) -> str:
    """Write parts as PipeDream does.

    >>> from fractions import Fraction
    >>> part = lambda n, *inner: LevelAllocation(
    ...     start=0, end=1, replicas=n, downstream_per_replica=Fraction(0), inner=inner
    ... )
    >>> _config_text([part(3, part(4)), part(1, part(1), part(3))])
    '3x(4)-1x(1-3)'
    """
    return "-".join(
        f"{part.replicas}x({_config_text(part.inner)})"
        if part.inner
        else f"{part.replicas}"
        for part in allocations
    )
