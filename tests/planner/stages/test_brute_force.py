"""The partitioner against every plan there is, written down one by one."""

import itertools
import math
import random
from functools import cache

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.planner.stages.cost_conventions import CostConvention
from jaxdist.planner.stages.graph import LayerGraph, Node
from jaxdist.planner.stages.link_hierarchy import LinkLevel
from jaxdist.planner.stages.memory import MemoryBudget
from jaxdist.planner.stages.partitioner import partition_graph
from jaxdist.planner.stages.stage_plan import StageQuery


def compositions(total, parts):
    """Yield all ways to write a number as so many positive ones."""
    for bars in itertools.combinations(range(1, total), parts - 1):
        edges = (0, *bars, total)
        yield tuple(b - a for a, b in itertools.pairwise(edges))


def stage_time(compute, weights, copies, rate, overlap, published):
    moved = 2 * (copies - 1) if published else 4 * (copies - 1) / copies
    sync = moved * weights / rate
    return (compute + sync - overlap * min(compute, sync)) / copies


def plans(first, last, sizes):
    """Yield nested plans of layers on whole tiers, outermost last: (from, to, copies, inner)."""
    if not sizes:
        yield ()
        return
    for count in range(1, min(last - first, sizes[-1]) + 1):
        for bars in itertools.combinations(range(first + 1, last), count - 1):
            edges = list(itertools.pairwise((first, *bars, last)))
            for copies in compositions(sizes[-1], count):
                inner = [list(plans(a, b, sizes[:-1])) for a, b in edges]
                for chosen in itertools.product(*inner):
                    yield tuple(
                        (a, b, m, i) for (a, b), m, i in zip(edges, copies, chosen)
                    )


def plan_time(plan, layers, rates, overlap, published):
    """Return the slowest stage or cut of a nested plan."""
    worst = 0.0
    for number, (a, b, copies, inner) in enumerate(plan):
        one = (
            plan_time(inner, layers, rates[:-1], overlap, published)
            if inner
            else sum(layer["time"] for layer in layers[a:b])
        )
        weights = sum(layer["weights"] for layer in layers[a:b])
        worst = max(
            worst, stage_time(one, weights, copies, rates[-1], overlap, published)
        )
        if number:
            share = overlap + (1 - overlap) / copies
            worst = max(worst, 2 * layers[a - 1]["out"] * share / rates[-1])
    return worst


def leaves(plan, copies=1):
    for a, b, own, inner in plan:
        if inner:
            yield from leaves(inner, copies * own)
        else:
            yield a, b, copies * own


def fits(plan, layers, limit):
    """Whether what is in flight on a device of each stage is within a limit."""
    flat = list(leaves(plan))
    for number, (a, b, copies) in enumerate(flat):
        held = math.ceil(sum(m for _, _, m in flat[number:]) / copies)
        weights = sum(layer["weights"] for layer in layers[a:b])
        kept = sum(layer["out"] for layer in layers[a:b])
        if held * (weights + kept) + weights > limit:
            return False
    return True


def is_straight(plan):
    return all(m == 1 and is_straight(inner) for _, _, m, inner in plan)


def brute(layers, sizes, rates, overlap, published, limit, straight):
    found = math.inf
    for plan in plans(0, len(layers), sizes):
        if straight and not is_straight(plan):
            continue
        if limit is None or fits(plan, layers, limit):
            found = min(found, plan_time(plan, layers, rates, overlap, published))
    return found


def chain(rng, most):
    return [
        {
            "time": rng.choice([0.0, 0.01, rng.uniform(0.001, 0.2)]),
            "weights": rng.choice([0, 0, rng.randint(1, 200)]) * 1e6,
            "out": rng.choice([0, rng.randint(1, 100)]) * 1e6,
        }
        for _ in range(rng.randint(1, most))
    ] + [{"time": 0.05, "weights": 1e6, "out": 1e6}]


def graph_of(layers, edges=None):
    nodes = tuple(
        Node(
            name=f"n{i}",
            forward=layer["time"] / 4,
            backward=layer["time"] * 3 / 4,
            output=layer["out"],
            kept=layer["out"],
            parameters=layer["weights"],
        )
        for i, layer in enumerate(layers)
    )
    line = [(f"n{i}", f"n{i + 1}") for i in range(len(layers) - 1)]
    return LayerGraph(
        source="made", nodes=nodes, edges=tuple(line if edges is None else edges)
    )


