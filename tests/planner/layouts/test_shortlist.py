"""What is described in full: estimates of memory, and plans that fit."""

import random
from dataclasses import replace

import numpy as np
import pytest

from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.compute_times import MicrobatchTime
from jaxdist.oracle.link_groups import link_group
from jaxdist.oracle.predict import predict
from jaxdist.oracle.schedule_times import schedule_time
from jaxdist.planner.layouts.ranking import rank_plans
from jaxdist.planner.layouts.shortlist import (
    FEASIBLE_LAYOUTS,
    best_fitting_row,
    best_row_per_mesh,
    best_settings,
    order_by_estimate,
)
from jaxdist.planner.layouts.space import SCHEDULE_CHOICES

ROOM = 80e9


@pytest.fixture(scope="module")
def subject():
    words = ("model.depth=4", "model.vocabulary=256", "plan.mesh.data=1")
    return StepDescriber(resolve_config("characters", words).config)


@pytest.fixture(scope="module")
def question(subject):
    return LayoutQuery(
        resolved=resolve_config("characters", ()),
        describer=subject,
        cluster=load_cluster("cpu-fake"),
        devices=8,
    )


@pytest.fixture(scope="module")
def coarse(question):
    return question.cost_estimate(())


def place(values):
    return np.argsort(np.argsort(values))


def test_the_estimate_of_memory_is_near_to_that_of_a_plan_described(subject, coarse):
    """So that what fits is found before it is described."""
    rows = random.Random(3).sample(range(len(coarse.space)), 24)
    pairs = []
    for row in rows:
        try:
            made = predict(subject.describe(coarse.space.plan(row)), coarse.cluster)
        except BadInput:
            continue
        pairs.append((coarse.memory_bytes[row], made.memory_bytes))
    about, full = np.array(pairs).T
    assert len(pairs) > 15
    assert np.corrcoef(place(about), place(full))[0, 1] > 0.97
    assert np.median(about / full) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("axes", "chunks", "remat"),
    [
        (dict(pipe=2, data=4), 2, 1),  # parameters of all stages of a device
        (dict(pipe=2, fsdp=4), 1, 1),  # whole ones, beside shares of the state
        (dict(fsdp=8), 1, 1),  # whole gradients
        (dict(pipe=2, data=4), 2, 0),  # inputs in flight
    ],
)
def test_the_estimate_counts_what_a_device_holds(subject, coarse, axes, chunks, remat):
    """At as many microbatches as there can be: little else is beside it."""
    space = coarse.space
    own = space.mesh == space.meshes.index(MeshShape(**axes))
    kind = (space.chunks == chunks) & (space.remat == remat)
    if chunks == 1:
        kind &= space.order == 0
    (rows,) = np.nonzero(own & kind)
    row = int(rows[space.micro[rows].argmax()])
    full = predict(subject.describe(space.plan(row)), coarse.cluster).memory_bytes
    assert coarse.memory_bytes[row] == pytest.approx(full, rel=0.1)


@pytest.mark.parametrize(("name", "chunks"), SCHEDULE_CHOICES)
def test_inputs_in_flight_are_those_of_the_schedule(subject, coarse, name, chunks):
    space = coarse.space
    own = space.mesh == space.meshes.index(MeshShape(pipe=2, data=4))
    own &= space.order == space.choices.orders.index((name, chunks))
    (rows,) = np.nonzero(own & (space.remat == 0))
    row = int(rows[space.micro[rows].argmax()])
    full = predict(subject.describe(space.plan(row)), coarse.cluster).memory_bytes
    assert coarse.memory_bytes[row] == pytest.approx(full, rel=0.1)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(("name", "chunks"), SCHEDULE_CHOICES)
