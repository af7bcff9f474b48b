"""Cuts by seconds: no others make a shorter step."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.planner.layouts.ranking import rank_plans
from jaxdist.planner.layouts.shortlist import (
    EXACT_ALGORITHMS,
    order_by_estimate,
    setting_variants,
)
from jaxdist.planner.layouts.stage_cuts import (
    StageCutSolver,
    stage_cut_cost,
    stage_cut_variants,
)
from jaxdist.profile.repeated_blocks import RepeatedBlocks


@pytest.fixture(scope="module")
def question():
    words = (
        *("data.context=64", "data.batch=32"),
        *("model.depth=7", "model.embed=64", "model.heads=4"),
    )
    resolved = resolve_config("gpt2_small", words)
    return LayoutQuery(
        resolved=resolved,
        describer=StepDescriber(resolved.config),
        cluster=load_cluster("dgx-a100"),
        devices=8,
    )


@pytest.fixture(scope="module")
def coarse(question):
    return question.cost_estimate(())


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("micro", [1, 8])
def test_no_other_cuts_make_a_shorter_step(coarse, stages, micro):
    plan = Plan(mesh=MeshShape(pipe=stages), microbatches=micro)
    names = list(coarse.block_costs.block_names)
    step = stage_cut_cost(coarse, plan).step_seconds
    (best,) = stage_cut_variants(plan, coarse)
    found = tuple(names.index(cut) for cut in best.pipe.cuts)
    every = itertools.combinations(range(1, len(names)), stages - 1)
    assert step(found) == pytest.approx(min(map(step, every)))


def test_blocks_that_are_computed_again_take_a_forward_pass_more(coarse):
    plan = Plan(mesh=MeshShape(pipe=2), microbatches=8)
    again = replace(plan, remat=True)
    until = replace(again, remat_end=coarse.block_costs.block_names[3])
    none, every, few = (
        stage_cut_cost(coarse, p).solver.block_seconds for p in (plan, again, until)
    )
    assert (few[:, :3] == every[:, :3]).all()
    assert (few[:, 3:] == none[:, 3:]).all()
    assert (every > none).all()


@given(
    blocks=st.lists(
        st.tuples(st.floats(0.01, 9), st.sampled_from([1.0, 2.0, 5.0])),
        min_size=2,
        max_size=7,
    ),
    stages=st.integers(2, 5),
    message=st.floats(0, 3),
)
def test_cuts_are_as_good_as_the_best_of_all(blocks, stages, message):
    """Uneven blocks that hand on much or little, and links that are fast or slow."""
    took, handed = map(np.array, zip(*blocks, strict=True))
    chain = StageCutSolver(block_seconds=took, output_bytes=handed)

    def step(starts):
        return chain.slowest_stage(starts) + message * chain.longest_message(starts)

    every = list(itertools.combinations(range(1, len(blocks)), stages - 1))
    found = list(chain.optimal_cuts(stages))
    assert bool(found) == bool(every)
    assert set(found) <= set(every)
    if every:
        assert min(map(step, found)) == pytest.approx(min(map(step, every)))


def test_the_search_tries_cuts_and_what_fsdp_shares(question, coarse):
    tried = []

    def describe(plan):
        tried.append(plan)
        return question.describer.describe(plan)

    found = rank_plans(coarse, question.baseline_plans(), describe)
    assert len(tried) == len(set(tried)) == found.num_evaluated
    best = found.plans[0].plan
    assert best.mesh.devices == 8
    asked = Plan(mesh=MeshShape(pipe=4, fsdp=2), microbatches=4)
    more = list(setting_variants(asked, order_by_estimate(coarse, 80e9), coarse))
    assert {plan.zero for plan in more} == {1, 3}
    (cut,) = [plan for plan in more if plan.pipe.cuts]
    assert len(cut.pipe.cuts) == 3
    assert len(question.describer.describe(cut).stages) == 4
    assert Plan.from_json(cut.to_json()) == cut


def test_the_search_tries_ways_to_split_weights(question, coarse):
    order = order_by_estimate(coarse, 80e9)
    split = Plan(mesh=MeshShape(data=4, tensor=2), microbatches=1)
    ways = {plan.tensor_strategy for plan in setting_variants(split, order, coarse)}
    assert ways == {"pairs", "sequence", "filter", "channel"}
    whole = Plan(mesh=MeshShape(data=8), microbatches=1)
    assert {
        plan.tensor_strategy for plan in setting_variants(whole, order, coarse)
    } == {"pairs"}
    labels = [plan.label for plan in setting_variants(split, order, coarse)]
    assert len({*labels}) == len({*setting_variants(split, order, coarse)})


def test_steps_that_go_both_ways_are_not_priced_by_permutations_that_go_one_way(
    question, coarse
):
    plan = Plan(mesh=MeshShape(data=8), microbatches=1)
    ways = {
        one.reduce.algorithm
        for one in setting_variants(plan, order_by_estimate(coarse, 80e9), coarse)
    }
    assert ways == {"exact", *EXACT_ALGORITHMS}
    share = SourcedNumber(1.0, "measured: a test")
    line = CollectiveCost(
        kind="collective-permute", devices=8, messages=share, share=share, bend=()
    )
    level, *others = coarse.cluster.levels
    levels = (replace(level, lines=(line,)), *others)
    timed = replace(coarse, cluster=replace(coarse.cluster, levels=levels))
    ways = {
        one.reduce.algorithm
        for one in setting_variants(plan, order_by_estimate(timed, 80e9), timed)
    }
    assert ways == {"exact"}


def test_ways_that_are_typed_stay(question):
    typed = ("plan.tensor_strategy=sequence", "plan.mesh.tensor=2")
    resolved = resolve_config(
        "gpt2_small", (*typed, "data.context=64", "data.batch=32")
    )
    asked = replace(question, resolved=resolved)
    assert asked.cost_estimate(()).space.choices.weights == ("sequence",)


def test_equal_blocks_are_read_once(question):
    assert (
        len(
            question.describer.trace_cache.get_or_compute(
                "alike", RepeatedBlocks
            ).representatives
        )
        == 4
    )


def test_stages_that_lose_with_equal_flops_are_cut_where_little_is_handed_on():
    """Convolutions hand on much, and have nearly all of the FLOPs."""
    words = ("data.name=synthetic", "data.samples=480", "data.batch=48")
    resolved = resolve_config("vgg16", (*words, "model.size=tiny", "model.width=16"))
    slow = load_cluster("testbed")
    wire = replace(slow.levels[0], bandwidth=SourcedNumber(12.5e6, "given: 100 Mbit/s"))
    asked = LayoutQuery(
        resolved=resolved,
        describer=StepDescriber(resolved.config),
        cluster=replace(slow, levels=(wire,)),
        devices=4,
    )
    plans = rank_plans(
        asked.cost_estimate(()), asked.baseline_plans(), asked.describer.describe
    ).plans
    best = plans[0].plan
    uncut = next(x for x in plans if x.plan.stages == 4 and not x.plan.pipe.cuts)
    assert best.stages == 4
    assert best.pipe.cuts
    assert uncut.prediction.step_s > 2 * plans[0].prediction.step_s
