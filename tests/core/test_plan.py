"""A plan of which something ends at a block of the network."""

import math
from dataclasses import replace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.shuffle import ShuffleConfig

PART = Plan(mesh=MeshShape(data=2, spatial_h=2), spatial_end="block3")


def test_a_plan_comes_back_from_json():
    assert Plan.from_json(PART.to_json()) == PART


def test_the_title_says_where_images_are_whole():
    assert PART.title == "data 2 x spatial_h 2 until block3"


def test_samples_behind_the_end_are_in_json_and_title():
    dealt = replace(PART, spatial_end_mode="samples")
    assert Plan.from_json(dealt.to_json()) == dealt
    assert dealt.title == "data 2 x spatial_h 2 until block3, then samples"
    assert dealt.on(MeshShape(data=2)) == Plan(mesh=MeshShape(data=2))


def test_samples_behind_need_an_end():
    with pytest.raises(BadInput, match="rows are exchanged for samples nowhere"):
        Plan(mesh=MeshShape(spatial_h=2), spatial_end_mode="samples")


def test_the_end_of_a_split_needs_a_split():
    with pytest.raises(BadInput, match="no images are split") as refused:
        Plan(mesh=MeshShape(data=2), spatial_end="block3")
    assert refused.value.remedy == ("plan.mesh.spatial_h=2", "plan.spatial_end=")


def test_the_end_of_a_split_goes_with_the_split():
    assert PART.on(MeshShape(spatial_w=4)).spatial_end == "block3"
    assert PART.on(MeshShape(data=2)) == Plan(mesh=MeshShape(data=2))


def test_the_end_of_what_is_computed_again_is_in_json_and_label():
    plan = Plan(mesh=MeshShape(data=2), remat=True, remat_end="block3")
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.label == "data 2, remat until block3"
    assert plan.on(MeshShape(fsdp=2)).remat_end == "block3"


def test_the_end_of_what_is_computed_again_needs_blocks_that_are():
    with pytest.raises(BadInput, match="no blocks are computed again") as refused:
        Plan(remat_end="block3")
    assert refused.value.remedy == ("plan.remat=true", "plan.remat_end=")


@pytest.mark.parametrize(
    ("fraction", "nearest"), [(-1.0, "0"), (math.inf, "1"), (math.nan, "0.1")]
)
def test_a_part_that_cannot_be_exchanged_names_one_that_can(fraction, nearest):
    with pytest.raises(BadInput) as caught:
        ShuffleConfig(exchange_fraction=fraction)
    assert caught.value.remedy == (f"plan.shuffle.exchange_fraction={nearest}",)