def test_what_stages_hand_on_is_estimated_by_exchanges(
    subject, coarse, name, chunks, timed
):
    """Both ways are paid where permutations were timed, one where links alone say it."""
    cluster = with_permutations(coarse.cluster) if timed else coarse.cluster
    about, space = replace(coarse, cluster=cluster), coarse.space
    own = space.mesh == space.meshes.index(MeshShape(pipe=2, data=4))
    own &= space.order == space.choices.orders.index((name, chunks))
    (rows,) = np.nonzero(own & (space.remat == 0))
    row = int(rows[space.micro[rows].argmax()])
    terms = predict(subject.describe(space.plan(row)), cluster).terms_s
    full = terms["activations, pipe"] + terms["gradients, pipe"]
    found = about._stage_transfer_seconds[row]
    assert found == pytest.approx(full, rel=0.1)


def test_what_layers_say_holds_the_other_stages_up(coarse):
    """A stage says its part m + P - 1 times, as the longest pass is waited for.

    With zero bubble half of it in every tick but the last, which has weights alone.
    """
    silent = replace(coarse, traffic=replace(coarse.traffic, tensor_collectives={}))
    said = coarse._comm_seconds - silent._comm_seconds
    space, mesh = coarse.space, MeshShape(pipe=4, tensor=2)
    group = link_group(coarse.cluster, MeshPlacement(mesh=mesh), ("tensor",))
    own = (space.mesh == space.meshes.index(mesh)) & (space.chunks == 1)
    assert own.sum() > 4
    for row in np.nonzero(own)[0]:
        micro = int(space.micro[row])
        # A reduce-scatter of logits stays within the last stage.
        found = sum(
            collective_seconds(kind, moved.payload / 4, micro * moved.arrays / 4, group)
            for kind, moved in coarse.traffic.tensor_collectives.items()
            if kind != "reduce-scatter"
        )
        times = micro + 3
        if space.schedule_names[row] == "zb-h1":
            times = (3 * micro + 2) / 2
        assert said[row] == pytest.approx(times / micro * found, rel=0.05)


def test_what_is_saved_while_others_rest_is_estimated_as_it_is_replayed(coarse):
    two = SourcedNumber(2.0, "given: a test")
    crowd = replace(coarse, cluster=coarse.cluster.with_number("device.crowd", two))
    saved, stage = (
        crowd._compute_seconds / coarse._compute_seconds,
        MicrobatchTime(forward=1.0, backward=1.0),
    )
    rows = np.nonzero(coarse.space.chunks == 1)[0]
    for row in random.Random(0).sample(rows.tolist(), 200):
        plan = coarse.space.plan(row)
        micro, stages = plan.microbatches, plan.mesh.pipe
        if plan.pipe.schedule == "gpipe":
            even = [stage] * stages
            alone, said = (
                schedule_time(plan, micro, even, c).seconds for c in (1.0, 2.0)
            )
            assert saved[row] == pytest.approx(said / alone)
        assert 0.5 - 1e-9 <= saved[row] <= 1


def test_what_late_devices_cost_is_estimated_as_it_is_replayed(coarse):
    """Of even stages every exchange but those while a pipeline fills and drains."""
    skew = 1e-3
    late = with_permutations(coarse.cluster, skew)
    coarse = replace(coarse, cluster=with_permutations(coarse.cluster))
    more = (
        replace(coarse, cluster=late)._compute_seconds - coarse._compute_seconds
    ) / skew
    for row in np.nonzero(coarse.space.chunks == 1)[0][::97]:
        plan = coarse.space.plan(row)
        micro, stages = plan.microbatches, plan.mesh.pipe
        # Works of a tick that are as long as each other.
        backward = 2.0 if plan.pipe.schedule == "zb-h1" else 1.0
        stage = MicrobatchTime(forward=1.0, backward=backward, weights=1.0)
        alone, said = (
            schedule_time(plan, micro, [stage] * stages, skew=s).seconds
            for s in (0.0, skew)
        )
        found = (said - alone) / skew
        assert more[row] == pytest.approx(found, abs=4.1 if stages > 1 else 1e-6)


