"""The arithmetic of a prediction, term by term."""

from dataclasses import replace

import pytest

from jaxdist.collectives.hlo_collectives import COLLECTIVE_KINDS
from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compute_times import stage_compute_times
from jaxdist.oracle.predict import predict
from jaxdist.planner.explain import bytes_of, explain_seconds


@pytest.fixture(scope="module")
def subject():
    return StepDescriber(resolve_config("digits").config)


PLANS = {
    "gathers": Plan(mesh=MeshShape(data=2, fsdp=2)),
    "weights": Plan(mesh=MeshShape(data=2, tensor=2)),
    "packed": Plan(mesh=MeshShape(data=4), reduce=ReductionConfig(algorithm="int8")),
    "stages": Plan(
        mesh=MeshShape(pipe=2, data=2),
        microbatches=4,
        pipe=PipelineConfig(schedule="gpipe"),
    ),
}


def measured(cluster):
    """Let collectives of a kind bend by their size, and packing take its time."""
    one = SourcedNumber(1.0, "measured: a test")
    lines = [
        CollectiveCost(
            kind=kind,
            devices=devices,
            messages=one,
            share=one,
            bend=((100.0, 0.5), (1e3, 2.0), (1e5, 1.0), (1e6, 3.0)),
        )
        for kind in COLLECTIVE_KINDS
        for devices in (2, 4)
    ]
    packing = {"int8": SourcedNumber(1e-8, "measured: a test")}
    return replace(
        cluster,
        device=replace(cluster.device, packing=packing),
        levels=(replace(cluster.levels[0], lines=tuple(lines)),),
    )


HALF = SourcedNumber(0.5, "given: a test")
CLUSTERS = {
    "straight": load_cluster("testbed"),
    "hidden": load_cluster("testbed").with_number("overlap", HALF),
    "measured": measured(load_cluster("testbed")),
}


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_lines_of_an_account_add_up_to_what_is_predicted(subject, plan, cluster):
    case = subject.describe(plan)
    made = predict(case, cluster)
    terms = list(explain_seconds(case, cluster, made))
    whole = {term.name: term.value for term in terms if not term.name.startswith(" ")}
    assert whole == made.terms_s
    parts = 0.0
    for term in terms:
        if term.name.startswith(" "):
            parts += term.value
        elif ", " in term.name:
            assert parts == pytest.approx(term.value)
            parts = 0.0
        elif term.name == "compute" and not case.stages:
            assert case.microbatches * parts == pytest.approx(term.value)
            parts = 0.0
        else:
            parts = 0.0
    assert sum(term.value for term in bytes_of(made)) == made.memory_bytes


def test_stages_are_computed_for_every_microbatch(subject):
    case, cluster = subject.describe(PLANS["stages"]), load_cluster("testbed")
    made = predict(case, cluster)
    told = {one.name: one.formula for one in explain_seconds(case, cluster, made)}
    assert told["compute"].startswith("4 microbatches x ")
    assert f" of stage {made.busiest_device} x " in told["compute"]
    stage = stage_compute_times(case, cluster)[made.busiest_device]
    late = 1 + cluster.jitter.value
    computed = 4 * late * (stage.forward + stage.backward)
    assert made.terms_s["compute"] == pytest.approx(computed)


def test_the_account_says_what_is_saved_while_others_rest(subject):
    case, alone = subject.describe(PLANS["stages"]), load_cluster("testbed")
    crowd = alone.with_number("device.crowd", SourcedNumber(2.0, "given: a test"))
    for cluster, saves in ((alone, False), (crowd, True)):
        made = predict(case, cluster)
        told = {one.name: one.formula for one in explain_seconds(case, cluster, made)}
        assert ("while others rest" in told["compute"]) == saves
    rest = told["compute"].rpartition(" while")[0].rpartition(" x ")[2]
    whole = predict(case, alone).terms_s["compute"]
    assert made.terms_s["compute"] == pytest.approx(float(rest) * whole, rel=1e-2)


def test_the_account_says_what_is_hidden_behind_which_pass(subject):
    case, cluster = subject.describe(PLANS["gathers"]), CLUSTERS["hidden"]
    made = predict(case, cluster)
    told = list(explain_seconds(case, cluster, made))
    saved = [one for one in told if one.name.startswith("  behind the ")]
    assert -sum(one.value for one in saved) == pytest.approx(
        sum(made.overlapped_s.values())
    )
    assert max(one.value for one in saved) < 0
    assert {one.name.split()[2] for one in saved} == {"forward", "backward"}
    assert all(one.formula.startswith("less 0.5 overlap x ") for one in saved)


def test_the_account_says_how_far_sizes_lie_from_a_line(subject):
    case = subject.describe(PLANS["packed"])
    for name, cluster in CLUSTERS.items():
        made = predict(case, cluster)
        told = {one.name: one.formula for one in explain_seconds(case, cluster, made)}
        assert ("for their sizes" in told["  all-reduce"]) == (name == "measured")
        assert ("packing" in told) == (name == "measured")
    assert "numbers x 10 ns of int8" in told["packing"]


def test_a_stage_lists_what_it_works_on():
    """A table that the last block asks is work of the last stage."""
    words = ("model.depth=2", "model.vocabulary=256", "plan.mesh.data=1")
    text, cluster = (
        StepDescriber(resolve_config("characters", words).config),
        load_cluster("testbed"),
    )
    case = text.describe(Plan(mesh=MeshShape(pipe=2), microbatches=2))
    told = list(explain_seconds(case, cluster, predict(case, cluster)))
    spent = stage_compute_times(case, cluster)
    for stage, one in enumerate(spent):
        parts = [each for each in told if each.name.startswith(f"  stage {stage}")]
        whole = sum(each.value for each in parts)
        assert whole == pytest.approx(one.forward + one.backward)


def test_each_step_of_a_named_algorithm_starts_a_message(subject):
    ring = Plan(mesh=MeshShape(data=4), reduce=ReductionConfig(algorithm="ring"))
    far = replace(ring, reduce=ring.reduce.by("recursive_doubling"))
    for plan, messages in ((ring, 6), (far, 2)):
        ledger = subject.describe(plan).ledgers[0]
        rows = [row for row in ledger.rows if row.what == plan.reduce.algorithm]
        assert sum(row.arrays for row in rows) == messages * len(rows)


def test_the_account_says_what_collectives_cost_the_computing_beside_them(subject):
    case = subject.describe(Plan(mesh=MeshShape(data=4)))
    hidden = CLUSTERS["hidden"]
    slower = hidden.with_number("device.interference", HALF)
    for cluster, lost in ((hidden, False), (slower, True)):
        made = predict(case, cluster)
        assert made.overlapped_s
        told = {one.name: one for one in explain_seconds(case, cluster, made)}
        formula = told["compute"].formula
        assert ("lost beside collectives" in formula) == lost
        assert "while others rest" not in formula
        assert told["compute"].value == made.terms_s["compute"]