def check(seed, tier_sizes, most):
    """Hold one random chain against all its plans."""
    rng = random.Random(seed)
    layers, sizes = chain(rng, most - 1), tier_sizes(rng)
    rates = tuple(rng.choice([1e8, 1e9, 5e9]) for _ in sizes)
    overlap = rng.choice([1.0, 1.0, 0.0, rng.random()])
    published, straight = rng.random() < 0.2, rng.random() < 0.2
    everything = sum(layer["out"] + 2 * layer["weights"] for layer in layers)
    limit = rng.choice([None, None, everything * rng.uniform(0.2, 2)])
    expected = brute(layers, sizes, rates, overlap, published, limit, straight)
    asked = StageQuery(
        graph=graph_of(layers),
        levels=tuple(LinkLevel(size=n, bandwidth=b) for n, b in zip(sizes, rates)),
        cost_convention=CostConvention(
            overlap=overlap, sync="published" if published else "ring"
        ),
        memory_budget=MemoryBudget(limit=math.inf if limit is None else limit),
        straight_pipeline=straight,
    )
    if math.isinf(expected):
        with pytest.raises(BadInput):
            partition_graph(asked)
        return
    found = partition_graph(asked)
    assert found.seconds == pytest.approx(expected, rel=1e-9), (seed, layers, sizes)
    slowest = max(max(s.seconds, s.cut) for s in found.stages)
    assert slowest == pytest.approx(found.seconds, rel=1e-9), seed
    assert sum(found.replicas) == math.prod(sizes)
    flight = [-(-sum(found.replicas[k:]) // m) for k, m in enumerate(found.replicas)]
    assert [stage.in_flight for stage in found.stages] == flight
    assert limit is None or max(s.memory for s in found.stages) <= limit
    names = [name for stage in found.stages for name in stage.nodes]
    assert names == [f"n{i}" for i in range(len(layers))]


def flat(rng):
    return (rng.randint(1, 6),)


def nested(rng):
    return rng.choice([(2, 2), (2, 3), (3, 2), (1, 4), (2, 1, 2)])


@pytest.mark.parametrize("seed", [*range(0, 1000, 250)])
def test_the_fastest_of_all_plans_of_a_chain(seed):
    for one in range(seed, seed + 250):
        check(one, flat, 10)


@pytest.mark.parametrize("seed", [*range(2000, 2300, 100)])
def test_the_fastest_of_all_nested_plans_of_a_chain(seed):
    for one in range(seed, seed + 100):
        check(one, nested, 6)


def assignments(count, edges, stages):
    """Yield the stage of each node, none before what it reads, none without a node."""
    for chosen in itertools.product(range(stages), repeat=count):
        if set(chosen) == set(range(stages)) and all(
            chosen[a] <= chosen[b] for a, b in edges
        ):
            yield chosen


def brute_graph(layers, edges, devices, rate, overlap):
    """Return the fastest of all ways to share out nodes, with all of their replicas.

    The second is the fastest in which each stage has work: seconds or weights.
    """

    @cache
    def crossing(before):
        return sum(
            layers[i]["out"]
            for i in before
            if any(a == i and b not in before for a, b in edges)
        )

    best = working = math.inf
    for stages in range(1, min(devices, len(layers)) + 1):
        for chosen in assignments(len(layers), edges, stages):
            sets = [[i for i, k in enumerate(chosen) if k == s] for s in range(stages)]
            for copies in compositions(devices, stages):
                worst = 0.0
                for number, (own, m) in enumerate(zip(sets, copies)):
                    compute = sum(layers[i]["time"] for i in own)
                    weights = sum(layers[i]["weights"] for i in own)
                    worst = max(
                        worst, stage_time(compute, weights, m, rate, overlap, False)
                    )
                    if number:
                        before = frozenset(
                            i for i, k in enumerate(chosen) if k < number
                        )
                        share = overlap + (1 - overlap) / m
                        worst = max(worst, 2 * crossing(before) * share / rate)
                best = min(best, worst)
                if all(
                    any(layers[i]["time"] or layers[i]["weights"] for i in own)
                    for own in sets
                ):
                    working = min(working, worst)
    return best, working


def check_graph(seed, most):
    rng = random.Random(seed)
    layers = chain(rng, most - 1)
    for layer in layers[:-1]:
        if rng.random() < 0.25:
            layer.update(time=0.0, weights=0)
        if rng.random() < 0.15:
            layer.update(time=0.0, weights=0, out=0)
    count = len(layers)
    pairs = itertools.combinations(range(count), 2)
    edges = [pair for pair in pairs if rng.random() < 0.4]
    devices, rate = rng.randint(1, 4), rng.choice([1e8, 1e9])
    overlap = rng.choice([1.0, 0.0])
    best, working = brute_graph(layers, edges, devices, rate, overlap)
    graph = graph_of(layers, [(f"n{a}", f"n{b}") for a, b in edges])
    asked = {
        cuts: StageQuery(
            graph=graph,
            levels=(LinkLevel(size=devices, bandwidth=rate),),
            cost_convention=CostConvention(overlap=overlap),
            cuts=cuts,
        )
        for cuts in ("any", "order")
    }
    found = partition_graph(asked["any"])
    slack = 1 + 1e-9
    assert best / slack <= found.seconds <= working * slack, (seed, layers, edges)
    assert partition_graph(asked["order"]).seconds >= found.seconds * (1 - 1e-9)
    stage_of = {n: k for k, stage in enumerate(found.stages) for n in stage.nodes}
    assert sorted(stage_of) == sorted(node.name for node in graph.nodes)
    assert all(stage_of[a] <= stage_of[b] for a, b in graph.edges)


@pytest.mark.parametrize("seed", [3000, 3050])
def test_the_fastest_of_all_plans_of_a_graph(seed):
    for one in range(seed, seed + 50):
        check_graph(one, 7)
