"""Stages of graphs with options, against every plan there is, written down one by one."""

import itertools
import math
import random

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.planner.stages.option_choice import fastest_options
from jaxdist.planner.stages.option_graph import OptionStageQuery
from jaxdist.planner.stages.option_search import partition_options
from jaxdist.planner.stages.piper_file import parse_piper_graph


def tree_of(rng, nodes, edges, degrees):
    """Make a file in Piper's format: numbers are small and whole, so that many tie."""
    made = {
        "maxDevices": rng.randint(1, 5),
        "bandwidth": rng.choice([10.0, 1000.0]),
        "mbsInBatch": rng.choice([1, 2, 4, 6, 12]),
        "nodes": [],
        "edges": [
            {"sourceId": a, "destId": b, "communicationCost": rng.randint(0, 30)}
            for a, b in edges
        ],
    }
    numbers = rng.sample(range(100), nodes)
    for v in range(nodes):
        ways = {}
        for degree in degrees:
            if degree > 1 and rng.random() < 0.15:
                continue
            idle = rng.random() < 0.2
            ways[str(degree)] = [
                {
                    "id": f"way{o}",
                    "timePerSample": 0 if idle else rng.choice([1, 2, 3.5]) / degree,
                    "parameterSize": rng.randint(0, 50),
                    "memoryUsageA": rng.randint(0, 9),
                    "memoryUsageB": rng.randint(0, 9),
                    "syncTimeFw": {
                        str(numbers[a]): rng.randint(0, 5) for a, b in edges if b == v
                    },
                    "syncTimeBw": {
                        str(numbers[b]): rng.randint(0, 5) for a, b in edges if a == v
                    },
                }
                for o in range(rng.randint(1, 3))
            ]
        made["nodes"].append({"id": numbers[v], "TMPCs": ways})
    for edge in made["edges"]:
        edge["sourceId"] = numbers[edge["sourceId"]]
        edge["destId"] = numbers[edge["destId"]]
    most = sum(
        max(w["memoryUsageA"] * 3 + w["memoryUsageB"] for w in n["TMPCs"]["1"])
        for n in made["nodes"]
    )
    made["maxMemoryPerDevice"] = max(1, rng.randint(most // 8, most))
    return made


def stage_seconds(tree, inner, t, d, behind):
    """Return the least seconds of a stage over every choice of options."""
    least, ids = math.inf, {node["id"] for node in inner}
    costs = {
        (e["sourceId"], e["destId"]): e["communicationCost"] for e in tree["edges"]
    }
    held = -(-(d + behind) // d)
    for ways in itertools.product(*(node["TMPCs"].get(str(t), []) for node in inner)):
        room = sum(w["memoryUsageA"] * held + w["memoryUsageB"] for w in ways)
        if room > tree["maxMemoryPerDevice"]:
            continue
        seconds = 0.0
        for node, way in zip(inner, ways):
            seconds += way["timePerSample"] / d
            moved = 4 * (d - 1) * way["parameterSize"] / d / tree["mbsInBatch"]
            for (a, b), bytes_ in costs.items():
                if b == node["id"] and a not in ids:
                    moved += 2 * (bytes_ + way["syncTimeFw"][str(a)]) / d
                if a == node["id"] and b not in ids:
                    moved += 2 * (bytes_ + way["syncTimeBw"][str(b)]) / d
            seconds += moved / tree["bandwidth"]
        least = min(least, seconds)
    return least


def brute(tree, order_only):
    """Return the seconds of the best plan, last stage first."""
    nodes = {node["id"]: node for node in tree["nodes"]}
    makers = {v: set() for v in nodes}
    for edge in tree["edges"]:
        makers[edge["destId"]].add(edge["sourceId"])
    if order_only:
        ids = [node["id"] for node in tree["nodes"]]
        firsts = [frozenset(ids[:n]) for n in range(len(ids) + 1)]
    else:
        firsts = [
            frozenset(some)
            for n in range(len(nodes) + 1)
            for some in itertools.combinations(nodes, n)
            if all(makers[v] <= {*some} for v in some)
        ]

    def best(end, devices, behind):
        if not end:
            return 0.0
        found = math.inf
        for before in firsts:
            if not before < end:
                continue
            inner = [nodes[v] for v in end - before]
            for t in (1, 2, 4):
                for d in range(1, devices // t + 1):
                    fills = behind + d <= tree["mbsInBatch"]
                    if tree["mbsInBatch"] % d == 0 and fills:
                        last = stage_seconds(tree, inner, t, d, behind)
                        if last < found:
                            rest = best(before, devices - t * d, behind + d)
                            found = min(found, max(last, rest))
        return found

    return best(frozenset(nodes), tree["maxDevices"], 0)


def check(tree, cuts, order_only):
    graph = parse_piper_graph(tree, "made")
    asked = OptionStageQuery(
        graph=graph,
        devices=graph.devices,
        bandwidth=graph.bandwidth,
        memory=graph.memory,
        microbatches=graph.microbatches,
        cuts=cuts,
    )
    expected = brute(tree, order_only)
    if math.isinf(expected):
        with pytest.raises(BadInput):
            partition_options(asked)
        return False
    found = partition_options(asked)
    assert found.seconds == pytest.approx(expected, rel=1e-9)
    # What is said of the stages is what a plan of these stages costs.
    ids, behind = {str(node["id"]): node for node in tree["nodes"]}, 0
    assert sorted(n for s in found.stages for n in s.nodes) == sorted(ids)
    for stage in found.stages[::-1]:
        inner = [ids[name] for name in stage.nodes]
        own = stage_seconds(tree, inner, stage.tensor, stage.replicas, behind)
        assert stage.seconds == pytest.approx(own, rel=1e-9)
        behind += stage.replicas
        assert stage.in_flight >= -(-behind // stage.replicas)
        assert stage.memory <= graph.memory
        for name, option in zip(stage.nodes, stage.options):
            ways = ids[name]["TMPCs"][str(stage.tensor)]
            assert option in {way["id"] for way in ways}
    assert found.devices <= graph.devices
    return True


@pytest.mark.parametrize("block", range(8))
def test_chains_no_plan_is_faster(block):
    planned = 0
    for seed in range(40 * block, 40 * block + 40):
        rng = random.Random(seed)
        nodes = rng.randint(1, 5)
        chain = list(itertools.pairwise(range(nodes)))
        tree = tree_of(rng, nodes, chain, rng.choice([(1,), (1, 2), (1, 2, 4)]))
        # A chain has one order, whatever its nodes are called.
        planned += check(tree, rng.choice(["order", "widest"]), order_only=True)
    assert planned >= 15


@pytest.mark.parametrize("block", range(4))
def test_graphs_no_plan_of_any_first_nodes_is_faster(block):
    planned = 0
    for seed in range(20 * block, 20 * block + 20):
        rng = random.Random(1000 + seed)
        nodes = rng.randint(2, 5)
        pairs = itertools.combinations(range(nodes), 2)
        edges = [pair for pair in pairs if rng.random() < 0.4]
        planned += check(tree_of(rng, nodes, edges, (1, 2)), "any", order_only=False)
    assert planned >= 8


@pytest.mark.parametrize("block", range(2))
def test_inputs_that_cost_nothing_change_no_plan(block):
    planned = 0
    for seed in range(20 * block, 20 * block + 20):
        rng = random.Random(2000 + seed)
        nodes = rng.randint(3, 5)
        pairs = itertools.combinations(range(nodes), 2)
        tree = tree_of(rng, nodes, [p for p in pairs if rng.random() < 0.5], (1, 2))
        # The first nodes are free, with or without bytes behind them.
        first = [node["id"] for node in tree["nodes"][: rng.randint(1, 2)]]
        for node in tree["nodes"]:
            for way in itertools.chain(*node["TMPCs"].values()):
                if node["id"] in first:
                    way.update(timePerSample=0, parameterSize=0)
                    way.update(memoryUsageA=0, memoryUsageB=0)
                    way["syncTimeBw"] = dict.fromkeys(way["syncTimeBw"], 0)
                for maker in way["syncTimeFw"]:
                    if int(maker) in first:
                        way["syncTimeFw"][maker] = 0
        for edge in tree["edges"]:
            if edge["sourceId"] in first and rng.random() < 0.8:
                edge["communicationCost"] = 0
        planned += check(tree, "any", order_only=False)
    assert planned >= 8


def test_options_every_choice():
    for seed in range(800):
        rng = random.Random(seed)
        ways = [rng.randint(1, 3) for _ in range(rng.randint(1, 6))]
        whole = rng.random() < 0.5
        drawn = [[rng.uniform(0, 3) for _ in range(n)] for n in ways]
        seconds = [[round(s) if whole else s for s in row] for row in drawn]
        memory = [[rng.randint(0, 6) for _ in range(n)] for n in ways]
        limit = rng.randint(0, 4 * len(ways))
        fitting = [
            sum(s[o] for s, o in zip(seconds, choice))
            for choice in itertools.product(*map(range, ways))
            if sum(m[o] for m, o in zip(memory, choice)) <= limit
        ]
        found = fastest_options(seconds, memory, limit)
        if found is None:
            assert not fitting
            continue
        assert sum(m[o] for m, o in zip(memory, found)) <= limit
        taken = sum(s[o] for s, o in zip(seconds, found))
        assert taken == pytest.approx(min(fitting), abs=1e-12)
