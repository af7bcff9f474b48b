"""Activations that a plan keeps, computes again or moves, chosen by memory and time."""

from dataclasses import replace

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.planner.layouts.activation_policies import (
    repeated_layers,
    search_activation_policies,
)
from jaxdist.planner.layouts.evaluated_plans import PlanEvaluator

TPU = load_cluster("tpu-v5p")
ALL = Plan(mesh=MeshShape(data=2), microbatches=1, remat=True)


@pytest.fixture(scope="module")
def subject():
    words = (
        *("model.size=tiny", "model.depth=4", "data.name=synthetic", "data.batch=16"),
        *("data.context=16", "precision=bfloat16", "plan.mesh.data=1"),
    )
    return StepDescriber(resolve_config("llama", words).config, "tpu")


def searched(subject, room, cluster=TPU):
    evaluator = PlanEvaluator(
        describe_step=subject.describe, cluster=cluster, memory_capacity=room
    )
    evaluator.evaluate(ALL)
    search_activation_policies(evaluator, subject.profile, evaluator.evaluate)
    return evaluator


def bytes_of(subject, plan, cluster=TPU):
    evaluator = PlanEvaluator(
        describe_step=subject.describe, cluster=cluster, memory_capacity=1e12
    )
    evaluator.evaluate(plan)
    return evaluator.feasible[plan.label].prediction


def test_layers_of_equal_blocks_have_one_pattern(subject):
    found = {layer.patterns: layer for layer in repeated_layers(subject.profile)}
    up = found["*.mlp.up",]
    assert up.output_bytes == 2 * 4 * 16 * 16 * 64
    assert up.flops == pytest.approx(2 * 4 * 16 * 16 * 32 * 64, rel=0.01)
    # The pattern of a name that others have as well would match those.
    assert all(len(patterns) in (1, 4) for patterns in found)
    # Nothing in a block reads the output of its last product again.
    assert ("*.mlp.down",) not in found


def test_experts_are_computed_again_whether_their_results_are_kept_or_not():
    words = (
        *("model.size=tiny", "model.depth=3", "data.name=synthetic", "data.batch=4"),
        *("data.context=16", "plan.mesh.data=1"),
    )
    subject = StepDescriber(resolve_config("mixtral", words).config, "tpu")
    patterns = [one.patterns for one in repeated_layers(subject.profile)]
    assert ("*.attention.query",) in patterns
    assert ("*.mlp",) not in patterns
    kept = replace(ALL, remat_saves=("*.mlp",))
    every, found = (bytes_of(subject, plan).terms_s for plan in (ALL, kept))
    assert found["compute"] == every["compute"]


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("link", [1.0, 1e-3])
def test_the_first_plan_is_never_slower_than_all_of_either(subject, part, link):
    """By the same figures: all computed again, or all on the host."""
    host = replace(TPU.host_link, value=link * TPU.host_link.value)
    cluster = replace(TPU, host_link=host)
    every = sum((x.patterns for x in repeated_layers(subject.profile)), ())
    moved = replace(ALL.without_remat, offload=every)
    most = bytes_of(subject, ALL.without_remat).memory_bytes
    least = min(bytes_of(subject, p).memory_bytes for p in (ALL, moved))
    room = least + part * (most - least)
    found = searched(subject, room, cluster).sorted()
    for plan in (ALL, moved):
        one = bytes_of(subject, plan, cluster)
        if one.memory_bytes <= room:
            assert found[0].prediction.step_s <= one.step_s
    assert all(one.prediction.memory_bytes <= room for one in found)


def test_where_all_that_is_kept_is_too_much_the_inputs_are_moved(subject):
    least = bytes_of(subject, ALL).memory_bytes
    evaluator = searched(subject, least - 1)
    blocks = tuple(f"block{i}" for i in range(4))
    assert any(one.plan.offload == blocks for one in evaluator.sorted())


def test_with_room_for_all_nothing_else_is_tried(subject):
    evaluator = searched(subject, 1e12)
    plans = [one.plan for one in evaluator.sorted()]
    assert not any(plan.offload or plan.remat_saves for plan in plans)
