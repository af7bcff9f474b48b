"""Execution traces of predicted steps: bytes of the ledger, seconds of the prediction."""

from collections import Counter
from dataclasses import replace

import pytest

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.network.chakra.files import read_traces, write_traces
from jaxdist.network.chakra.trace import result_bytes
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.topologies.registry import make_topology
from jaxdist.network.trace_replay import replay_trace
from jaxdist.oracle.planned_transfers import split_row
from jaxdist.oracle.predict import predict
from jaxdist.oracle.step_trace import step_trace

PIPES = {
    name: Plan(mesh=MeshShape(pipe=2, **mesh), pipe=pipe, microbatches=4)
    for name, mesh, pipe in (
        ("stages", {}, PipelineConfig(schedule="1f1b")),
        ("eager", {"data": 2}, PipelineConfig(schedule="eager-1f1b")),
        ("zero bubble", {"data": 2}, PipelineConfig(schedule="zb-h1")),
        ("chunks", {}, PipelineConfig(schedule="interleaved", chunks=2)),
        ("sharded", {"fsdp": 2}, PipelineConfig(schedule="gpipe")),
    )
}
PLANS = {
    "one": Plan(microbatches=1),
    "data": Plan(mesh=MeshShape(data=4), microbatches=1),
    "fsdp": Plan(mesh=MeshShape(fsdp=4), microbatches=1),
    "zero 1": Plan(mesh=MeshShape(fsdp=4), microbatches=2, zero=1),
    "rounds": Plan(mesh=MeshShape(data=2, fsdp=2), microbatches=4),
    "tensor": Plan(mesh=MeshShape(data=2, tensor=2), microbatches=2),
    "images": Plan(mesh=MeshShape(data=2, spatial_h=2), microbatches=2),
    "placed": Plan(
        mesh=MeshShape(data=2, tensor=2), microbatches=1, placement=("data",)
    ),
    "int8": Plan(
        mesh=MeshShape(data=4),
        microbatches=1,
        reduce=ReductionConfig(algorithm="int8"),
    ),
    **PIPES,
}
ROUNDING_US = 1


def with_overlap(share):
    cluster = load_cluster("testbed")
    return cluster.with_number("overlap", SourcedNumber(share, "given: a test"))


def traced(digits, plan, overlap=0.0):
    case, cluster = digits.describe(plan), with_overlap(overlap)
    prediction = predict(case, cluster)
    return case, prediction, step_trace(case, cluster, prediction)


