"""Steps of stages as their tables play, and what stages hand to each other."""

import itertools
from dataclasses import replace

import pytest

from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compute_times import MicrobatchTime
from jaxdist.oracle.predict import predict
from jaxdist.oracle.schedule_times import predict_timeline, schedule_time
from jaxdist.oracle.stage_times import send_ledger, superstep_skew


def with_skew(cluster, seconds):
    """Four devices of the first level, the last of which is late by so much."""
    one = SourcedNumber(1.0, "measured: a test")
    line = CollectiveCost(
        kind="collective-permute",
        devices=4,
        messages=one,
        share=one,
        skew=SourcedNumber(seconds, "measured: a test"),
    )
    (level, *rest) = cluster.levels
    return replace(cluster, levels=(replace(level, lines=(line,)), *rest))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "eager-1f1b"])
@pytest.mark.parametrize("micro", [4, 8])
def test_even_stages_take_the_closed_form(schedule, micro):
    """(m + P - 1) (f + b), of which m (f + b) is work."""
    plan = Plan(mesh=MeshShape(pipe=4), pipe=PipelineConfig(schedule=schedule))
    step = schedule_time(plan, micro, [MicrobatchTime(forward=1.0, backward=1.0)] * 4)
    assert step.busy_seconds == 2 * micro
    assert step.seconds == 2 * (micro + 3)


@pytest.mark.parametrize("micro", [4, 8])
def test_only_in_1f1b_do_forward_passes_wait_for_backward_passes(micro):
    """docs/schedules.md: (m + P - 1) (f + b), and P f + (2 m + P - 2) b of 1F1B."""
    stages = [MicrobatchTime(forward=1.0, backward=3.0)] * 4

    def step(schedule):
        plan = Plan(mesh=MeshShape(pipe=4), pipe=PipelineConfig(schedule=schedule))
        return schedule_time(plan, micro, stages).seconds

    assert step("eager-1f1b") == step("gpipe") == (micro + 3) * 4
    assert step("1f1b") == 4 + (2 * micro + 2) * 3


@pytest.mark.parametrize("micro", [4, 8])
def test_in_zero_bubble_every_work_takes_a_third_of_a_microbatch(micro):
    """docs/schedules.md: 3 m + P - 1 ticks, each as long as the longest of F, B and W."""
    pipe = PipelineConfig(schedule="zb-h1")
    plan = Plan(mesh=MeshShape(pipe=4), pipe=pipe)
    even = [MicrobatchTime(forward=1.0, backward=2.0, weights=1.0)] * 4
    step = schedule_time(plan, micro, even)
    assert step.seconds == 3 * micro + 3
    assert step.busy_seconds == 3 * micro
    # In the first ticks there is nothing but forward passes, in the last but weights.
    uneven = [MicrobatchTime(forward=1.0, backward=3.5, weights=1.5)] * 4
    assert schedule_time(plan, micro, uneven).seconds == 4 + (3 * micro - 2) * 2 + 1.5
    # Layers communicate in passes, not for the gradients of weights.
    said = [MicrobatchTime(forward=2.0, backward=3.0, weights=1.0)] * 4
    said = [replace(one, forward_comm=1.0, backward_comm=1.0) for one in said]
    assert schedule_time(plan, micro, said, 4).seconds == pytest.approx(
        schedule_time(plan, micro, even, 4).seconds + 3 * micro + 2
    )


def test_a_beat_is_as_long_as_who_works_longest_in_both_of_its_ticks():
    """Not as the longest forward and the longest backward pass, of different stages."""
    plan = Plan(mesh=MeshShape(pipe=2), pipe=PipelineConfig(schedule="eager-1f1b"))
    stages = [
        MicrobatchTime(forward=1.0, backward=5.0),
        MicrobatchTime(forward=4.0, backward=2.0),
    ]
    step = schedule_time(plan, 4, stages)
    assert step.busy_seconds == 4 * 6
    # A forward pass of stage 0 fills the pipe, a backward pass of it drains it.
    assert step.seconds == 1 + 4 * 6 + 5


