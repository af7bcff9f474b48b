"""U-Nets in stages: skips are counted once, and losses are of the last stage."""

from dataclasses import replace

import numpy as np
import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.pipeline import PipelineConfig
from jaxdist.core.profile import Profile
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.memory import device_memory
from jaxdist.oracle.stage_times import other_traffic, stage_layer_traffic
from jaxdist.planner.layouts.block_costs import BlockCosts
from jaxdist.planner.stages import StageQuery, partition_graph
from jaxdist.planner.stages.cost_conventions import CostConvention
from jaxdist.planner.stages.graph_from_profile import (
    constant_rate_model,
    graph_from_profile,
)
from jaxdist.planner.stages.link_hierarchy import LinkLevel
from jaxdist.planner.stages.memory import UNLIMITED

BATCH, MICROBATCHES = 8, 4
DEVICE = load_cluster("testbed").device
MADE = {
    "down0": 4 * 16 * 16 * 4,
    "down1": 4 * 8 * 8 * 8,
    "down2": 4 * 4 * 4 * 16,
    "up1": 4 * 8 * 8 * 8,
    "up0": 4 * 16 * 16 * 4,
    "head": 4 * 16 * 16 * 4,
}
"""Bytes of what each block makes of a sample."""
PASSED = {
    "down1": MADE["down0"],
    "down2": MADE["down0"] + MADE["down1"],
    "up1": MADE["down0"],
}
"""Bytes of skips that it hands on."""


@pytest.fixture(scope="module")
def subject():
    words = (f"data.batch={BATCH}", f"optim.accumulate={MICROBATCHES}")
    return StepDescriber(resolve_config("unet2d", ("model.size=tiny", *words)).config)


def test_a_profile_says_what_blocks_make_and_what_they_hand_on(subject):
    for block in subject.profile.blocks:
        passed = BATCH * PASSED.get(block.name, 0)
        assert block.passed_bytes == passed
        assert block.output_bytes == BATCH * MADE[block.name] + passed
    again = Profile.from_json(subject.profile.to_json())
    assert again == subject.profile


@pytest.mark.parametrize(
    ("cut", "blocks", "handed"),
    [
        # The fuller of two stages: the second, that is handed the skip of down0 besides
        # what down1 made; the first, that hands nothing but up0 on.
        ("down2", ("down2", "up1", "up0", "head"), MADE["down0"]),
        ("head", ("down0", "down1", "down2", "up1", "up0"), 0),
    ],
)
@pytest.mark.parametrize("remat", [False, True])
def test_a_stage_keeps_each_skip_once(subject, remat, cut, blocks, handed):
    plan = Plan(
        mesh=MeshShape(pipe=2),
        microbatches=MICROBATCHES,
        pipe=PipelineConfig(schedule="gpipe", cuts=(cut,)),
        remat=remat,
    )
    case = replace(subject.describe(plan), traced_bytes={})
    inside = {
        block: sum(
            x.output_bytes + x.inner_bytes for x in subject.profile.layers_of(block)
        )
        for block in blocks
    }
    want = BATCH * handed + sum(inside.values())
    if remat:
        # Of a block that is computed again the inside is there once, for a microbatch.
        want = BATCH * (handed + sum(MADE[x] for x in blocks if x != "head"))
        want += max(inside.values()) / MICROBATCHES
    # Shares of layers are those of their FLOPs, which are rounded.
    found = device_memory(case, DEVICE)["activations"]
    assert found == pytest.approx(want, rel=1e-4)


def test_what_a_loss_adds_is_part_of_the_last_stages_passes(subject):
    plan = Plan(mesh=MeshShape(pipe=2, spatial_h=2), microbatches=MICROBATCHES)
    case = subject.describe(plan)
    losses = [
        [row for row in stage_layer_traffic(case, rank).rows if row.what == "loss"]
        for rank in (0, 1)
    ]
    assert [len(rows) for rows in losses] == [0, 1]
    assert losses[1][0].arrays == 2 * MICROBATCHES
    assert all(row.what != "loss" for row in other_traffic(case, 1).rows)


def test_estimates_count_skips_as_the_oracle_does(subject):
    pieces = BlockCosts(profile=subject.profile, device=DEVICE, dtype="float32")
    stages = np.array([1, 2])
    assert list(pieces.made_bytes) == [BATCH * size for size in MADE.values()]
    # Of equal FLOPs: down0 to down2, up1 to head.
    found = pieces.max_stage_bytes(pieces.made_bytes, stages, with_handed=True)
    second = MADE["up1"] + MADE["up0"] + MADE["head"] + PASSED["down2"]
    assert list(found) == [BATCH * sum(MADE.values()), BATCH * second]
    longest = pieces.max_stage_bytes(pieces.output_bytes, stages, at_end=True)
    assert list(longest) == [0, BATCH * (MADE["down2"] + PASSED["down2"])]


def test_the_partitioner_weighs_skips_at_cuts_and_in_memory(subject):
    graph = graph_from_profile(subject.profile, "net", constant_rate_model(1e9))
    query = StageQuery(
        graph=graph,
        levels=(LinkLevel(size=2, bandwidth=1e15),),
        cost_convention=CostConvention(),
        memory_budget=UNLIMITED,
        straight_pipeline=True,
    )
    _, second = partition_graph(query).stages
    assert second.nodes[0] == "up1"
    assert second.crossing == BATCH * (MADE["down2"] + PASSED["down2"])
    kept = sum(max(n.output - n.passed, n.kept) for n in graph.nodes[3:])
    weights = sum(node.parameters for node in graph.nodes[3:])
    assert second.memory == kept + BATCH * PASSED["down2"] + 2 * weights
    # Where links are slow it is cut where one level alone is handed on.
    slow = replace(query, levels=(LinkLevel(size=2, bandwidth=1e6),))
    assert partition_graph(slow).stages[1].crossing == BATCH * MADE["down0"]