@pytest.mark.parametrize("overlap", [0.0, 1.0])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_each_rank_moves_the_bytes_of_its_ledger(digits, plan, overlap):
    case, _, trace = traced(digits, plan, overlap)
    stride, size = plan.placed.place("pipe")
    for rank, nodes in enumerate(trace.ranks):
        ledger = case.ledgers[rank // stride % size]
        wanted, arrays = Counter(), Counter()
        for row in ledger.rows:
            if row.kind != "collective-permute":
                wanted[row.kind, plan.mesh.size(*row.axes)] += row.payload
                arrays[row.kind] += row.arrays
        found, count = Counter(), Counter()
        for node in nodes:
            if node.kind == "collective":
                members = len(trace.members(node))
                found[node.collective, members] += result_bytes(node, members)
                count[node.collective] += 1
        assert found == wanted
        assert count == arrays


@pytest.mark.parametrize("plan", [PLANS["images"], *PIPES.values()])
def test_messages_are_those_of_permutations_but_for_the_ends_of_a_line(digits, plan):
    """A device with a neighbour on one side alone sends half; a loop has no ends."""
    case, _, trace = traced(digits, plan)
    sent, received = Counter(), Counter()
    for rank, nodes in enumerate(trace.ranks):
        for node in nodes:
            if node.kind == "send":
                sent[rank, node.peer, node.tag] += node.size
            elif node.kind == "receive":
                received[node.peer, rank, node.tag] += node.size
    assert sent == received
    stride, size = plan.placed.place("pipe")
    wanted = 0
    for rank in range(len(trace.ranks)):
        for row in case.ledgers[rank // stride % size].rows:
            if row.kind == "collective-permute":
                line = 0.5 if plan.pipe.chunks == 1 else 1.0
                wanted += line * row.payload
    assert sum(sent.values()) == pytest.approx(wanted, abs=len(sent))
    assert wanted > 0


@pytest.mark.parametrize("overlap", [0.0, 1.0])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_busiest_rank_computes_the_predicted_seconds(digits, plan, overlap):
    _, prediction, trace = traced(digits, plan, overlap)
    terms = ("compute", "packing", "offload", "update", "input")
    wanted = 1e6 * sum(prediction.terms_s.get(term, 0.0) for term in terms)
    stride, _ = plan.placed.place("pipe")
    nodes = trace.ranks[prediction.busiest_device * stride]
    assert sum(node.duration_us for node in nodes) == pytest.approx(
        wanted, abs=ROUNDING_US
    )


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_trace_is_read_as_it_was_written_and_replayed(digits, plan, tmp_path):
    _, prediction, trace = traced(digits, plan, 1.0)
    write_traces(tmp_path / "step", trace)
    again = read_traces(tmp_path / "step")
    assert again == trace
    network = NetworkModel(topology=make_topology("star", max(2, len(trace.ranks)), {}))
    found = replay_trace(again, network)
    # Times of events are sums, each rounded.
    assert found.compute_s <= found.seconds * (1 + 1e-9)
    moved = sum(n.kind == "collective" for nodes in trace.ranks for n in nodes)
    members = sum(
        one.count * one.ranks for one in found.collectives if one.kind != "message"
    )
    assert members == moved
    assert prediction.step_s > 0


def test_replayed_reductions_take_what_their_simulation_takes(digits):
    """Nothing overlaps, so the network is in use for the sum of all collectives."""
    plan = Plan(mesh=MeshShape(data=4), microbatches=2)
    case, _, trace = traced(digits, plan)
    network = NetworkModel(topology=make_topology("fat_tree", 4, {"per_leaf": 2}))
    found = replay_trace(trace, network, "halving_doubling")
    steps = schedule_by_name("halving_doubling", 4)
    wanted = sum(
        simulate_collective(steps, one.size, network).seconds
        for row in case.ledgers[0].rows
        for one in split_row(row, 4)
    )
    assert found.communication_s == pytest.approx(wanted, rel=1e-9)
    assert found.seconds == pytest.approx(found.compute_s + wanted, rel=1e-9)


@pytest.mark.parametrize("name", ["data", "fsdp"])
def test_collectives_run_beside_compute_where_the_cluster_overlaps_them(digits, name):
    network = NetworkModel(topology=make_topology("star", 4, {"bandwidth": "1gbit"}))
    apart = replay_trace(traced(digits, PLANS[name], 0.0)[2], network)
    beside = replay_trace(traced(digits, PLANS[name], 1.0)[2], network)
    whole = apart.compute_s + apart.communication_s
    assert apart.seconds == pytest.approx(whole, rel=1e-6)
    assert beside.seconds < 0.999 * (beside.compute_s + beside.communication_s)


def test_a_gradient_is_reduced_behind_the_pass_that_makes_it(digits):
    """Before a share of the gradients is moved, as much of the network was passed."""
    case, _, trace = traced(digits, PLANS["data"], 1.0)
    size = Counter()
    for layer in case.compute_layers(0):
        size[f"backward {layer.block or layer.name}, microbatch 0"] += (
            layer.parameter_bytes
        )
    nodes, before, moved = {n.id: n for n in trace.ranks[0]}, {}, 0
    for node in trace.ranks[0]:
        before[node.id] = {node.id}.union(*(before[i] for i in node.dependencies))
    reductions = [n for n in trace.ranks[0] if n.collective == "all-reduce"]
    gradients = [n for n in reductions if "gradients" in n.name]
    assert len(gradients) > 10
    total = sum(n.size for n in gradients)
    for node in gradients:
        moved += node.size
        passed = sum(size[name] for name in {nodes[i].name for i in before[node.id]})
        assert passed / size.total() >= moved / total - 1e-9


@pytest.mark.parametrize("plan", PIPES.values(), ids=PIPES)
def test_stages_wait_for_each_other_as_the_schedule_says(digits, plan):
    """On links that cost nothing a step has its compute and its bubble, and no more."""
    cluster = load_cluster("testbed")
    for level in cluster.levels:
        for name, value in (("bandwidth", 1e16), ("alpha", 1e-10)):
            number = SourcedNumber(value, "given: a test")
            cluster = cluster.with_number(f"levels.{level.name}.{name}", number)
    case = digits.describe(plan)
    prediction = predict(case, cluster)
    trace = step_trace(case, cluster, prediction)
    free = {"bandwidth": "5000TB/s", "latency": "0s"}
    network = NetworkModel(topology=make_topology("star", len(trace.ranks), free))
    found = replay_trace(trace, network)
    assert prediction.terms_s["bubble"] > 0
    assert found.seconds == pytest.approx(prediction.step_s, rel=1e-4)


def test_what_has_no_trace_is_refused(digits):
    pipe = PipelineConfig(schedule="pipedream")
    with pytest.raises(BadInput, match="asynchronous pipeline has no trace"):
        traced(digits, Plan(mesh=MeshShape(pipe=2), pipe=pipe, microbatches=4))
    ring = ReductionConfig(algorithm="ring")
    with pytest.raises(BadInput, match="schedule of permutations have no trace"):
        traced(digits, Plan(mesh=MeshShape(data=4), microbatches=1, reduce=ring))


def test_arrays_of_a_row_are_whole_and_add_up(digits):
    case = digits.describe(PLANS["rounds"])
    for row in case.ledgers[0].rows:
        devices = case.plan.mesh.size(*row.axes)
        parts = [one.size for one in split_row(row, devices)]
        assert sum(parts) == row.payload
        assert len(parts) == row.arrays
        if row.kind == "all-gather":
            assert not any(size % devices for size in parts)
    (row, *_) = case.ledgers[0].rows
    uneven = replace(row, kind="all-reduce", payload=10, arrays=3)
    assert [one.size for one in split_row(uneven, 4)] == [3, 3, 4]
