"""Blocks that are computed again until one: time of theirs alone, memory of the others."""

from dataclasses import replace
from itertools import pairwise

import pytest

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.compute_times import stage_compute_times
from jaxdist.oracle.memory import device_memory

CLUSTER = load_cluster("testbed")
DEVICE = CLUSTER.device
BLOCKS = ("embed", "block0", "block1", "block2", "block3", "head")
PLANS = (
    dict(remat=True),
    *(dict(remat=True, remat_end=block) for block in reversed(BLOCKS[1:])),
    dict(),
)
"""From all that is computed again to all that is kept."""


@pytest.fixture(scope="module")
def subject():
    words = ("model.depth=4", "model.vocabulary=256", "plan.mesh.data=1")
    return StepDescriber(resolve_config("characters", words).config)


def case(subject, how, **axes):
    return subject.describe(Plan(mesh=MeshShape(**axes), microbatches=4, **how))


@pytest.mark.parametrize("axes", [{"data": 2}, {"tensor": 2}, {"pipe": 2}], ids=str)
def test_a_block_more_that_is_kept_is_less_time_and_more_memory(subject, axes):
    cases = [case(subject, how, **axes) for how in PLANS]
    back = [sum(x.backward for x in stage_compute_times(one, CLUSTER)) for one in cases]
    assert all(more > less for more, less in pairwise(back))
    held = [device_memory(one, DEVICE)["activations"] for one in cases]
    # Of the first block what it hands on is kept, and the inside is there once: as
    # much as what is kept without.
    assert held[:-2] == sorted(held[:-2])
    assert held[0] < held[-3]


def test_a_forward_pass_is_added_of_each_block_that_is_computed_again(subject):
    every = {how.get("remat_end", ""): case(subject, how, data=2) for how in PLANS}
    assert {layer.block for layer in every[""].profile.layers} == set(BLOCKS)
    (plain,) = stage_compute_times(every[""], CLUSTER)
    (again,) = stage_compute_times(case(subject, dict(remat=True), data=2), CLUSTER)
    assert again.backward - plain.backward == pytest.approx(plain.forward)
    first, second = every["block1"], every["block2"]
    difference = (
        stage_compute_times(second, CLUSTER)[0].backward
        - stage_compute_times(first, CLUSTER)[0].backward
    )
    third = stage_compute_times(every["block3"], CLUSTER)[0].backward
    assert third - stage_compute_times(second, CLUSTER)[0].backward == pytest.approx(
        difference
    )


def test_stages_have_room_for_what_the_largest_keeps(subject):
    """They are one program: as many microbatches wait in the last as in the first."""
    plan = Plan(mesh=MeshShape(pipe=2), microbatches=8)
    again = replace(plan, remat=True)
    until = replace(again, remat_end="block2")
    found = {
        p: subject.describe_traced(p).traced_bytes["temporaries"]
        for p in (plan, again, until)
    }
    said = {p: device_memory(subject.describe(p), DEVICE)["activations"] for p in found}
    for held in (found, said):
        assert held[again] < 0.6 * held[until]
        assert held[until] == pytest.approx(held[plan], rel=0.3)
