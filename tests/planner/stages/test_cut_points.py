"""Places: every set of nodes that may come first, and which of them are looked at."""

import itertools
import math
import random

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.planner.stages.cost_conventions import CostConvention
from jaxdist.planner.stages.cut_points import (
    all_cut_points,
    ordered_cut_points,
    useful_cut_mask,
)
from jaxdist.planner.stages.graph import LayerGraph, Node
from jaxdist.planner.stages.graph_contraction import contract_graph
from jaxdist.planner.stages.link_hierarchy import LinkLevel
from jaxdist.planner.stages.memory import UNLIMITED
from jaxdist.planner.stages.search import PipeDreamSolver


def node(name, seconds=1.0, output=1.0, parameters=0.0):
    return Node(
        name=name,
        forward=seconds / 2,
        backward=seconds / 2,
        output=output,
        kept=output,
        parameters=parameters,
    )


def everything(graph):
    return all_cut_points(
        graph, lambda found: np.ones(len(found), bool), multi_level=False
    )


def random_graph(rng, count):
    inner = [
        node(
            f"n{i}",
            rng.choice([0.0, rng.uniform(0.1, 2)]),
            rng.uniform(0, 4),
            rng.choice([0.0, rng.uniform(0, 4)]),
        )
        for i in range(count)
    ]
    nodes = (*inner, node("end"))
    names = [n.name for n in nodes]
    edges = [e for e in itertools.combinations(names, 2) if rng.random() < 0.35]
    return LayerGraph(source="made", nodes=nodes, edges=tuple(edges))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_all_sets_are_those_that_hold_what_they_read(seed):
    graph = random_graph(random.Random(seed), 6)
    place = {n.name: i for i, n in enumerate(graph.nodes)}
    edges = [(place[a], place[b]) for a, b in graph.edges]
    sets = [
        bits
        for bits in range(1 << len(place))
        if all(bits >> a & 1 or not bits >> b & 1 for a, b in edges)
    ]
    found = everything(graph)
    assert sorted(found.node_masks) == sets
    for members, crossing in zip(found.node_masks, found.crossing_bytes):
        crosses = {a for a, b in edges if members >> a & 1 and not members >> b & 1}
        assert crossing == pytest.approx(sum(graph.nodes[a].output for a in crosses))


@pytest.mark.parametrize("seed", [0, 20, 40])
def test_places_that_are_left_out_are_in_no_faster_plan(seed):
    for one in range(seed, seed + 20):
        rng = random.Random(one)
        graph = random_graph(rng, 7)
        sizes = rng.choice([(2,), (4,), (2, 2), (2, 3)])
        tiers = tuple(LinkLevel(size=n, bandwidth=rng.uniform(0.5, 20)) for n in sizes)
        form = CostConvention(overlap=rng.choice([0.0, 0.5, 1.0]))
        best = PipeDreamSolver(everything(graph), tiers, form, UNLIMITED).seconds
        fewer = all_cut_points(
            graph,
            lambda found, t=tiers, f=form, b=best: useful_cut_mask(found, t, f, b),
            multi_level=True,
        )
        assert PipeDreamSolver(fewer, tiers, form, UNLIMITED).seconds == pytest.approx(
            best
        )


def test_nothing_is_left_out_while_no_plan_is_known():
    places = ordered_cut_points(random_graph(random.Random(0), 5))
    tiers = (LinkLevel(size=2, bandwidth=1.0),)
    assert useful_cut_mask(places, tiers, CostConvention(), math.inf).all()


def test_a_node_that_makes_more_than_it_reads_keeps_its_cut():
    """A reshape may be joined with what it reads, an enlargement may not."""
    for output, left in ((100.0, 4), (1.0, 3)):
        nodes = (node("a"), node("b", 0.0, output), node("c"), node("d"))
        edges = (("a", "b"), ("b", "c"), ("c", "d"), ("b", "d"))
        small = contract_graph(
            LayerGraph(source="g", nodes=nodes, edges=edges), memory_limited=False
        )
        assert len(small.graph.nodes) == left


def test_what_is_kept_stays_a_node_where_memory_counts():
    nodes = (node("a"), node("b", 0.0), node("c"), node("d"))
    edges = (("a", "b"), ("b", "c"), ("c", "d"), ("b", "d"))
    graph = LayerGraph(source="g", nodes=nodes, edges=edges)
    assert len(contract_graph(graph, memory_limited=True).graph.nodes) == 4
    assert len(contract_graph(graph, memory_limited=False).graph.nodes) == 3


def test_too_many_sets_are_refused_with_the_order_as_remedy():
    nodes = tuple(node(f"n{i}") for i in range(20))
    with pytest.raises(BadInput, match="--cuts order"):
        everything(LayerGraph(source="wide", nodes=nodes, edges=()))
