"""Which axes lie side by side in a host: tried where links differ, kept where faster."""

import math
from dataclasses import replace

import pytest

from jaxdist.core.axes import AXES
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import cluster_from_tree, load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.planner.layouts.evaluated_plans import EvaluatedPlan, PlanEvaluator
from jaxdist.planner.layouts.refinement import placement_variants, step_lower_bound

DEVICE = {
    "name": "one",
    "memory": "16 GB",
    "memory_bandwidth": "900 GB/s",
    "flops": {"float32": "10 TFLOP/s"},
    "efficiency": 0.5,
}
HOST = {"name": "host", "size": 2, "alpha": "1 us", "bandwidth": "100 GB/s"}
ROOM = {"name": "room", "size": 4, "alpha": "20 us", "bandwidth": "1 GB/s"}
PAIRS = cluster_from_tree({"device": DEVICE, "levels": [HOST, ROOM]}, "pairs")
PLAN = Plan(mesh=MeshShape(data=2, tensor=2))


@pytest.fixture(scope="module")
def subject():
    words = ("plan.mesh.data=2", "plan.mesh.spatial_h=1", "data.batch=8")
    return StepDescriber(resolve_config("digits", words).config)


@pytest.mark.parametrize(
    ("mesh", "inside"),
    [
        (MeshShape(data=2, tensor=2), {"data"}),
        (MeshShape(pipe=2, data=2, tensor=2), {"pipe", "data"}),
        (MeshShape(pipe=2, data=4), {"pipe"}),
        (MeshShape(data=8), set()),
        (MeshShape(), set()),
    ],
)
def test_axes_are_moved_where_links_then_differ(mesh, inside):
    found = [
        plan.placement for plan in placement_variants(Plan(mesh=mesh), AXES, PAIRS)
    ]
    assert {name for (name,) in found} == inside
    assert not list(placement_variants(Plan(mesh=mesh), (), PAIRS))
    assert not list(placement_variants(Plan(mesh=mesh), AXES, load_cluster("cpu-fake")))


def test_an_axis_is_moved_behind_those_that_were():
    plan = Plan(mesh=MeshShape(pipe=2, data=2, tensor=2), placement=("data",))
    found = {one.placement for one in placement_variants(plan, AXES, PAIRS)}
    assert found == {("data", "pipe"), ("data", "tensor")}


def test_a_step_is_described_once_for_all_placements(subject):
    """What is predicted so is what a description of each gives."""
    asked = []

    def describe(plan):
        asked.append(plan)
        return subject.describe(plan)

    heap = PlanEvaluator(
        describe_step=describe, cluster=PAIRS, memory_capacity=math.inf
    )
    assert heap.evaluate(PLAN)
    moved = replace(PLAN, placement=("data",))
    heap.evaluate_placements(PLAN, [moved])
    heap.evaluate_placements(PLAN, [moved])
    assert len(asked) == 1
    steps = {one.plan: one.prediction.step_s for one in heap.sorted()}
    assert steps[moved] == predict(subject.describe(moved), PAIRS).step_s
    # With few samples the many small sums of statistics decide, which are data's.
    assert steps[moved] < steps[PLAN]
    heap.keep_best(lambda plan: replace(plan, placement=()))
    assert [one.plan for one in heap.sorted()] == [moved]


def test_no_placement_is_faster_than_what_is_said_to_bound_it(subject):
    """The bound leaves out what comes nearer, and nothing else."""
    for plan in (
        PLAN,
        Plan(mesh=MeshShape(pipe=2, data=2, tensor=2), microbatches=2),
        Plan(mesh=MeshShape(data=2, fsdp=2, tensor=2)),
    ):
        one = ranked(subject, plan)
        for moved in placement_variants(plan, AXES, PAIRS):
            step = predict(subject.describe(moved), PAIRS).step_s
            assert 0 < step_lower_bound(one, moved, PAIRS) <= step
    one, moved = ranked(subject, PLAN), replace(PLAN, placement=("data",))
    terms = one.prediction.terms_s
    nearer = terms["all-reduce, data"] + terms["statistics, data"]
    assert step_lower_bound(one, moved, PAIRS) == pytest.approx(
        sum(terms.values()) - nearer
    )


def ranked(subject, plan):
    return EvaluatedPlan(plan=plan, prediction=predict(subject.describe(plan), PAIRS))
