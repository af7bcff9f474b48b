"""An outer loop that cannot be is refused where it is written down."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.outer import OuterConfig


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"sync_interval": -1}, "plan.outer.sync_interval=50"),
        ({"sync_interval": 5, "learning_rate": 0.0}, "plan.outer.learning_rate=0.7"),
        (
            {"sync_interval": 5, "learning_rate": float("nan")},
            "plan.outer.learning_rate=0.7",
        ),
        ({"sync_interval": 5, "momentum": 1.0}, "plan.outer.momentum=0.9"),
        ({"sync_interval": 5, "momentum": -0.1}, "plan.outer.momentum=0.9"),
        ({"sync_interval": 5, "fragments": 0}, "plan.outer.fragments=1"),
        ({"sync_interval": 5, "fragments": 6}, "plan.outer.fragments=1"),
        ({"sync_interval": 5, "density": 0.0}, "plan.outer.density=0.015625"),
        ({"sync_interval": 5, "feedback_decay": 1.1}, "plan.outer.feedback_decay=0.95"),
    ],
)
def test_out_of_range(given, remedy):
    with pytest.raises(BadInput, match="out of range") as caught:
        OuterConfig(**given)
    assert caught.value.remedy == (remedy,)


@pytest.mark.parametrize(
    "given", [{"density": 0.1}, {"quantize": False}, {"feedback_decay": 0.5}]
)
def test_what_another_compressor_does_not_read_is_refused(given):
    with pytest.raises(BadInput, match="would do nothing") as caught:
        OuterConfig(sync_interval=5, compressor="int4", **given)
    assert "plan.outer.compressor=chunked_top_k" in caught.value.remedy[0]


def test_a_plan_with_an_outer_loop_is_read_as_it_was_written():
    plan = Plan(
        mesh=MeshShape(replica=2), outer=OuterConfig(sync_interval=7, fragments=2)
    )
    assert Plan.from_json(plan.to_json()) == plan


def test_without_the_axis_the_outer_loop_goes():
    plan = Plan(mesh=MeshShape(replica=2, data=2), outer=OuterConfig(sync_interval=7))
    assert plan.on(MeshShape(data=2)).outer == OuterConfig()
    assert plan.on(MeshShape(replica=2)).outer == plan.outer


def test_replicas_on_purpose_alike_are_one():
    plan = Plan(
        mesh=MeshShape(replica=2),
        outer=OuterConfig(sync_interval=7),
        replicated_axes=("replica",),
    )
    assert plan.replicas == 1
    assert plan.batch_axes == ("data", "fsdp", "expert")


def test_error_feedback_and_outer_momentum_are_refused_together():
    with pytest.raises(BadInput, match="two momenta") as caught:
        OuterConfig(sync_interval=5, compressor="chunked_top_k")
    words = caught.value.remedy[0].split()
    given = {
        key.removeprefix("plan.outer."): float(value)
        for key, value in (word.split("=") for word in words)
    }
    assert OuterConfig(sync_interval=5, compressor="chunked_top_k", **given)
