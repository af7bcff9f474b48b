"""A described step is the same whatever was described before it."""

import pytest

from jaxdist.core.pipe import Pipe
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.described import Subject
from jaxdist.launch.resolve import resolve
from jaxdist.profile.readings import Readings

PLANS = (
    Plan(mesh=MeshShape(data=4)),
    Plan(mesh=MeshShape(data=2, fsdp=2)),
    Plan(mesh=MeshShape(fsdp=4), remat=True),
    Plan(mesh=MeshShape(fsdp=4), zero=1),
    Plan(mesh=MeshShape(data=2, spatial_h=2)),
    Plan(mesh=MeshShape(spatial_h=4), spatial_until="head"),
    Plan(mesh=MeshShape(spatial_h=2), spatial_until="head", spatial_then="samples"),
    Plan(mesh=MeshShape(data=2, tensor=2)),
    Plan(mesh=MeshShape(tensor=2), weights="filter"),
    Plan(mesh=MeshShape(pipe=2, data=2)),
    Plan(mesh=MeshShape(pipe=2, spatial_h=2)),
    Plan(mesh=MeshShape(pipe=2, data=2), pipe=Pipe(cuts=("block1",))),
    Plan(mesh=MeshShape(pipe=2, tensor=2), remat=True),
    Plan(mesh=MeshShape(data=2, fsdp=2), microbatches=8),
    Plan(mesh=MeshShape(pipe=2, data=2), microbatches=4, pipe=Pipe(schedule="gpipe")),
)


@pytest.fixture(scope="module")
def subject():
    words = ("plan.mesh.data=1", "plan.mesh.spatial_h=1", "optim.accumulate=2")
    return Subject(resolve("digits", words).config)


@pytest.fixture(scope="module")
def warm(subject):
    for plan in PLANS:
        subject.case(plan)
    return subject.readings


@pytest.mark.parametrize("plan", PLANS, ids=[repr(n) for n in range(len(PLANS))])
def test_what_was_read_before_changes_no_case(subject, warm, plan):
    subject.readings = warm
    again = subject.case(plan)
    subject.readings = Readings()
    assert again == subject.case(plan)