@pytest.mark.parametrize(("crowd", "fills"), [(1, 3.0), (2, 1.75), (4, 1.5), (9, 1.5)])
def test_who_works_is_faster_while_others_rest(crowd, fills):
    """Of four devices one, two and three work while a pipeline fills, and drains."""
    plan = Plan(mesh=MeshShape(pipe=4), pipe=PipelineConfig(schedule="gpipe"))
    spent = MicrobatchTime(forward=1.0, backward=2.0)
    step = schedule_time(plan, 8, [spent] * 4, crowd)
    assert step.seconds == pytest.approx((5 + 2 * fills) * 3)
    # What layers say to each other takes as long as ever.
    said = replace(spent, forward_comm=1.0, backward_comm=2.0)
    assert schedule_time(plan, 8, [said] * 4, crowd).seconds == (8 + 3) * 3


@pytest.mark.parametrize("schedule", ["gpipe", "eager-1f1b"])
def test_who_ends_with_others_is_waited_for(schedule):
    """Of two even stages behind every beat in which both work as long as each other.

    Those are m - 1 each way; of eager ones two have less to do in one beat each.
    """
    plan = Plan(mesh=MeshShape(pipe=2), pipe=PipelineConfig(schedule=schedule))
    even = [MicrobatchTime(forward=1.0, backward=2.0)] * 2
    beats = {"gpipe": 2 * 7, "eager-1f1b": 6}[schedule]
    late = schedule_time(plan, 8, even, skew=0.25)
    assert late.seconds == schedule_time(plan, 8, even).seconds + beats * 0.25
    assert late.busy_seconds == 8 * 3


def test_who_is_in_every_hop_waits_in_each_of_them():
    late = with_skew(load_cluster("testbed"), 1e-3)
    line = Plan(mesh=MeshShape(pipe=4))
    assert superstep_skew(line, late) == 1e-3
    pipe = PipelineConfig(schedule="pipedream", replicas=(3, 1))
    assert superstep_skew(replace(line, pipe=pipe), late) == pytest.approx(3e-3)
    assert superstep_skew(Plan(mesh=MeshShape(data=4)), late) == 0
    assert superstep_skew(line, load_cluster("testbed")) == 0


def test_nobody_waits_for_the_last_where_one_works_for_longer_than_all_others():
    plan = Plan(mesh=MeshShape(pipe=4), pipe=PipelineConfig(schedule="gpipe"))
    short, long = (
        MicrobatchTime(forward=1.0, backward=1.0),
        MicrobatchTime(forward=3.0, backward=3.0),
    )
    stages = [short, long, short, short]
    alone = schedule_time(plan, 8, stages)
    # Where the long one works nobody waits; where two or three short ones do while it
    # fills and drains, they are as late as ever.
    late = schedule_time(plan, 8, stages, skew=0.5)
    assert late.busy_seconds == alone.busy_seconds == 8 * 6
    assert late.seconds - alone.seconds == 2 * 0.5


@pytest.mark.parametrize("schedule", ["1f1b", "eager-1f1b", "gpipe"])
def test_a_timeline_is_as_long_as_late_devices_make_it(schedule, digits):
    plan = Plan(
        mesh=MeshShape(pipe=4), microbatches=4, pipe=PipelineConfig(schedule=schedule)
    )
    late = with_skew(load_cluster("testbed"), 1e-3)
    case = digits.describe(plan)
    terms = predict(case, late).terms_s
    ends = max(lane[-1].end for lane in predict_timeline(case, late))
    assert ends == pytest.approx(terms["compute"] + terms["bubble"])


@pytest.mark.parametrize("schedule", ["1f1b", "eager-1f1b", "gpipe", "zb-h1"])
def test_a_timeline_shows_who_is_faster_while_others_rest(schedule, digits):
    plan = Plan(
        mesh=MeshShape(pipe=4), microbatches=4, pipe=PipelineConfig(schedule=schedule)
    )
    case, alone = digits.describe(plan), load_cluster("testbed")
    crowd = alone.with_number("device.crowd", SourcedNumber(2.0, "given: a test"))
    before, after = predict(case, alone).terms_s, predict(case, crowd).terms_s
    assert sum(after.values()) < sum(before.values())
    ends = max(lane[-1].end for lane in predict_timeline(case, crowd))
    assert ends == pytest.approx(after["compute"] + after["bubble"])


