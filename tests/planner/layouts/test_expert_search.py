"""The expert axis in a search: what small layouts tell of large ones, and which fit."""

import numpy as np
import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.planner.layouts.block_costs import BlockCosts
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.space import PlanChoices, plan_space
from jaxdist.planner.layouts.traffic_probes import probe_traffic

AXES = ("data", "fsdp", "expert")


@pytest.fixture(scope="module")
def subject():
    words = (
        *("model.size=tiny", "data.name=synthetic", "data.context=16"),
        *("data.batch=16", "plan.mesh.fsdp=1", "model.capacity_factor=1"),
    )
    return StepDescriber(resolve_config("mixtral", words).config)


@pytest.fixture(scope="module")
def probes(subject):
    device, size = load_cluster("abci").device, subject.profile.parameter_bytes
    return probe_traffic(Plan(), 2, AXES, subject.describe, size, device)


def space_of(subject, devices, axes=AXES, experts=4):
    network = subject.profile
    return plan_space(
        Plan(),
        devices,
        PlanChoices(axes=axes),
        batch=network.batch,
        blocks=len(network.blocks),
        experts=experts,
    )


def test_two_devices_tell_what_four_exchange(subject, probes):
    assert probes.usable_axes == AXES
    (row,) = (
        row
        for row in subject.describe(Plan(mesh=MeshShape(expert=4))).ledgers[0].rows
        if row.kind == "all-to-all"
    )
    assert probes.expert_exchange.payload == 4 * row.payload
    assert probes.expert_exchange.arrays == row.arrays


def test_experts_are_counted_once_for_all_devices_of_their_axis(subject, probes):
    cluster, space = load_cluster("abci"), space_of(subject, 4)
    costs = CostEstimate(
        space=space,
        cluster=cluster,
        block_costs=BlockCosts(
            profile=subject.profile,
            device=cluster.device,
            dtype=subject.dtype,
            tensor_parallel_layers=frozenset(),
        ),
        traffic=probes,
    )
    (alone,) = np.nonzero(space.sizes("expert") == 4)[0]
    plan = Plan(mesh=MeshShape(expert=4))
    case = subject.describe(plan)
    assert costs._parameter_bytes[alone] == pytest.approx(
        case.state_bytes["parameters"], rel=0.01
    )
    assert costs.seconds[alone] > 0


def test_axes_that_experts_do_not_divide_over_are_left_out(subject):
    assert sorted(set(space_of(subject, 8).sizes("expert"))) == [1, 2, 4]
    assert set(space_of(subject, 4, experts=0).sizes("expert")) == {1}
