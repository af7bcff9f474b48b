"""Where the split of images ends: what is tried, and what the search makes of it."""

from dataclasses import replace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.planner.layouts.evaluated_plans import PlanEvaluator
from jaxdist.planner.layouts.ranking import rank_plans
from jaxdist.planner.layouts.refinement import evaluate_spatial_ends
from jaxdist.planner.layouts.spatial_end import (
    MAX_SPATIAL_ENDS,
    SpatialEndCost,
    spatial_end_variants,
)

ROWS = Plan(mesh=MeshShape(spatial_h=4), microbatches=1)
BLOCKS = ("block1", "block2", "block3", "head")


@pytest.fixture(scope="module")
def subject():
    return StepDescriber(resolve_config("digits", ()).config)


def asked(subject, *words):
    return LayoutQuery(
        resolved=resolve_config("digits", words),
        describer=subject,
        cluster=load_cluster("testbed"),
        devices=4,
    )


@pytest.fixture(scope="module")
def coarse(subject):
    return asked(subject, "plan.mesh.spatial_h=4", "plan.remat=false").cost_estimate(())


def steps(subject, coarse, plan):
    """Predict a plan with every end of its split."""
    found = {("", "repeat"): plan}
    for block in BLOCKS:
        for then in ("repeat", "samples"):
            one = replace(plan, spatial_end=block, spatial_end_mode=then)
            found[block, then] = one
    return {
        end: predict(subject.describe(one), coarse.cluster).step_s
        for end, one in found.items()
    }


@pytest.mark.parametrize("axes", [dict(spatial_h=4), dict(data=2, spatial_h=2)])
def test_the_estimate_orders_ends_as_they_are_predicted(subject, coarse, axes):
    """Sums of gradients are in no end's estimate, as they are the same in all."""
    plan = replace(ROWS, mesh=MeshShape(**axes))
    ends, full = (
        SpatialEndCost(plan=plan, estimate=coarse),
        steps(subject, coarse, plan),
    )
    about = {end: ends.seconds(*end) for end in full}
    whole = "", "repeat"
    for end in full:
        saved = full[whole] - full[end]
        assert about[whole] - about[end] == pytest.approx(saved, abs=0.1 * full[whole])
    assert min(about, key=about.get) == min(full, key=full.get)


def test_ends_that_make_a_step_shorter_are_tried_and_few(subject, coarse):
    full = steps(subject, coarse, ROWS)
    room = -0.02 * full["", "repeat"]
    found = list(spatial_end_variants(ROWS, coarse, room))
    names = [(one.spatial_end, one.spatial_end_mode) for one in found]
    assert names == [(block, "samples") for block in BLOCKS[:3]]
    assert len(list(spatial_end_variants(ROWS, coarse, 1.0))) == MAX_SPATIAL_ENDS
    assert not list(
        spatial_end_variants(replace(ROWS, mesh=MeshShape(data=4)), coarse, 1.0)
    )


def test_the_search_ends_the_split_where_that_is_fastest(subject, coarse):
    found = rank_plans(coarse, (), subject.describe)
    best = found.plans[0]
    assert (best.plan.spatial_end, best.plan.spatial_end_mode) == ("block1", "samples")
    full = steps(subject, coarse, ROWS)
    assert best.prediction.step_s == min(full.values())
    whole = [one for one in found.plans if one.plan == ROWS]
    assert whole[0].prediction.step_s == full["", "repeat"]


def test_ends_that_cannot_be_the_first_are_not_described(subject, coarse):
    heap = PlanEvaluator(
        describe_step=subject.describe, cluster=coarse.cluster, memory_capacity=1e12
    )
    far = replace(ROWS, microbatches=16)
    heap.evaluate(Plan(mesh=MeshShape(data=4), microbatches=1))
    heap.evaluate(far)
    assert not evaluate_spatial_ends(heap, coarse)
    assert heap.num_evaluated == 2


def test_an_end_that_is_refused_is_passed_over(subject, coarse):
    def describe(plan):
        if plan.spatial_end == "block1":
            raise BadInput("not there")
        return subject.describe(plan)

    best = rank_plans(coarse, (), describe).plans[0].plan
    assert (best.spatial_end, best.spatial_end_mode) == ("block2", "samples")


@pytest.mark.parametrize(
    ("words", "until", "then", "ends"),
    [
        ((), "", "repeat", ("repeat", "samples")),
        (("plan.spatial_end=",), "", "repeat", ()),
        (("plan.spatial_end_mode=repeat",), "", "repeat", ("repeat",)),
        (("plan.spatial_end=head",), "head", "repeat", ("repeat", "samples")),
        (
            ("plan.spatial_end=head", "plan.spatial_end_mode=samples"),
            *("head", "samples", ("samples",)),
        ),
    ],
)
def test_an_end_that_was_typed_stays(subject, words, until, then, ends):
    question = asked(subject, *words)
    assert (question.base_plan.spatial_end, question.base_plan.spatial_end_mode) == (
        until,
        then,
    )
    coarse = question.cost_estimate(())
    assert coarse.space.choices.ends == ends
    plan = replace(question.base_plan.on(ROWS.mesh), microbatches=1)
    tried = list(spatial_end_variants(plan, coarse, 1.0))
    assert bool(tried) == bool(ends)
    assert {one.spatial_end_mode for one in tried} <= {*ends}
    assert {one.spatial_end for one in tried} <= ({until} if until else {*BLOCKS})


def test_a_block_that_the_network_lacks_is_refused(subject):
    with pytest.raises(BadInput, match="did you mean block3"):
        asked(subject, "plan.spatial_end=blok3").cost_estimate(())
