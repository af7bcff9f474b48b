"""Ranked layouts: what is tried, in which order, and why others lost."""

from dataclasses import replace

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.described import Subject
from jaxdist.launch.resolve import resolve
from jaxdist.meshes.clusters.read import find
from jaxdist.oracle.predict import predict
from jaxdist.planner.layouts import alone, layouts
from jaxdist.planner.ranking import rank


@pytest.fixture(scope="module")
def subject():
    words = ("plan.mesh.data=4", "plan.mesh.spatial_h=1", "optim.accumulate=4")
    return Subject(resolve("digits", words).config)


def ranked(subject, **more):
    return rank(
        layouts(Plan(), 4),
        alone(Plan(), 4),
        subject.case,
        find("testbed"),
        profile=subject.profile,
        microbatches=subject.task.microbatches,
        dtype=subject.dtype,
        **more,
    )


def test_every_way_to_deal_devices_out_is_tried_once():
    found = [plan.mesh for plan in layouts(Plan(), 12)]
    assert len(found) == len(set(found)) == 75  # C(6, 4) for 2 x 2, times 5 for 3
    assert {mesh.devices for mesh in found} == {12}


def test_plans_are_in_the_order_of_their_predictions(subject):
    found = ranked(subject)
    steps = [one.prediction.step_s for one in found.plans]
    assert steps == sorted(steps)
    best = found.plans[0]
    assert predict(subject.case(best.plan), find("testbed")) == best.prediction
    assert {lost.title for lost in found.lost} | {best.plan.title} >= {
        *("data 4", "fsdp 4", "spatial_h 4", "tensor 4", "pipe 4")
    }
    assert all(lost.why for lost in found.lost)


def test_what_does_not_fit_is_no_plan(subject):
    whole = ranked(subject)
    sizes = sorted(one.prediction.memory_bytes for one in whole.plans)
    room = sizes[len(sizes) // 2]
    found = ranked(subject, room=room)
    assert all(one.prediction.memory_bytes <= room for one in found.plans)
    assert any("out of memory by" in lost.why for lost in found.lost)
    with pytest.raises(BadInput, match="no layout can be run") as caught:
        ranked(subject, room=1000)
    assert "out of memory by" in caught.value.values


def test_what_the_batch_cannot_be_split_into_says_so(subject):
    config = subject.config
    small = Subject(replace(config, data=replace(config.data, batch=4)))
    found = ranked(small)
    why = {lost.title: lost.why for lost in found.lost}
    assert "divide" in why["data 4"]
    assert MeshShape(data=4) not in {one.plan.mesh for one in found.plans}
