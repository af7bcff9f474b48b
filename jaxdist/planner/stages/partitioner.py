"""Stages: PipeDream's answer for a graph on devices, and what it costs.

Times are seconds for a minibatch in the steady state: the slowest of all stages and
cuts. Bytes are what all devices send for a minibatch: a ring sum over m copies of W
bytes is 2 (m - 1) / m W, a cut 2 A.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from jaxdist.planner.stages.cut_points import (
    CutPoints,
    all_cut_points,
    ordered_cut_points,
)
from jaxdist.planner.stages.graph import LayerGraph
from jaxdist.planner.stages.graph_contraction import (
    ContractedGraph,
    contract_graph,
    identity_contraction,
)
from jaxdist.planner.stages.infeasible import infeasible_error
from jaxdist.planner.stages.memory import minibatches_in_flight
from jaxdist.planner.stages.pruning import useful_cut_mask
from jaxdist.planner.stages.search import LevelAllocation, PipeDreamSolver
from jaxdist.planner.stages.search_cost import check_search_cost
from jaxdist.planner.stages.stage_plan import StageAllocation, StagePlan, StageQuery


def partition_graph(query: StageQuery) -> StagePlan:
    """Return the stages whose slowest is fastest.

    Raises:
        BadInput: none fits, or there is too much to look at.
    """
    places, small = ordered_cut_points(query.graph), identity_contraction(query.graph)
    check_search_cost(len(places), query.levels)
    search = _make_solver(query, places)
    if query.cuts == "any" and not query.graph.is_chain:
        fewer = contract_graph(
            query.graph, memory_limited=query.memory_budget.is_limited
        )
        wider = _make_solver(
            query, _pruned_cut_points(query, fewer.graph, search.seconds)
        )
        if wider.seconds <= search.seconds:
            search, small = wider, fewer
    if not math.isfinite(search.seconds):
        raise infeasible_error(search, query.graph.source)
    return _stage_plan(query, search, small)


def _pruned_cut_points(query: StageQuery, graph: LayerGraph, bound: float) -> CutPoints:
    """Return the places that a plan faster than one of `bound` seconds may have."""
    return all_cut_points(
        graph,
        lambda found: useful_cut_mask(
            found, query.levels, query.cost_convention, bound
        ),
        multi_level=len(query.levels) > 1,
    )


def _make_solver(query: StageQuery, cut_points: CutPoints) -> PipeDreamSolver:
    return PipeDreamSolver(
        cut_points,
        query.levels,
        query.cost_convention,
        query.memory_budget,
        straight_pipeline=query.straight_pipeline,
    )


def _stage_plan(
    query: StageQuery, solver: PipeDreamSolver, contraction: ContractedGraph
) -> StagePlan:
    parts, places = solver.allocations, solver.cut_points
    own = [tier.size for tier in query.levels]
    everywhere = [(size, 0, len(places) - 1) for size in own]
    return StagePlan(
        query=query,
        stages=tuple(_stage_allocations(query, places, parts, contraction)),
        config=_config_text(parts),
        seconds=solver.seconds,
        single_device_seconds=float(places.seconds[-1]),
        data_parallel_seconds=_outer_seconds(
            query, places, float(places.seconds[-1]), everywhere
        ),
        sent_bytes=_sent_bytes(places, parts),
        data_parallel_bytes=sum(
            2 * (size - 1) / size * float(places.parameters[-1]) for size in own
        ),
        faster_subset=_faster_subset(solver),
        cut_point_count=len(places),
    )


def _faster_subset(solver: PipeDreamSolver) -> tuple[int, float] | None:
    """Say how many devices were better: the recurrences put all of them to use."""
    if solver.memory_budget.is_limited:
        return None
    times, groups = solver.seconds_by_size, solver.levels[:-1]
    best = int(np.argmin(times))
    if times[best] >= solver.seconds * (1 - 1e-9):
        return None
    devices = math.prod(tier.size for tier in groups) * (best + 1)
    return devices, float(times[best])


EnclosingAllocation = tuple[int, int, int]
"""Copies, place in front and place behind of a part."""


def _outer_seconds(
    query: StageQuery,
    cut_points: CutPoints,
    seconds: float,
    enclosing: Sequence[EnclosingAllocation],
) -> float:
    """Return what seconds inside of parts are outside of them.

    Args:
        query: has form and tiers.
        cut_points: what weights lie between.
        seconds: of the innermost.
        enclosing: parts, innermost first; the last is of the outermost tier.
    """
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
    done = set[str]()
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
        held = (
            contraction.original_names(cut_points.node_masks[leaf.end]).union(
                contraction.first_stage_nodes
            )
            - done
        )
        done |= held
        most = minibatches_in_flight(leaf.downstream_per_replica)
        yield StageAllocation(
            nodes=tuple(name for name in order if name in held),
            replicas=math.prod(part.replicas for part in line),
            seconds=_outer_seconds(query, cut_points, compute, around),
            compute=compute,
            parameters=parameters,
            in_flight=most,
            memory=most * (kept + parameters) + parameters,
            cut=_cut_seconds(query, cut_points, line),
            crossing=float(cut_points.crossing_bytes[leaf.start]),
            after=len(done),
        )


def _cut_seconds(
    query: StageQuery, cut_points: CutPoints, line: Sequence[LevelAllocation]
) -> float:
    """Return the seconds of the cut in front of a leaf.

    It is one of the outermost tier on which a part begins there, and not before.
    """
    place = line[0].start
    if not place:
        return 0.0
    begins = max(k for k, part in enumerate(line) if part.start == place)
    crossing = np.array(cut_points.crossing_bytes[place])
    tier = query.levels[begins]
    inner = float(
        query.cost_convention.cut_seconds(
            crossing, line[begins].replicas, tier.bandwidth
        )
    )
    outside = [(part.replicas, part.start, part.end) for part in line[begins + 1 :]]
    return _outer_seconds(query, cut_points, inner, outside) if outside else inner


def _sent_bytes(cut_points: CutPoints, allocations: Sequence[LevelAllocation]) -> float:
    """Return the bytes that all devices send for a minibatch."""
    total = 0.0
    for number, part in enumerate(allocations):
        weights = cut_points.parameters[part.end] - cut_points.parameters[part.start]
        total += 2 * (part.replicas - 1) / part.replicas * float(weights)
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
