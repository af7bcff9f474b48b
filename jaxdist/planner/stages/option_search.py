"""The stages of a graph of options, by dynamic programming over its places to cut.

F(i, k, s) is the least of the slowest stage's seconds behind place i, on at most k
devices with at most s replicas in all (Piper's recurrence):

    F(i, k, s) = min over j, t, d of
                     max( T(i, j, t, d, ceil(s / d)), F(j, k - t d, s - d) )

T is itself a search, for the fastest options that fit. It is made only where it counts:
with a price of memory, sums over places bound T from both sides for all i and j at
once, F of the bounds tells which T lie between, and these alone are worked out.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_size
from jaxdist.planner.stages.cost_conventions import FloatArray
from jaxdist.planner.stages.cut_points import (
    CutPoints,
    all_cut_points,
    ordered_cut_points,
)
from jaxdist.planner.stages.option_choice import fastest_options
from jaxdist.planner.stages.option_graph import (
    NodeOption,
    OptionGraph,
    OptionStage,
    OptionStagePlan,
    OptionStageQuery,
)

MAX_CELLS: Final = 4e9
"""Cells (i, j, t, d, k, s) that a search looks at: about 20 seconds."""
MAX_STAGES: Final = 6e7
"""Stages (i, j, t, d, y) of which bounds are kept: 16 bytes each."""
_MAX_PRICES: Final = 64
"""Prices of memory whose bounds are taken: of more, some evenly."""
_MAX_WIDEST_CELLS: Final = 4e8
"""Cells up to which `widest` looks at every set of nodes."""
_SLACK: Final = 1 + 1e-9
"""Factor by which rounding may move a sum."""

_Split = tuple[int, int]
"""(t, d) of a stage."""
_Stage = tuple[int, int, int, int, int]
"""(i, j, t, d, y) of a stage: its places, split and microbatches in flight."""


def partition_options(query: OptionStageQuery) -> OptionStagePlan:
    """Return the stages whose slowest takes the least seconds for a microbatch.

    Raises:
        BadInput: none fits, or there is too much to look at.
    """
    asked = query
    # In one order a node adds one place; among all sets of nodes a free one doubles
    # them.
    if query.cuts != "order":
        query = replace(query, graph=_without_free_inputs(query.graph))
    places = ordered_cut_points(query.graph.layers)
    # Ways grow about with the third to fourth power of the devices.
    factor = min(1.0, MAX_CELLS / max(1.0, _cells(query, len(places))))
    fewer = max(1, int(query.devices * min(0.9, factor**0.35)))
    _check_cost(query, len(places), f"--workers {fewer}")
    solver = _OptionSolver(query, places)
    seconds, cuts = solver.solve(math.inf), "order"
    if query.cuts != "order" and not query.graph.layers.is_chain:
        wider = _wider_places(query, seconds)
        if wider is not None:
            other = _OptionSolver(query, wider)
            # Any plan of one order is one of these, too.
            seconds, cuts, solver = other.solve(seconds), "any", other
    if not math.isfinite(seconds):
        raise _infeasible_error(query)
    stages = list(solver.stages())
    stages[0] = _with_free_inputs(stages[0], asked.graph, query.graph)
    return OptionStagePlan(
        query=asked,
        stages=tuple(stages),
        cuts="any" if cuts == "any" else "order",
        cut_point_count=len(solver.cut_points),
    )


def _without_free_inputs(graph: OptionGraph) -> OptionGraph:
    """Return a graph without the nodes that may as well be in the first stage.

    They read others of their kind alone, take no time and no memory at any degree, and
    nothing is paid for an edge behind them. Each would double the places to cut at.
    """
    makers: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    for maker, reader in graph.edges:
        makers[reader].append(maker)
    nodes, free = {node.name: node for node in graph.nodes}, set[str]()
    for place in graph.layers.order:
        node = graph.nodes[place]
        ways = [option for each in node.options.values() for option in each]
        paid = (
            (o.seconds, o.parameters, o.memory_per_microbatch, o.memory_fixed)
            for o in ways
        )
        readers = graph.layers.readers[node.name]
        # Bytes that a cut behind it would cost: the edge itself, and what tensor
        # parallelism moves at either of its ends.
        behind = [graph.edges[node.name, reader] for reader in readers]
        behind += [bytes_ for option in ways for bytes_ in option.output_sync.values()]
        behind += [
            option.input_sync[node.name]
            for reader in readers
            for each in nodes[reader].options.values()
            for option in each
        ]
        if (
            free >= {*makers[node.name]}
            and {*graph.degrees} == node.options.keys()
            and not any(itertools.chain(behind, *paid))
        ):
            free.add(node.name)
    if not free or len(free) == len(nodes):
        return graph
    kept = [
        replace(
            node,
            options={
                degree: tuple(
                    replace(
                        option,
                        input_sync={
                            maker: bytes_
                            for maker, bytes_ in option.input_sync.items()
                            if maker not in free
                        },
                    )
                    for option in each
                )
                for degree, each in node.options.items()
            },
        )
        for node in graph.nodes
        if node.name not in free
    ]
    edges = {ends: size for ends, size in graph.edges.items() if ends[0] not in free}
    return replace(graph, nodes=tuple(kept), edges=edges)


def _with_free_inputs(
    stage: OptionStage, graph: OptionGraph, smaller: OptionGraph
) -> OptionStage:
    """Return a first stage with the nodes that were left out of a graph."""
    chosen = dict(zip(stage.nodes, stage.options, strict=True))
    for name in {n.name for n in graph.nodes} - {n.name for n in smaller.nodes}:
        node = next(node for node in graph.nodes if node.name == name)
        chosen[name] = node.options[stage.tensor][0].name
    order = [graph.nodes[place].name for place in graph.layers.order]
    names = tuple(name for name in order if name in chosen)
    return replace(stage, nodes=names, options=tuple(chosen[name] for name in names))


def _splits(query: OptionStageQuery) -> list[_Split]:
    """Return (t, d) that a stage may have: replicas divide the microbatches."""
    return [
        (t, d)
        for t in query.graph.degrees
        for d in range(1, query.devices // t + 1)
        if query.microbatches % d == 0
    ]


def _most_replicas(query: OptionStageQuery) -> int:
    """Return the replicas of all stages together: each has a microbatch at least."""
    return min(query.devices, query.microbatches)


def _cells(query: OptionStageQuery, places: int) -> float:
    # For each two places and each split: what devices and replicas may be left behind.
    most = _most_replicas(query)
    return (places**2 / 2) * sum(
        (query.devices - t * d + 1) * (most - d + 1)
        for t, d in _splits(query)
        if d <= most
    )


def _stage_count(query: OptionStageQuery, places: int) -> float:
    # A bound is kept for each y = ceil(s / d) that a stage with d replicas may have.
    most = _most_replicas(query)
    return places**2 * sum(-(-most // d) for _, d in _splits(query) if d <= most)


def _check_cost(query: OptionStageQuery, places: int, remedy: str) -> None:
    """Refuse a search that would take too long, or too much memory."""
    cells, stages = _cells(query, places), _stage_count(query, places)
    if cells > MAX_CELLS or stages > MAX_STAGES:
        raise BadInput(
            "the search would take too long",
            rule=f"a search looks at {MAX_STAGES:g} stages and {MAX_CELLS:g} ways to "
            "continue them at most",
            values=f"{places} places, --workers {query.devices}: {stages:.2g} stages, "
            f"{cells:.2g} ways",
            remedy=remedy,
        )


def _wider_places(query: OptionStageQuery, bound: float) -> CutPoints | None:
    """Return all sets of nodes that may come first and be in a plan within a bound.

    None where there are too many, and fewer were not asked for.
    """

    def useful(found: CutPoints) -> NDArray[np.bool_]:
        if not 0 < bound < math.inf:
            return np.ones(len(found), bool)
        # Nodes before a cut and behind it need devices for their work.
        limit = bound * _SLACK
        before = np.ceil(found.seconds / limit)
        behind = np.ceil((found.seconds[-1] - found.seconds) / limit)
        kept: NDArray[np.bool_] = before + behind <= query.devices
        return kept

    try:
        found = all_cut_points(query.graph.layers, useful, multi_level=False)
    except BadInput:
        if query.cuts == "any":
            raise
        return None
    if query.cuts == "any":
        _check_cost(query, len(found), "--cuts order")
        return found
    few = _cells(query, len(found)) <= _MAX_WIDEST_CELLS
    return found if few and _stage_count(query, len(found)) <= MAX_STAGES else None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ways:
    """The options of all nodes at one degree, as arrays [node, option]."""

    degree: int
    missing: NDArray[np.bool_]
    """[node]: which nodes have none."""
    seconds: FloatArray
    parameters: FloatArray
    per_microbatch: FloatArray
    fixed: FloatArray
    transfer: tuple[FloatArray, FloatArray]
    """[i, j]: bytes over edges that leave or enter a stage, where each node takes the
    option that moves least, and that moves most."""


class _OptionSolver:
    """Bounds of all stages between some places, and the search over them."""

    def __init__(self, query: OptionStageQuery, cut_points: CutPoints) -> None:
        self.query = query
        self.cut_points = cut_points
        nodes = query.graph.nodes
        self._held = np.array(
            [
                [mask >> v & 1 for v in range(len(nodes))]
                for mask in cut_points.node_masks
            ],
            float,
        )
        # Any increasing numbers do: only the sign of a difference is used.
        ones = np.arange(1.0, len(cut_points) + 1)
        # Places that hold another one: 1 where j holds i.
        self._inside = cut_points.pairwise_difference(ones, 0.0) > 0
        self._lower: dict[_Split, FloatArray] = {}
        self._upper: dict[_Split, FloatArray] = {}
        ways = {
            t: _collect_ways(query.graph, t, self._held) for t in query.graph.degrees
        }
        most = _most_replicas(query)
        for t, d in _splits(query):
            if d <= most:
                self._lower[t, d], self._upper[t, d] = self._bounds(
                    ways[t], d, -(-most // d)
                )

    def _bounds(self, ways: _Ways, d: int, most: int) -> tuple[FloatArray, FloatArray]:
        """Return the least and most that T can be, [y - 1, i, j] for y to `most`."""
        query, limit = self.query, self.query.memory
        # Seconds a byte of weights: gradients are summed once a batch, and T is of one
        # of its N microbatches.
        sums = 4 * (d - 1) / d / query.microbatches / query.bandwidth
        cost = ways.seconds / d + sums * ways.parameters
        # Activations go forward and gradients come back over each edge, hence 2.
        least, greatest = (2 * x / d / query.bandwidth for x in ways.transfer)
        outside = ~self._inside | (self._between(ways.missing.astype(float)) > 0)
        lower = np.full((most, *outside.shape), math.inf)
        upper = lower.copy()
        for y in range(1, most + 1):
            held = ways.per_microbatch * y + ways.fixed
            found, known = lower[y - 1], upper[y - 1]
            # Without a price the fastest options: exact where they fit.
            fastest, used = self._priced(cost, held, 0.0)
            # A stage whose smallest options do not fit is infeasible, whatever the
            # price.
            smallest = self._between(np.nanmin(held, axis=1))
            np.copyto(found, fastest + least)
            fits = used <= limit / _SLACK
            known[fits] = (fastest + greatest)[fits]
            found[outside | (smallest > limit * _SLACK)] = math.inf
            known[outside] = math.inf
            # Only stages whose fastest options lack memory have to trade seconds for
            # bytes.
            unclear = np.isfinite(found) & ~fits
            if not unclear.any():
                continue
            for price in _prices(cost, held):
                value, used = self._priced(cost, held, price)
                # Weak duality: for any price this is at most what the best options that
                # fit take; where the options at this price fit, they are a plan, so an
                # upper bound.
                bound = value + price * (used - limit) + least
                np.maximum(found, bound, out=found, where=unclear)
                better = unclear & (used <= limit / _SLACK)
                np.minimum(known, value + greatest, out=known, where=better)
        return lower, upper

    def _between(self, nodes: FloatArray) -> FloatArray:
        """Return sums over the nodes of each stage, [i, j]."""
        # NaN of a missing option would spread to all stages; those stages are left out
        # apart.
        before = self._held @ np.nan_to_num(nodes)
        return np.asarray(before[None, :] - before[:, None])

    def _priced(
        self, cost: FloatArray, held: FloatArray, price: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return seconds and bytes of stages of which each node is best at a price."""
        priced = np.where(np.isnan(cost), math.inf, cost + price * held)
        near = priced <= priced.min(axis=1, keepdims=True) * (1 + 1e-12)
        # Of equals the smallest.
        best = np.where(near, held, math.inf).argmin(axis=1)
        nodes = np.arange(len(cost))
        return self._between(cost[nodes, best]), self._between(held[nodes, best])

    def solve(self, known: float) -> float:
        """Return the seconds of the slowest stage of the best plan.

        Args:
            known: seconds of a plan that there is; infinite without one.
        """
        while True:
            # F of upper bounds is a plan that exists, F of lower bounds is one that may
            # not: the best lies between, and only stages that can move either have to
            # be solved.
            self._table = self._recurrence(self._upper)
            least, best = (
                self._recurrence(self._lower)[0, -1, -1],
                self._table[0, -1, -1],
            )
            best = min(best, known * _SLACK)
            if best <= least * (1 + 1e-12) or not math.isfinite(least):
                return float(self._table[0, -1, -1])
            changed = False
            for (t, d), lower in self._lower.items():
                upper = self._upper[t, d]
                # Faster ones than the bound need not be known, slower ones are useless.
                unclear = (lower < best) & (upper > least) & (lower < upper)
                for y, i, j in np.argwhere(unclear):
                    changed = True
                    stage = int(i), int(j), t, d, int(y) + 1
                    lower[y, i, j] = upper[y, i, j] = self._exact_seconds(stage)
            if not changed:
                return float(self._table[0, -1, -1])

    def _recurrence(self, seconds: Mapping[_Split, FloatArray]) -> FloatArray:
        """Return F [i, k, s], of k devices and s replicas at most."""
        devices, most = self.query.devices, _most_replicas(self.query)
        size = len(self.cut_points)
        table = np.full((size, devices + 1, most + 1), math.inf)
        # Behind the last place nothing is left, with any devices.
        table[-1] = 0.0
        for i in range(size - 2, -1, -1):
            ends = np.flatnonzero(self._inside[i])
            own = table[i]
            for (t, d), all_ in seconds.items():
                # Ends that no stage of this split can have are left out.
                used = ends[np.isfinite(all_[0, i, ends])]
                if not used.size:
                    continue
                # Replicas from this stage on, s; its devices hold ceil(s / d)
                # microbatches.
                flight = np.arange(d, most + 1)
                stage = all_[-(-flight // d) - 1, i][:, used].T
                # stage is [end, s], behind [end, k - t d, s - d].
                behind = table[used, : devices - t * d + 1, : most - d + 1]
                ways = np.maximum(stage[:, None, :], behind).min(axis=0)
                np.minimum(own[t * d :, d:], ways, out=own[t * d :, d:])
            # F is of at most k devices and s replicas: what fits on fewer fits on more.
            np.minimum.accumulate(own, axis=0, out=own)
            np.minimum.accumulate(own, axis=1, out=own)
        return table

    def stages(self) -> Iterator[OptionStage]:
        """Yield the stages of the best plan, on the fewest devices."""
        table, start = self._table, 0
        best = table[0, -1, -1]
        # Rows are in the order of the devices, so the first has the fewest.
        devices, most = map(int, np.argwhere(table[0] <= best)[0])
        while start < len(self.cut_points) - 1:
            i, j, t, d, y = self._first_stage(start, devices, most)
            yield self._stage(i, j, t, d, y)
            start, devices, most = j, devices - t * d, most - d

    def _first_stage(self, start: int, devices: int, most: int) -> _Stage:
        """Return the first stage of a cell of the table."""
        best = self._table[0, -1, -1]
        for (t, d), seconds in self._upper.items():
            if t * d > devices or d > most:
                continue
            y = -(-most // d)
            behind = self._table[:, devices - t * d, most - d]
            ways = np.maximum(seconds[y - 1, start], behind)
            # The table has places that do not hold this one as well.
            ways[~self._inside[start]] = math.inf
            # Not the cell's own best: any stage within the slowest of the plan will do.
            if ways.min() <= best:
                return start, int(ways.argmin()), t, d, y
        raise AssertionError("a cell of the table has a stage that it is from")

    def _exact_seconds(self, stage: _Stage) -> float:
        chosen = self._choose(*stage)
        return math.inf if chosen is None else sum(self._terms(*stage[:4], chosen))

    def _choose(
        self, i: int, j: int, t: int, d: int, y: int
    ) -> dict[str, NodeOption] | None:
        """Return the fastest options of a stage that fit; None where none do."""
        inner = self._stage_nodes(i, j)
        ways = [(v, self.query.graph.nodes[v].options[t]) for v in inner]
        names = {self.query.graph.nodes[v].name for v in inner}
        seconds = [
            [
                sum(self._option_terms(self.query.graph.nodes[v].name, o, names, d))
                for o in options
            ]
            for v, options in ways
        ]
        memory = [
            [y * o.memory_per_microbatch + o.memory_fixed for o in options]
            for _, options in ways
        ]
        chosen = fastest_options(seconds, memory, self.query.memory)
        if chosen is None:
            return None
        return {
            self.query.graph.nodes[v].name: options[o]
            for (v, options), o in zip(ways, chosen, strict=True)
        }

    def _stage_nodes(self, i: int, j: int) -> list[int]:
        masks = self.cut_points.node_masks
        inner = masks[j] & ~masks[i]
        return [v for v in self.query.graph.layers.order if inner >> v & 1]

    def _option_terms(
        self, name: str, option: NodeOption, names: set[str], d: int
    ) -> tuple[float, float, float]:
        """Return the seconds of a node: computing, transfers, sum of gradients."""
        query, edges = self.query, self.query.graph.edges
        moved = sum(
            edges[maker, name] + sync
            for maker, sync in option.input_sync.items()
            if maker not in names
        ) + sum(
            edges[name, reader] + sync
            for reader, sync in option.output_sync.items()
            if reader not in names
        )
        sums = 4 * (d - 1) / d * option.parameters / query.microbatches
        return (
            option.seconds / d,
            2 * moved / d / query.bandwidth,
            sums / query.bandwidth,
        )

    def _terms(
        self, i: int, j: int, t: int, d: int, chosen: Mapping[str, NodeOption]
    ) -> tuple[float, float, float]:
        """Return the seconds of a stage: computing, transfers, sum of gradients."""
        names = {*chosen}
        rows = [self._option_terms(name, o, names, d) for name, o in chosen.items()]
        compute, transfer, sums = map(math.fsum, zip(*rows, strict=True))
        return compute, transfer, sums

    def _stage(self, i: int, j: int, t: int, d: int, y: int) -> OptionStage:
        chosen = self._choose(i, j, t, d, y)
        assert chosen is not None
        terms = self._terms(i, j, t, d, chosen)
        return OptionStage(
            nodes=tuple(chosen),
            options=tuple(option.name for option in chosen.values()),
            replicas=d,
            tensor=t,
            in_flight=y,
            seconds=sum(terms),
            compute=terms[0],
            transfer=terms[1],
            all_reduce=terms[2],
            memory=math.fsum(
                y * o.memory_per_microbatch + o.memory_fixed for o in chosen.values()
            ),
        )


def _collect_ways(graph: OptionGraph, degree: int, held: FloatArray) -> _Ways:
    """Return the options of one degree as arrays; NaN where a node has fewer.

    Args:
        graph: has them.
        degree: of tensor parallelism.
        held: [place, node], 1 where a node is before a place.
    """
    each = [node.options.get(degree, ()) for node in graph.nodes]
    width = max(map(len, each))
    table = np.full((4, len(each), width), math.nan)
    for v, options in enumerate(each):
        for o, option in enumerate(options):
            table[:, v, o] = (
                option.seconds,
                option.parameters,
                option.memory_per_microbatch,
                option.memory_fixed,
            )
    # A node without an option takes nothing in the sums, and its stages are left out.
    missing = np.array([not options for options in each])
    table[:, missing, 0] = 0.0
    number = {node.name: v for v, node in enumerate(graph.nodes)}
    moved = []
    # Options are chosen stage by stage, so what an edge moves is bounded from both
    # sides.
    for pick in (min, max):
        total = np.zeros((len(held), len(held)))
        for (maker, reader), bytes_ in graph.edges.items():
            a, b = number[maker], number[reader]
            out = pick((o.output_sync[reader] for o in each[a]), default=0.0)
            into = pick((o.input_sync[maker] for o in each[b]), default=0.0)
            # Its maker is in front of the stage and its reader inside, or its maker
            # inside and its reader behind.
            first = held[:, a] * (1 - held[:, b])
            total += (bytes_ + into) * np.outer(first, held[:, b])
            total += (bytes_ + out) * np.outer(1 - held[:, a], first)
        moved.append(total)
    return _Ways(
        degree=degree,
        missing=missing,
        seconds=table[0],
        parameters=table[1],
        per_microbatch=table[2],
        fixed=table[3],
        transfer=(moved[0], moved[1]),
    )


def _prices(cost: FloatArray, held: FloatArray) -> FloatArray:
    """Return seconds a byte at which a node changes its option, some if many."""
    i, j = np.triu_indices(cost.shape[1], 1)
    more, saved = cost[:, j] - cost[:, i], held[:, i] - held[:, j]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = more / saved
    found = np.unique(ratios[np.isfinite(ratios) & (ratios > 0)])
    if len(found) > _MAX_PRICES:
        found = found[np.linspace(0, len(found) - 1, _MAX_PRICES).astype(int)]
    return np.asarray(found)


def _infeasible_error(query: OptionStageQuery) -> BadInput:
    """Return the refusal of a search that found nothing, with what would lift it."""
    source, split = query.graph.source, _splits(query)
    # The smallest plan there is is found by halving the memory that is missing.
    low, high = query.memory, 2.0 * max(query.memory, 1.0)
    places = ordered_cut_points(query.graph.layers)

    def fits(memory: float) -> bool:
        solver = _OptionSolver(replace(query, memory=memory), places)
        # A lower bound is finite just where the smallest options fit, so it decides
        # feasibility without solving a single stage.
        return bool(np.isfinite(solver._recurrence(solver._lower)[0, -1, -1]))

    if not split or not fits(math.inf):
        return BadInput(
            "no stage can be run on so few devices",
            rule="a node runs at one of its degrees of tensor parallelism",
            values=f"{source}: degrees {', '.join(map(str, query.graph.degrees))}, "
            f"--workers {query.devices}",
            remedy=f"--workers {max(query.graph.degrees)}",
        )
    while not fits(high):
        high *= 2
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    # Rounded up to three digits, as the remedy is written.
    step = 10.0 ** (math.floor(math.log10(high)) - 2)
    least = math.ceil(high / step) * step
    return BadInput(
        f"out of memory by {format_size(least - query.memory)} on every plan",
        rule="a device holds A for each microbatch in flight, and B",
        values=f"--memory {query.memory:g}, {query.devices} devices, {source}",
        remedy=(f"--memory {least:.3g}", "more --workers, or a smaller microbatch"),
    )
