"""Which axes lie innermost on devices: what a plan says of it, and what it refuses."""

import pytest

from jaxdist.core.axes import AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import apply_config_overrides

MESH = MeshShape(pipe=2, data=2, tensor=2)


def test_a_placement_comes_back_from_json_and_from_the_command_line():
    plan = Plan(mesh=MESH, placement=("data", "pipe"))
    assert Plan.from_json(plan.to_json()) == plan
    assert "placement" not in Plan.from_json('{"mesh": {"data": 2}}').label
    typed, _ = apply_config_overrides(
        Plan(mesh=MESH), ["placement=data,pipe"], experiment="x"
    )
    assert typed == plan
    assert apply_config_overrides(plan, ["placement="], experiment="x")[0] == Plan(
        mesh=MESH
    )


@pytest.mark.parametrize(
    ("placement", "strides"),
    [
        ((), {"pipe": 4, "data": 2, "tensor": 1}),
        (("tensor",), {"pipe": 4, "data": 2, "tensor": 1}),
        (("pipe",), {"data": 4, "tensor": 2, "pipe": 1}),
        (("data", "pipe"), {"tensor": 4, "data": 2, "pipe": 1}),
    ],
)
def test_axes_are_moved_behind_all_others_in_their_order(placement, strides):
    placed = Plan(mesh=MESH, placement=placement).placed
    assert set(placed.order) == set(AXES)
    assert {axis: placed.place(axis)[0] for axis in strides} == strides


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ((), []),
        (("tensor",), []),
        (("fsdp",), []),  # it has one device
        (("data", "tensor"), []),  # as without
        (("pipe",), ["pipe inside"]),
        (("data", "fsdp", "pipe"), ["data x pipe inside"]),
    ],
)
def test_a_label_says_what_was_moved(placement, said):
    mine = Plan(mesh=MESH, placement=placement).label.split(", ")
    assert [word for word in mine if word.endswith("inside")] == said
    assert Plan(mesh=MESH, placement=placement).title == Plan(mesh=MESH).title


def test_what_no_axis_is_and_an_axis_twice_are_refused():
    with pytest.raises(BadInput, match="no mesh axis pip to be placed") as caught:
        Plan(placement=("pip",))
    assert caught.value.remedy == ("did you mean pipe?",)
    assert "plan.placement = pip" in caught.value.values
    with pytest.raises(BadInput, match="in one place") as caught:
        Plan(placement=("pipe", "data", "pipe"))
    assert caught.value.remedy == ("plan.placement=pipe,data",)
    with pytest.raises(BadInput, match="are counted once") as caught:
        Plan(host_order=("t4", "v100", "t4"))
    assert caught.value.remedy == ("plan.host_order=t4,v100",)


def test_a_placement_stays_on_another_mesh():
    plan = Plan(mesh=MESH, placement=("pipe",)).on(MeshShape(data=8))
    assert (plan.placement, plan.label) == (("pipe",), "data 8")
