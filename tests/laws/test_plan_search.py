"""What a search finds in stages is the fastest of all cuts, schedules and microbatches."""

import itertools
from dataclasses import replace

import pytest

from jaxdist.core.plan import MeshShape
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.planner.layouts.ranking import rank_plans

pytestmark = pytest.mark.laws

STAGES = MeshShape(pipe=4)
MICROBATCHES = (3, 4, 6)
"""The best number and those beside it; the search chooses among all."""


@pytest.mark.timeout(600)
def test_no_plan_of_four_stages_is_faster_than_the_first():
    """AlexNet on links of 200 Mbit, where other cuts suit other microbatches."""
    words = ("data.name=synthetic", "data.samples=480", "data.batch=48")
    resolved = resolve_config(
        "alexnet", (*words, "model.size=tiny"), is_mesh_searched=True
    )
    query = LayoutQuery(
        resolved=resolved,
        describer=StepDescriber(resolved.config),
        cluster=load_cluster("testbed"),
        devices=STAGES.devices,
    )
    estimate = query.cost_estimate(())
    describe = query.describer.describe
    first = rank_plans(estimate, query.baseline_plans(), describe).plans[0]
    space, names = estimate.space, estimate.block_costs.block_names
    steps = {}
    for row in range(len(space)):
        plan = space.plan(row)
        asked = plan.mesh == STAGES and plan.microbatches in MICROBATCHES
        if not asked or plan.remat or plan.pipe.chunks > 1:
            continue
        for cuts in itertools.combinations(names[1:], plan.stages - 1):
            one = replace(plan, pipe=replace(plan.pipe, cuts=cuts))
            steps[one] = predict(describe(one), query.cluster).step_s
    assert {one.pipe.schedule for one in steps} >= {"1f1b", "eager-1f1b"}
    assert len(steps) > 500
    assert first.prediction.step_s <= min(steps.values())