@pytest.mark.parametrize("schedule", ["1f1b", "eager-1f1b", "zb-h1"])
def test_a_timeline_is_as_long_as_work_and_bubble_and_has_no_overlap(schedule, digits):
    plan = Plan(
        mesh=MeshShape(pipe=4), microbatches=4, pipe=PipelineConfig(schedule=schedule)
    )
    case, cluster = digits.describe(plan), load_cluster("testbed")
    lanes = predict_timeline(case, cluster)
    terms = predict(case, cluster).terms_s
    ends = max(lane[-1].end for lane in lanes)
    assert ends == pytest.approx(terms["compute"] + terms["bubble"])
    for lane in lanes:
        assert len(lane) == (12 if schedule == "zb-h1" else 8)
        assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(lane))


def test_the_slowest_stage_is_the_one_that_is_busy():
    plan = Plan(mesh=MeshShape(pipe=2))
    stages = [
        MicrobatchTime(forward=1.0, backward=2.0),
        MicrobatchTime(forward=3.0, backward=6.0),
    ]
    step = schedule_time(plan, 4, stages)
    assert step.busiest_device == 1
    assert step.busy_seconds == 4 * 9
    assert step.bubble_seconds > 0


def with_permutations(cluster):
    """The cluster, as if permutations had been measured."""
    (level,) = cluster.levels
    one = SourcedNumber(1.0, "measured: a test")
    line = CollectiveCost(kind="collective-permute", devices=2, messages=one, share=one)
    return replace(cluster, levels=(replace(level, lines=(line,)),))


@pytest.mark.parametrize(
    ("replicas", "share"), [("3,1", 4 / 6), ("2,1,1", 3 / 4), ("2,2", 1.0)]
)
def test_replicas_wait_for_their_own_hop_alone(replicas, share):
    """Three hops to one device and back: six messages a beat, and the bytes of four."""
    sizes = ("data.batch=96", "plan.mesh.data=1", "plan.mesh.spatial_h=1")
    stages = ("plan.mesh.pipe=4", "plan.pipe.schedule=pipedream")
    more = (f"plan.pipe.replicas={replicas}", "optim.accumulate=12")
    config = resolve_config("digits", (*sizes, *stages, *more)).config
    case, cluster = StepDescriber(config).describe(config.plan), load_cluster("testbed")
    handed = 0
    for device, ledger in enumerate(case.ledgers):
        found = send_ledger(ledger, config.plan, device, with_permutations(cluster))
        for before, after in zip(ledger.rows, found.rows, strict=True):
            is_handed = before.layer == "between_stages"
            part = share if is_handed else 1.0
            assert after.payload == pytest.approx(part * before.payload, rel=1e-6)
            assert after.arrays == before.arrays
            handed += is_handed
    assert handed == 2 * len(case.ledgers)


def test_what_stages_hand_on_and_back_goes_over_a_link_at_once():
    """Of two stages one sends activations, the other gradients; between, both.

    Where permutations were measured, they go one after the other.
    """
    cluster = load_cluster("testbed")
    measured = with_permutations(cluster)
    words = ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "optim.accumulate=4")
    for pipe, busiest in ((2, 1), (4, 2)):
        asked = (*words, f"plan.mesh.pipe={pipe}")
        subject = StepDescriber(resolve_config("digits", asked).config)
        case = subject.describe(subject.config.plan)

        def handed(cluster, case=case):
            return [
                sum(
                    row.payload > 0
                    for row in send_ledger(ledger, case.plan, device, cluster).rows
                    if row.layer == "between_stages"
                )
                for device, ledger in enumerate(case.ledgers)
            ]

        found = handed(cluster)
        assert found[0] == found[-1] == 1
        assert max(found) == busiest
        assert handed(measured) == [2] * pipe
