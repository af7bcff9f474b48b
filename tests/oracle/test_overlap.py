"""Hiding: what overlaps shortens a step, by no more than can go on at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.meshes.clusters.load import cluster_names, load_cluster
from jaxdist.oracle.collective_times import traffic_seconds
from jaxdist.oracle.flow_shop import concurrent_time
from jaxdist.oracle.overlap import collective_overlaps
from jaxdist.oracle.predict import predict, slowest_traffic

PLANS = {
    "data": Plan(mesh=MeshShape(data=4), microbatches=1),
    "fsdp": Plan(mesh=MeshShape(fsdp=4), microbatches=1),
    "both": Plan(mesh=MeshShape(data=2, fsdp=2), microbatches=1),
    "rounds": Plan(mesh=MeshShape(data=2, fsdp=2), microbatches=4),
    "again": Plan(mesh=MeshShape(fsdp=4), microbatches=1, remat=True),
    "tensor": Plan(mesh=MeshShape(data=2, tensor=2), microbatches=1),
    "images": Plan(mesh=MeshShape(data=2, spatial_h=2), microbatches=1),
}


def with_overlap(share, cluster="testbed", **numbers):
    """A cluster with some of its numbers changed."""
    machine = load_cluster(cluster)
    for path, value in {"overlap": share, **numbers}.items():
        machine = machine.with_number(path, SourcedNumber(value, "given: a test"))
    return machine


def in_turn(first, then):
    """Play the second worker piece by piece, each as soon as it is there."""
    there = done = 0.0
    for a, b in zip(first, then, strict=True):
        there += a
        done = max(there, done) + b
    return done


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=20))
def test_two_workers_take_what_they_take_piece_by_piece(pieces):
    first, then = np.array(pieces).T
    both = concurrent_time(first, then)
    took = first.sum() + then.sum() - both
    assert took == pytest.approx(in_turn(first, then))
    assert -1e-9 <= both <= min(first.sum(), then.sum()) + 1e-9


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_without_overlap_collectives_are_added(digits, plan):
    case, cluster = digits.describe(plan), load_cluster("testbed")
    found = predict(case, cluster)
    (_, ledger), _ = slowest_traffic(case, cluster, 0)
    moved = traffic_seconds(ledger, cluster, plan.placed)
    assert found.overlapped_s == {}
    assert {name: found.terms_s[name] for name in moved} == moved
    assert predict(
        case, replace(cluster, overlap=SourcedNumber(0.0, "given: me"))
    ) == replace(found, provenance=found.provenance | {"overlap": "given: me"})


@pytest.mark.parametrize("rate", [1e6, 25e6, 1e9, 1e11])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_step_is_shorter_by_what_is_hidden_and_no_more(digits, plan, rate):
    case = digits.describe(plan)
    speed = {"levels.net.bandwidth": rate}
    whole = predict(case, with_overlap(0.0, **speed))
    moved = {name for name in whole.terms_s if ", " in name}
    comm = sum(whole.terms_s[name] for name in moved)
    before = whole.step_s
    for share in (0.1, 0.3, 0.7, 0.9, 1.0):
        found = predict(case, with_overlap(share, **speed))
        assert found.step_s < before
        assert found.step_s >= max(whole.terms_s["compute"], comm)
        for name, took in whole.terms_s.items():
            hidden = found.overlapped_s.get(name, 0.0)
            assert found.terms_s[name] + hidden == pytest.approx(took)
            assert found.terms_s[name] >= 0
        assert found.step_s == pytest.approx(sum(found.terms_s.values()))
        assert found.to_dict()["hidden_s"] == found.overlapped_s
        before = found.step_s


@pytest.mark.parametrize("plan", [PLANS["data"], PLANS["again"]], ids=("data", "again"))
def test_what_is_hidden_slows_computing_by_the_interference(digits, plan):
    case, path = digits.describe(plan), "device.interference"
    whole, free = (predict(case, with_overlap(share)) for share in (0.0, 1.0))
    hidden = sum(free.overlapped_s.values())
    assert hidden > 0
    for share in (0.25, 1.0):
        found = predict(case, with_overlap(1.0, **{path: share}))
        assert found.overlapped_s == free.overlapped_s
        slower = found.terms_s["compute"] - free.terms_s["compute"]
        assert slower == pytest.approx(share * hidden)
    # Where a second costs a second nothing is gained.
    assert found.step_s == pytest.approx(whole.step_s)
    # What does not overlap disturbs nothing.
    alone = predict(case, with_overlap(0.0, **{path: 1.0}))
    assert alone.step_s == whole.step_s


def test_only_what_computing_does_not_need_is_hidden(digits):
    """Sums of gradients, and gathers; nothing that layers say to each other."""
    cluster = with_overlap(1.0)
    hidden = {name: predict(digits.describe(p), cluster) for name, p in PLANS.items()}
    names = {name: set(one.overlapped_s) for name, one in hidden.items()}
    assert names["data"] == {"all-reduce, data"}
    assert names["tensor"] == {"all-reduce, data", "all-reduce, data x tensor"}
    assert names["fsdp"] == {
        *("all-reduce, fsdp", "parameters, fsdp", "gradients, fsdp")
    }
    assert names["images"] == {"all-reduce, data x spatial_h"}
    assert {"halo, spatial_h"} < hidden["images"].terms_s.keys()


def test_what_comes_behind_a_loop_is_hidden_by_nothing(digits):
    """A loop of microbatches or of beats ends before its sums begin."""
    cluster = with_overlap(1.0)
    rounds = digits.describe(PLANS["rounds"])
    assert predict(rounds, cluster).overlapped_s.keys() == {"parameters, fsdp"}
    updated = digits.describe(replace(PLANS["fsdp"], zero=1))
    assert "parameters, fsdp" not in predict(updated, cluster).overlapped_s
    for schedule in ("1f1b", "pipedream"):
        pipe = PipelineConfig(schedule=schedule)
        plan = Plan(mesh=MeshShape(pipe=2, data=2), microbatches=4, pipe=pipe)
        assert predict(digits.describe(plan), cluster).overlapped_s == {}


def test_a_bucket_that_holds_all_waits_for_the_whole_pass(digits):
    def hidden(mib):
        reduce = ReductionConfig(algorithm="int8", bucket_mib=mib)
        case = digits.describe(replace(PLANS["data"], reduce=reduce))
        return predict(case, with_overlap(1.0)).overlapped_s

    assert hidden(16.0) == {}
    assert hidden(0.1)["int8, data"] > 0


def test_a_pass_hides_gathers_and_sums_for_no_longer_than_it_takes(digits):
    case = digits.describe(PLANS["both"])
    cluster = with_overlap(1.0, **{"levels.net.bandwidth": 1e7})
    (_, ledger), _ = slowest_traffic(case, cluster, 0)
    found = collective_overlaps(case, cluster, ledger)
    assert [one.compute_pass for one in found] == ["forward", "backward", "backward"]
    _, gathers, sums = found
    assert sums.compute_seconds == pytest.approx(
        gathers.compute_seconds - gathers.overlapped_seconds
    )
    assert (
        sums.overlapped_seconds + gathers.overlapped_seconds <= gathers.compute_seconds
    )


def test_named_clusters_say_what_their_overlap_rests_on():
    for name in cluster_names():
        overlap = load_cluster(name).overlap
        assert 0 <= overlap.value < 1
        assert overlap.value == 0 or overlap.origin.startswith("assumed: half")
    with pytest.raises(BadInput, match="no more can be hidden") as caught:
        with_overlap(1.01)
    assert "overlap: 1" in caught.value.remedy
