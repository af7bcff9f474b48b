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


def partition_graph(asked: StageQuery) -> StagePlan:
    """Return the stages whose slowest is fastest.

    Raises:
        BadInput: none fits, or there is too much to look at.
    """
    places, small = ordered_cut_points(asked.graph), identity_contraction(asked.graph)
    check_search_cost(len(places), asked.tiers)
    search = _make_solver(asked, places)
    if asked.cuts == "any" and not asked.graph.is_chain:
        fewer = contract_graph(asked.graph, keeps=asked.memory.counts)
        wider = _make_solver(
            asked, _pruned_cut_points(asked, fewer.graph, search.seconds)
        )
        if wider.seconds <= search.seconds:
            search, small = wider, fewer
    if not math.isfinite(search.seconds):
        raise infeasible_error(search, asked.graph.source)
    return _stage_plan(asked, search, small)


def _pruned_cut_points(asked: StageQuery, graph: LayerGraph, bound: float) -> CutPoints:
    """Return the places that a plan faster than one of `bound` seconds may have."""
    return all_cut_points(
        graph,
        lambda found: useful_cut_mask(found, asked.tiers, asked.form, bound),
        nested=len(asked.tiers) > 1,
    )


def _make_solver(asked: StageQuery, places: CutPoints) -> PipeDreamSolver:
    return PipeDreamSolver(
        places, asked.tiers, asked.form, asked.memory, straight=asked.straight
    )


def _stage_plan(
    asked: StageQuery, search: PipeDreamSolver, small: ContractedGraph
) -> StagePlan:
    parts, places = search.parts, search.places
    own = [tier.size for tier in asked.tiers]
    everywhere = [(size, 0, len(places) - 1) for size in own]
    return StagePlan(
        question=asked,
        stages=tuple(_stage_allocations(asked, places, parts, small)),
        config=_config_text(parts),
        seconds=search.seconds,
        seconds_of_one=float(places.seconds[-1]),
        seconds_of_data_parallel=_outer_seconds(
            asked, places, float(places.seconds[-1]), everywhere
        ),
        bytes=_sent_bytes(places, parts),
        bytes_of_data_parallel=sum(
            2 * (size - 1) / size * float(places.parameters[-1]) for size in own
        ),
        fewer=_faster_subset(search),
        places=len(places),
    )


def _faster_subset(search: PipeDreamSolver) -> tuple[int, float] | None:
    """Say how many devices were better: the recurrences put all of them to use."""
    if search.memory.counts:
        return None
    times, groups = search.of_fewer, search.tiers[:-1]
    best = int(np.argmin(times))
    if times[best] >= search.seconds * (1 - 1e-9):
        return None
    devices = math.prod(tier.size for tier in groups) * (best + 1)
    return devices, float(times[best])


EnclosingAllocation = tuple[int, int, int]
"""Copies, place in front and place behind of a part."""


def _outer_seconds(
    asked: StageQuery,
    places: CutPoints,
    seconds: float,
    around: Sequence[EnclosingAllocation],
) -> float:
    """Return what seconds inside of parts are outside of them.

    Args:
        asked: has form and tiers.
        places: what weights lie between.
        seconds: of the innermost.
        around: parts, innermost first; the last is of the outermost tier.
    """
    for tier, (copies, start, end) in zip(asked.tiers[-len(around) :], around):
        weights = places.parameters[end] - places.parameters[start]
        value, bytes_ = np.array(seconds), np.array(weights)
        seconds = float(asked.form.stage(value, bytes_, copies, tier.bandwidth))
    return seconds


def _device_allocations(
    parts: Sequence[LevelAllocation], outside: tuple[LevelAllocation, ...] = ()
) -> Iterator[tuple[LevelAllocation, tuple[LevelAllocation, ...]]]:
    """Yield the parts that are on devices, each with those around it, inside out."""
    for part in parts:
        if part.inner:
            yield from _device_allocations(part.inner, (part, *outside))
        else:
            yield part, (part, *outside)


def _stage_allocations(
    asked: StageQuery,
    places: CutPoints,
    parts: Sequence[LevelAllocation],
    small: ContractedGraph,
) -> Iterator[StageAllocation]:
    order = [asked.graph.nodes[i].name for i in asked.graph.order]
    done = set[str]()
    for leaf, line in _device_allocations(parts):
        around = [(part.copies, part.start, part.end) for part in line]
        compute, kept, parameters = (
            float(sums[leaf.end] - sums[leaf.start])
            for sums in (places.seconds, places.kept, places.parameters)
        )
        held = small.names(places.members[leaf.end]).union(small.first) - done
        done |= held
        most = minibatches_in_flight(leaf.behind)
        yield StageAllocation(
            nodes=tuple(name for name in order if name in held),
            replicas=math.prod(part.copies for part in line),
            seconds=_outer_seconds(asked, places, compute, around),
            compute=compute,
            parameters=parameters,
            in_flight=most,
            memory=most * (kept + parameters) + parameters,
            cut=_cut_seconds(asked, places, line),
            crossing=float(places.crossing[leaf.start]),
            after=len(done),
        )


def _cut_seconds(
    asked: StageQuery, places: CutPoints, line: Sequence[LevelAllocation]
) -> float:
    """Return the seconds of the cut in front of a leaf.

    It is one of the outermost tier on which a part begins there, and not before.
    """
    place = line[0].start
    if not place:
        return 0.0
    begins = max(k for k, part in enumerate(line) if part.start == place)
    crossing = np.array(places.crossing[place])
    tier = asked.tiers[begins]
    inner = float(asked.form.cut(crossing, line[begins].copies, tier.bandwidth))
    outside = [(part.copies, part.start, part.end) for part in line[begins + 1 :]]
    return _outer_seconds(asked, places, inner, outside) if outside else inner


def _sent_bytes(places: CutPoints, parts: Sequence[LevelAllocation]) -> float:
    """Return the bytes that all devices send for a minibatch."""
    total = 0.0
    for number, part in enumerate(parts):
        weights = places.parameters[part.end] - places.parameters[part.start]
        total += 2 * (part.copies - 1) / part.copies * float(weights)
        total += 2 * float(places.crossing[part.start]) * bool(number)
        total += _sent_bytes(places, part.inner)
    return total


def _config_text(parts: Sequence[LevelAllocation]) -> str:
    """Write parts as PipeDream does.

    >>> from fractions import Fraction
    >>> part = lambda n, *inner: LevelAllocation(
    ...     start=0, end=1, copies=n, behind=Fraction(0), inner=inner
    ... )
    >>> _config_text([part(3, part(4)), part(1, part(1), part(3))])
    '3x(4)-1x(1-3)'
    """
    return "-".join(
        f"{part.copies}x({_config_text(part.inner)})"
        if part.inner
        else f"{part.copies}"
        for part in parts
    )
