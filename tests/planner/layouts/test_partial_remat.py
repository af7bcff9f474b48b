"""Where memory lies between, the last blocks are kept and the others computed again."""

from dataclasses import replace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.reduction import ReductionConfig
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.planner.layouts.block_costs import BlockCosts
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.evaluated_plans import PlanEvaluator
from jaxdist.planner.layouts.ranking import rank_plans
from jaxdist.planner.layouts.refinement import bisect_remat_until
from jaxdist.planner.layouts.space import PlanChoices, plan_space
from jaxdist.planner.layouts.traffic_probes import probe_traffic

NONE = Plan(
    mesh=MeshShape(data=4), microbatches=1, reduce=ReductionConfig(algorithm="ring")
)
ALL = replace(NONE, remat=True)
CLUSTER = load_cluster("testbed")


@pytest.fixture(scope="module")
def subject():
    words = ("model.depth=6", "model.vocabulary=256", "plan.mesh.data=1")
    return StepDescriber(resolve_config("characters", words).config)


@pytest.fixture(scope="module")
def predicted(subject):
    blocks = [block.name for block in subject.profile.blocks]
    tails = [replace(ALL, remat_end=block) for block in blocks[1:]]
    return {p: predict(subject.describe(p), CLUSTER) for p in (NONE, ALL, *tails)}


def estimated(
    subject, remat=(False, True), base=NONE, microbatches=(1,), cluster=CLUSTER
):
    network = subject.profile
    samples = probe_traffic(
        base, 4, ("data",), subject.describe, network.parameter_bytes, cluster.device
    )
    chosen = PlanChoices(
        axes=("data",), remat=remat, ways=("ring",), microbatches=microbatches
    )
    return CostEstimate(
        space=plan_space(
            base, 4, chosen, batch=network.batch, blocks=len(network.blocks)
        ),
        cluster=cluster,
        block_costs=BlockCosts(
            profile=network, device=cluster.device, dtype=subject.dtype
        ),
        traffic=samples,
    )


def between(predicted, part):
    """Bytes between those with all and with no blocks computed again."""
    least, most = predicted[ALL].memory_bytes, predicted[NONE].memory_bytes
    assert least < most
    return least + part * (most - least)


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75])
def test_a_search_keeps_the_longest_tail_that_fits(subject, predicted, part):
    room = between(predicted, part)
    best, *others = rank_plans(
        estimated(subject), (), subject.describe, memory_capacity=room
    ).plans
    fit = {p: made.step_s for p, made in predicted.items() if made.memory_bytes <= room}
    assert NONE not in fit
    assert best.plan.remat_end
    assert best.prediction.memory_bytes <= room
    assert best.prediction.step_s == min(fit.values()) < fit[ALL]
    assert best.plan.label == f"data 4, remat until {best.plan.remat_end}, ring"
    # Shorter tails on the way to it are no plans of their own.
    assert [one.plan.remat_end for one in others if one.plan.remat] in ([""], [])


def test_a_plan_that_lacks_memory_is_tried_beside_one_in_microbatches(
    subject, predicted
):
    """Which of them is faster is not said by which was described first."""
    room = between(predicted, 0.6)
    every = estimated(subject, microbatches=(1, 2))
    found = [
        one.plan
        for one in rank_plans(every, (), subject.describe, memory_capacity=room).plans
    ]
    assert any(plan.microbatches == 2 and not plan.remat for plan in found)
    assert any(plan.microbatches == 1 and plan.remat_end for plan in found)


def test_with_room_for_all_nothing_is_computed_again(subject, predicted):
    room = between(predicted, 1)
    found = rank_plans(estimated(subject), (), subject.describe, memory_capacity=room)
    assert not any(one.plan.remat_end for one in found.plans)
    assert found.plans[0].plan.remat is False


def test_what_accelerators_compute_again_is_not_traced_for_a_cpu(subject, predicted):
    """A trace of blocks that are no loop says that nothing is saved, as on CPUs."""
    base = replace(NONE, scan="off")
    other = replace(CLUSTER, device=replace(CLUSTER.device, name="some GPU"))
    assert CLUSTER.device.is_cpu
    assert not other.device.is_cpu
    room, traced = between(predicted, 0.75), []

    def trace(plan):
        traced.append(plan)
        return replace(
            subject.describe(plan), traced_bytes={"temporaries": 10 * round(room)}
        )

    def ranked(cluster):
        every = estimated(subject, cluster=cluster, base=base)
        return rank_plans(
            every, (), subject.describe, memory_capacity=room, trace_step=trace
        ).plans

    best = ranked(other)[0]
    assert best.plan.remat_end
    assert best.prediction.untraced_bytes_with_margin <= room
    assert not any(plan.remat for plan in traced)
    with pytest.raises(BadInput, match="no layout can be run"):
        ranked(CLUSTER)
    assert any(plan.remat for plan in traced)


def test_a_tail_whose_program_does_not_fit_is_shortened(subject, predicted):
    base = replace(NONE, scan="on")
    cluster = replace(CLUSTER, device=replace(CLUSTER.device, name="some GPU"))
    room, asked = 1.35 * between(predicted, 0.5), []

    def trace(plan):
        asked.append(plan)
        case = subject.describe(plan)
        made = predict(case, cluster).memory_by_term["activations"]
        # Of other policies none fits, so that tails alone are left.
        more = 100 if plan.remat_saves else 1.9
        return replace(case, traced_bytes={"temporaries": round(more * made)})

    best, *_ = rank_plans(
        estimated(subject, cluster=cluster, base=base),
        (),
        subject.describe,
        memory_capacity=room,
        trace_step=trace,
    ).plans
    first, *_, last = [plan for plan in asked if plan.remat_end]
    assert best.plan == last
    names = [block.name for block in subject.profile.blocks]
    assert names.index(last.remat_end) > names.index(first.remat_end)
    assert predict(trace(last), cluster).traced_bytes_with_margin <= room


def test_what_was_typed_stays(subject, predicted):
    room = between(predicted, 0.5)
    every = estimated(subject, remat=(True,))
    found = rank_plans(every, (), subject.describe, memory_capacity=room)
    assert not any(one.plan.remat_end for one in found.plans)
    own = estimated(subject, remat=(True,), base=replace(ALL, remat_end="head"))
    found = rank_plans(
        own, (), subject.describe, memory_capacity=predicted[NONE].memory_bytes * 2
    )
    assert {one.plan.remat_end for one in found.plans} == {"head"}


def test_few_plans_are_described(subject, predicted):
    heap = PlanEvaluator(
        describe_step=subject.describe,
        cluster=CLUSTER,
        memory_capacity=between(predicted, 0.5),
    )
    blocks = [block.name for block in subject.profile.blocks]
    bisect_remat_until(heap, ALL, blocks, heap.evaluate)
    assert len(heap.feasible) == 1
    assert heap.num_evaluated <= 3 < len(blocks)


def test_a_block_that_was_mistyped_is_said_before_the_search(subject):
    words = ("model.depth=6", "model.vocabulary=256", "plan.mesh.data=1")
    typed = ("plan.remat=true", "plan.remat_end=blok3")
    resolved = resolve_config("characters", (*words, *typed))
    question = LayoutQuery(
        resolved=resolved, describer=subject, cluster=CLUSTER, devices=4
    )
    with pytest.raises(BadInput, match="until blok3") as caught:
        question.cost_estimate(())
    assert caught.value.remedy[0] == "did you mean plan.remat_end=block3?"