def test_gradients_that_are_added_up_are_estimated_as_they_are_predicted(coarse):
    space, passed = coarse.space, 3 / coarse.cluster.device.memory_bandwidth.value
    own = space.mesh == space.meshes.index(MeshShape(data=8))
    for micro, times in ((1, 0.0), (2, 1.0)):
        (rows,) = np.nonzero(own & (space.micro == micro))
        want = times * passed * coarse.traffic.parameter_bytes
        assert coarse._accumulation_seconds[rows[0]] == pytest.approx(want, rel=0.01)
    assert (
        coarse._accumulation_seconds.max()
        <= passed * coarse.traffic.parameter_bytes * 1.01
    )


def with_permutations(cluster, skew=0.0):
    one = SourcedNumber(1.0, "measured: a test")
    level, *others = cluster.levels
    size = 1 << 20
    lines = tuple(
        CollectiveCost(
            kind="collective-permute",
            devices=devices,
            messages=one,
            share=one,
            bend=((size, 1.0),),
            skew=SourcedNumber(skew, "measured: a test"),
        )
        for devices in (2, 4, 8)
    )
    return replace(cluster, levels=(replace(level, lines=lines), *others))


def test_well_known_layouts_are_asked_about_at_their_best(question, coarse):
    order = order_by_estimate(coarse, ROOM)
    staged = Plan(mesh=MeshShape(pipe=4, data=2), microbatches=1)
    best = best_settings(staged, order, coarse)
    assert best.mesh == staged.mesh
    assert best.microbatches > 1
    other = Plan(mesh=MeshShape(pipe=4), microbatches=1)
    assert best_settings(other, order, coarse) == other


def test_parameters_are_used_in_the_bytes_they_are_computed_in():
    """Shared matrices travel in bfloat16; their gradients are added up in float32."""
    words = ("precision=bfloat16", "model.vocabulary=256", "plan.mesh.data=1")
    subject = StepDescriber(resolve_config("characters", words).config)
    coarse = LayoutQuery(
        resolved=resolve_config("characters", words),
        describer=subject,
        cluster=load_cluster("cpu-fake"),
        devices=8,
    ).cost_estimate(())
    assert coarse.traffic.gathered_ratio == pytest.approx(0.5, rel=0.02)
    space = coarse.space
    own = space.mesh == space.meshes.index(MeshShape(fsdp=8))
    (rows,) = np.nonzero(own & (space.remat == 1) & (space.micro == 2))
    case = subject.describe(space.plan(int(rows[0])))
    gradients = predict(case, coarse.cluster).memory_by_term["gradients"]
    assert coarse._gradient_bytes[rows[0]] == pytest.approx(gradients, rel=0.02)
    whole = coarse.traffic.parameter_bytes
    assert gradients == pytest.approx(whole, rel=0.02)


def test_what_layers_make_is_split_with_their_weights(subject, coarse):
    space = coarse.space
    own = space.mesh == space.meshes.index(MeshShape(data=2, tensor=4))
    (rows,) = np.nonzero(own & (space.remat == 0) & (space.micro == 1))
    full = predict(
        subject.describe(space.plan(int(rows[0]))), coarse.cluster
    ).memory_bytes
    assert coarse.memory_bytes[rows[0]] == pytest.approx(full, rel=0.1)


def test_a_layout_that_cannot_be_run_takes_nobodys_place(subject, coarse):
    order = order_by_estimate(coarse, ROOM)
    first = [
        coarse.space.plan(row).mesh for row in best_row_per_mesh(order, coarse.space)
    ]
    refused = set(first[:6])

    def describe(plan):
        if plan.mesh in refused:
            raise BadInput("not this one")
        return subject.describe(plan)

    found = rank_plans(coarse, (), describe)
    meshes = {one.plan.mesh for one in found.plans}
    able = len(set(first) - refused)
    assert len(meshes) >= min(FEASIBLE_LAYOUTS, able) - 1 > FEASIBLE_LAYOUTS - 6


def test_another_setting_of_a_layout_is_tried_where_the_best_does_not_fit(coarse):
    order = order_by_estimate(coarse, ROOM)
    row = max(
        best_row_per_mesh(order, coarse.space), key=lambda row: coarse.memory_bytes[row]
    )
    most = coarse.memory_bytes[row]
    found = best_fitting_row(row, 1.5 * most, most, order, coarse)
    assert coarse.space.mesh[found] == coarse.space.mesh[row]
    assert 1.5 * coarse.memory_bytes[found] <= most
    assert best_fitting_row(row, 1.5 * most, 0.0, order, coarse) == row


