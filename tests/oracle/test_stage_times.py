"""Passes through stages: what layers say holds the others up as computing does."""

from dataclasses import replace

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.outer import OuterConfig
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.collective_times import traffic_seconds
from jaxdist.oracle.compute_times import compute_cost_model, stage_compute_times
from jaxdist.oracle.predict import predict
from jaxdist.oracle.schedule_times import predict_timeline, schedule_time
from jaxdist.oracle.stage_times import other_traffic, stage_layer_traffic, stage_times
from jaxdist.pipeline.plan_schedule import stage_placement

SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "zb-h1")
ONCE = ("reduce_gradients", "whole_lengths")
"""Where a step asks for what no microbatch does."""


def staged(digits, schedule="1f1b", **sizes):
    """Two stages, four microbatches."""
    mesh, pipe = MeshShape(pipe=2, **sizes), PipelineConfig(schedule=schedule)
    return digits.describe(Plan(mesh=mesh, microbatches=4, pipe=pipe))


@pytest.mark.parametrize("axis", ["data", "tensor", "spatial_h"])
def test_all_that_layers_of_stages_say_is_part_of_a_pass(digits, axis):
    """What is left is moved once a step, or handed from stage to stage."""
    case = staged(digits, **{axis: 2})
    said = 0
    for device, ledger in enumerate(case.ledgers):
        inside = stage_layer_traffic(case, device).rows
        around = other_traffic(case, device).rows
        assert sorted(map(str, ledger.rows)) == sorted(map(str, (*inside, *around)))
        assert all("pipe" not in row.axes for row in inside)
        for row in around:
            assert "pipe" in row.axes or row.layer in ONCE
        said += len(inside)
    assert said > 4


def test_a_network_in_one_piece_has_no_passes_that_wait(digits):
    case = digits.describe(Plan(mesh=MeshShape(data=2, tensor=2), microbatches=4))
    cluster = load_cluster("testbed")
    assert stage_layer_traffic(case, 0).rows == ()
    assert other_traffic(case, 0).rows == case.ledgers[0].rows
    assert stage_times(case, cluster) == stage_compute_times(case, cluster)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pass_takes_what_its_layers_compute_and_say(digits, schedule):
    """The microbatches of a device say what its ledger says of them all."""
    case, cluster = staged(digits, schedule, tensor=2), load_cluster("testbed")
    found, computed = (
        stage_times(case, cluster),
        stage_compute_times(case, cluster),
    )
    for stage, (one, alone) in enumerate(zip(found, computed, strict=True)):
        (device,) = stage_placement(case.plan).stage_devices[stage]
        said = traffic_seconds(
            stage_layer_traffic(case, device), cluster, case.plan.placed
        )
        more = [one.forward - alone.forward, one.backward - alone.backward]
        assert 4 * sum(more) == pytest.approx(sum(said.values()))
        assert more[0] == pytest.approx(more[1])


def test_activations_that_are_made_again_are_not_talked_about_again(digits):
    """What collectives brought is kept, so they are in the ledger as often."""
    case, cluster = staged(digits, tensor=2), load_cluster("testbed")
    again = replace(case, plan=replace(case.plan, remat=True))
    pairs = zip(stage_times(again, cluster), stage_times(case, cluster), strict=True)
    for made, kept in pairs:
        assert made.backward_comm == kept.backward_comm == made.forward_comm
        assert made.backward - kept.backward == pytest.approx(
            (made.forward - made.forward_comm), rel=1e-9
        )


def test_what_replicas_move_between_steps_is_no_part_of_a_pass(digits):
    case = digits.describe(
        Plan(mesh=MeshShape(replica=2), outer=OuterConfig(sync_interval=4))
    )
    (ledger,) = case.ledgers
    assert ledger.outer_syncs
    assert stage_layer_traffic(case, 0).outer_syncs == ()
    assert other_traffic(case, 0).outer_syncs == ledger.outer_syncs


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_wait_for_the_talk_of_others(digits, schedule):
    """A step is as long as its beats, and what is moved around them."""
    case, cluster = staged(digits, schedule, tensor=2), load_cluster("testbed")
    step = schedule_time(case.plan, 4, stage_times(case, cluster))
    silent = schedule_time(case.plan, 4, stage_compute_times(case, cluster))
    found = predict(case, cluster)
    said = traffic_seconds(
        stage_layer_traffic(case, step.busiest_device), cluster, case.plan.placed
    )
    terms = found.terms_s
    own = {term: terms[term] for term in said}
    assert own == pytest.approx(said)
    beats = terms["compute"] + terms["bubble"] + sum(said.values())
    assert beats == pytest.approx(step.seconds)
    assert step.bubble_seconds > 2 * silent.bubble_seconds
    ends = max(lane[-1].end for lane in predict_timeline(case, cluster))
    assert ends == pytest.approx(step.seconds)


@pytest.mark.parametrize("name", ["testbed", "dgx-a100"])
def test_gradients_of_weights_are_a_third_to_a_half_of_a_backward_pass(name, digits):
    """Products' are half; norms and what has no weights have none to come later."""
    case, cluster = staged(digits, "zb-h1"), load_cluster(name)
    for stage in stage_times(case, cluster):
        assert 0.3 < stage.weights / stage.backward < 0.55
    # The layer that reads the images has no other gradient than that of its weights.
    worker = compute_cost_model(case, cluster.device, 0)
    first, *_ = (x for x in case.stage_layers(0) if x.kernel)
    spent = worker.microbatch_time(first)
    assert spent.weights == pytest.approx(spent.backward)
