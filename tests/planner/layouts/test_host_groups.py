"""Layouts and cuts for hosts of several kinds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.cluster.host_group import HostGroup
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.planner.layouts.evaluated_plans import NoLayoutError
from jaxdist.planner.layouts.ranking import rank_plans
from jaxdist.planner.layouts.space import host_group_orders
from jaxdist.planner.layouts.stage_cuts import StageCutSolver

BASE = load_cluster("dgx-a100")
STAGES = ("plan.mesh.pipe=4", "optim.accumulate=8", "plan.pipe.schedule=1f1b")


def number(value):
    return SourcedNumber(value, "given: a test")


def scaled(factor, memory=80e9):
    """A device that does everything so many times as fast."""
    device = BASE.device
    return replace(
        device,
        name=f"GPU x {factor:g}",
        flops={name: number(factor * x.value) for name, x in device.flops.items()},
        memory_bandwidth=number(factor * device.memory_bandwidth.value),
        launch=number(device.launch.value / factor),
        memory=number(memory),
    )


def four(first, last, hosts=2):
    """Four hosts of one device, of which some are of another kind."""
    inner, pod = BASE.levels
    levels = (replace(inner, size=1), replace(pod, size=4))
    groups = (
        HostGroup(name="first", hosts=hosts, device=first),
        HostGroup(name="last", hosts=4 - hosts, device=last),
    )
    return replace(BASE, levels=levels, host_groups=groups)


@pytest.fixture(scope="module")
def describer():
    return StepDescriber(settings().config)


def settings(*words):
    network = (
        *("data.context=64", "data.batch=16"),
        *("model.depth=5", "model.embed=64", "model.heads=4"),
    )
    return resolve_config("gpt2_small", (*network, *words), is_mesh_searched=True)


def ranked(describer, cluster, *words, **options):
    asked = LayoutQuery(
        resolved=settings(*words), describer=describer, cluster=cluster, devices=4
    )
    estimate = asked.cost_estimate(())
    return rank_plans(
        estimate, asked.baseline_plans(), describer.describe, **options
    ).plans


def cut_counts(describer, plan):
    return [len(names) for names in describer.describe(plan).stages]


@given(
    chain=st.lists(
        st.tuples(st.floats(0.01, 9), st.sampled_from([1.0, 2.0, 5.0])),
        min_size=4,
        max_size=8,
    ),
    speeds=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    unlike=st.floats(0.2, 5),
    behind=st.integers(0, 20),
    message=st.floats(0, 3),
)
def test_cuts_on_two_and_two_unlike_devices_are_the_best_of_all(
    chain, speeds, unlike, behind, message
):
    """Also where one kind is faster in some blocks and slower in others."""
    took, handed = map(np.array, zip(*chain, strict=True))
    other = took * np.where(np.arange(len(took)) % 2, unlike, 1.0)
    rows = [took / speeds[0]] * 2 + [other / speeds[1]] * 2
    solver = StageCutSolver(block_seconds=np.array(rows), output_bytes=handed)

    def step(starts):
        each = solver.stage_seconds(starts)
        longest = solver.longest_message(starts)
        return each.sum() + behind * each.max() + message * longest

    every = list(itertools.combinations(range(1, len(took)), 3))
    found = list(solver.optimal_cuts(4))
    assert {*found} <= {*every}
    assert min(map(step, found)) == pytest.approx(min(map(step, every)))


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_the_search_chooses_the_best_of_all_cuts_and_orders(describer, factor):
    """Every cut of four stages on two and two devices, by the oracle.

    Cuts are chosen by the sum of stages and the slowest, not by playing the schedule,
    in which a stage's forward pass may wait for another's backward pass.
    """
    cluster = four(scaled(1.0), scaled(factor))
    best, *_ = ranked(describer, cluster, *STAGES)
    names = [block.name for block in describer.profile.blocks]
    steps = {}
    for starts in itertools.combinations(range(1, len(names)), 3):
        cuts = tuple(names[start] for start in starts)
        plan = replace(
            best.plan, pipe=replace(best.plan.pipe, cuts=cuts), host_order=()
        )
        case = describer.describe(plan)
        for order in ((), ("last",)):
            moved = replace(case, plan=replace(plan, host_order=order))
            steps[cuts, order] = predict(moved, cluster).step_s
    assert best.prediction.step_s == pytest.approx(min(steps.values()), rel=2e-3)
    # Stages on faster devices get more blocks.
    first, last = np.array(cut_counts(describer, best.plan)).reshape(2, 2).sum(axis=1)
    on_first_is_faster = (factor < 1) != (best.plan.host_order == ("last",))
    assert (first > last) == on_first_is_faster


def test_equal_kinds_are_ranked_as_one_kind(describer):
    device = scaled(1.0)
    one = replace(four(device, device), host_groups=(), device=device)
    several = ranked(describer, four(device, replace(device)))
    alone = ranked(describer, one)
    assert [x.plan for x in several] == [x.plan for x in alone]
    assert [x.prediction.terms_s for x in several] == [
        x.prediction.terms_s for x in alone
    ]


def test_a_faster_group_never_makes_the_best_plan_slower(describer):
    before = None
    for factor in (0.5, 1.0, 3.0):
        best, *_ = ranked(describer, four(scaled(1.0), scaled(factor)))
        assert before is None or best.prediction.step_s <= before * (1 + 1e-9)
        before = best.prediction.step_s


def test_stages_win_where_a_slow_card_would_hold_up_all(describer):
    """Shards of the batch wait for the slowest device, stages have less work there."""
    best, *others = ranked(describer, four(scaled(1.0), scaled(0.05), hosts=3))
    assert best.plan.mesh.pipe > 1
    assert all(one.prediction.step_s >= best.prediction.step_s for one in others)


def test_what_does_not_fit_the_smaller_card_is_refused(describer):
    data = ("plan.mesh.data=4", "optim.accumulate=1", "plan.remat=false")
    (plain, *_) = ranked(describer, four(scaled(1.0), scaled(1.0)), *data)
    tight = 0.9 * plain.prediction.memory_bytes
    with pytest.raises(NoLayoutError) as caught:
        ranked(describer, four(scaled(1.0), scaled(1.0, tight), hosts=3), *data)
    assert "out of memory by" in caught.value.values
    # A memory that is given is that of every device.
    roomy = ranked(
        describer, four(scaled(1.0), scaled(1.0, tight)), *data, memory_capacity=80e9
    )
    assert roomy[0].plan == plain.plan


def test_stages_of_equal_flops_that_lack_memory_are_cut_for_their_device(describer):
    """A slow card with little memory gets few blocks, which it has room for."""
    words = (*STAGES, "plan.remat=false", "plan.host_order=")
    best, *_ = ranked(describer, four(scaled(1.0), scaled(0.1)), *words)
    assert best.plan.pipe.cuts
    equal = replace(best.plan, pipe=replace(best.plan.pipe, cuts=()))
    # With next to no memory there its stages are the tightest.
    tiny = four(scaled(1.0), scaled(0.1, 1.0))
    few, many = (
        predict(describer.describe(plan), tiny).memory_bytes
        for plan in (best.plan, equal)
    )
    assert few < many
    tight = four(scaled(1.0), scaled(0.1, (few + many) / 2))
    found = ranked(describer, tight, *words)
    assert found[0].plan == best.plan
    assert all(one.plan != equal for one in found)


def test_an_order_that_is_typed_stays(describer):
    cluster = four(scaled(1.0), scaled(0.25), hosts=1)
    for order in ((), ("last",)):
        words = (*STAGES, f"plan.host_order={','.join(order)}")
        plans = ranked(describer, cluster, *words)
        assert {one.plan.host_order for one in plans} == {order}
    free = {one.plan.host_order for one in ranked(describer, cluster, *STAGES)}
    assert free <= {(), ("last",)}


def test_orders_are_tried_each_once_and_written_short():
    cluster = four(scaled(1.0), scaled(2.0))
    assert host_group_orders(cluster) == (("last",),)
    one, other = cluster.host_groups
    three = replace(
        cluster,
        host_groups=(
            replace(one, hosts=1),
            other,
            replace(one, hosts=1, name="more"),
        ),
    )
    orders = host_group_orders(three)
    assert len(orders) == len({*orders}) == 5
    assert ("first", "more") in orders
    assert ("more", "last") in orders
    assert host_group_orders(load_cluster("dgx-a100")) == ()


def test_a_plan_with_an_order_is_read_again():
    plan = Plan(host_order=("last",))
    assert Plan.from_json(plan.to_json()) == plan
