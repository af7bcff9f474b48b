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
        tokens=16,
        experts=experts,
    )


def estimate(subject, probes, space):
    cluster = load_cluster("abci")
    return CostEstimate(
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
    space = space_of(subject, 4)
    costs = estimate(subject, probes, space)
    (alone,) = np.nonzero(space.sizes("expert") == 4)[0]
    plan = Plan(mesh=MeshShape(expert=4))
    case = subject.describe(plan)
    assert costs._parameter_bytes[alone] == pytest.approx(
        case.state_bytes["parameters"], rel=0.01
    )
    assert costs.seconds[alone] > 0


def test_experts_are_split_beside_stages_and_context(subject, probes):
    space = space_of(subject, 4, (*AXES, "pipe", "context"))
    costs, split = estimate(subject, probes, space), space.sizes("expert") == 2
    for axis in ("pipe", "context"):
        (first, *_) = np.nonzero(split & (space.sizes(axis) == 2))[0]
        plan = space.plan(first)
        assert (plan.mesh.expert, plan.mesh.size(axis)) == (2, 2)
        case = subject.describe(plan)
        assert "expert tokens" in {
            row.what for each in case.ledgers for row in each.rows
        }
        assert 0 < costs.seconds[first] < np.inf


def test_tokens_between_pairs_may_be_split_beside_experts(subject):
    size, device = subject.profile.parameter_bytes, load_cluster("abci").device
    plan = Plan(tensor_strategy="sequence")
    found = probe_traffic(plan, 2, ("tensor",), subject.describe, size, device)
    assert found.usable_axes == ("tensor",)
    assert {"all-gather", "reduce-scatter"} <= {*found.tensor_collectives}


def test_axes_that_experts_do_not_divide_over_are_left_out(subject):
    assert sorted(set(space_of(subject, 8).sizes("expert"))) == [1, 2, 4]
    assert set(space_of(subject, 4, experts=0).sizes("expert")) == {1}