def test_a_best_setting_that_does_not_fit_is_followed_by_one_that_should(
    subject, coarse
):
    """Of the same layout, and by as much as the description said more."""
    first = best_row_per_mesh(order_by_estimate(coarse, ROOM), coarse.space)[0]
    best = coarse.space.plan(first)
    needed, described = 1.05 * ROOM, []

    def describe(plan):
        described.append(plan)
        case = subject.describe(plan)
        return (
            replace(case, state_bytes={"optimizer": needed}) if plan == best else case
        )

    found = rank_plans(coarse, (), describe, memory_capacity=ROOM)
    order = order_by_estimate(coarse, ROOM)
    other = best_fitting_row(first, needed, ROOM, order, coarse)
    assert described[:2] == [best, coarse.space.plan(other)]
    assert described[0].mesh == described[1].mesh
    plans = [one.plan for one in found.plans]
    assert (best in plans, described[1] in plans) == (False, True)


def test_a_layout_of_which_nothing_should_fit_is_described_once(subject, coarse):
    described = []

    def describe(plan):
        described.append(plan)
        return replace(subject.describe(plan), state_bytes={"optimizer": 10 * ROOM})

    with pytest.raises(BadInput, match="no layout can be run"):
        rank_plans(coarse, (), describe, memory_capacity=ROOM)
    meshes = [plan.mesh for plan in described]
    first = best_row_per_mesh(order_by_estimate(coarse, ROOM), coarse.space)
    assert meshes == [coarse.space.plan(row).mesh for row in first]


def test_stages_share_the_state_of_the_optimizer_out_alone(coarse):
    """They put parameters together for a whole step: shards would be held beside."""
    assert coarse.space.zero_stage(MeshShape(pipe=2, fsdp=4)) == 1
    assert coarse.space.zero_stage(MeshShape(fsdp=8)) == 3
    assert coarse.space.zero_stage(MeshShape(pipe=2, data=4)) == 3


def test_plans_have_room_where_no_step_is_traced(
    subject, question, coarse, monkeypatch
):
    """Asked of each of them: where the best are struck later nothing is in their place."""
    assert not coarse.needs_margin
    monkeypatch.setattr(
        "jaxdist.launch.training.job.abstract_step._MAX_FAST_TRACE_LAYERS", 1
    )
    roomy = question.cost_estimate(())
    assert (roomy.memory_bytes > coarse.memory_bytes).all()
    room = float(np.quantile(coarse.memory_bytes, 0.1))
    found = rank_plans(roomy, (), subject.describe, memory_capacity=room).plans
    assert all(one.prediction.untraced_bytes_with_margin <= room for one in found)
    tight = rank_plans(coarse, (), subject.describe, memory_capacity=room).plans
    assert any(one.prediction.untraced_bytes_with_margin > room for one in tight)


def test_the_ticks_of_zero_bubble_are_estimated_as_they_are_replayed(coarse):
    """Each as long as its longest work, with and without cores that are shared."""
    (rows,) = np.nonzero(coarse._is_zero_bubble)
    forward, backward, weights = coarse._longest_stage
    for crowd in (1.0, 2.0):
        number = SourcedNumber(crowd, "given: a test")
        cluster = coarse.cluster.with_number("device.crowd", number)
        found = replace(coarse, cluster=cluster)._zero_bubble_seconds
        for row in rows[::29]:
            plan = coarse.space.plan(row)
            assert plan.microbatches >= plan.mesh.pipe
            stage = MicrobatchTime(
                forward=forward[row], backward=backward[row], weights=weights[row]
            )
            even = [stage] * plan.mesh.pipe
            said = schedule_time(plan, plan.microbatches, even, crowd).seconds
            assert found[row] == pytest.approx(said)
