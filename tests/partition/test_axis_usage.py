"""An axis that splits nothing is refused, never silently repeated."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.train import build_layout

IMAGE = ("spatial_h", "spatial_w")


def test_used_axes_pass():
    mesh = MeshShape(data=2, fsdp=2, spatial_h=2, spatial_w=2, tensor=2)
    build_layout.check_axis_usage(Plan(mesh=mesh), IMAGE)


@pytest.mark.parametrize("axis", ["replica", "spatial_d"])
def test_an_axis_without_a_use_is_refused(axis):
    with pytest.raises(BadInput, match=rf"nothing is split along {axis}") as caught:
        build_layout.check_axis_usage(Plan(mesh=MeshShape(**{axis: 2}, data=4)), IMAGE)
    assert f"plan.mesh.data=8 plan.mesh.{axis}=1" in str(caught.value)


def test_repeating_on_purpose_is_said():
    build_layout.check_axis_usage(
        Plan(mesh=MeshShape(tensor=2), replicated_axes=("tensor",)), IMAGE
    )


def test_an_axis_in_use_is_not_idle():
    with pytest.raises(BadInput, match="cannot be idle"):
        build_layout.check_axis_usage(
            Plan(mesh=MeshShape(data=2), replicated_axes=("data",)), IMAGE
        )


def test_a_clip_is_not_split_along_its_frames():
    clip = (None, *IMAGE)
    build_layout.check_axis_usage(Plan(mesh=MeshShape(spatial_h=2)), clip)
    with pytest.raises(BadInput, match="fsdp, tensor, spatial_h, spatial_w"):
        build_layout.check_axis_usage(Plan(mesh=MeshShape(spatial_d=2)), clip)
