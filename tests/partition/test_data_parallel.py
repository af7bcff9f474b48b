"""The rule of data parallelism, and which neighbours share batch statistics."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.partition.data_parallel import batch_group_axes, check_batch_size


@pytest.mark.parametrize(
    ("replicas", "axes"),
    [
        (1, ()),
        (2, ("fsdp[2]",)),
        (4, ("fsdp",)),
        (8, ("data[2]", "fsdp")),
        (24, ("data", "fsdp")),
    ],
)
def test_neighbours_are_the_innermost_parts_of_the_batch(replicas, axes):
    plan = Plan(mesh=MeshShape(data=6, fsdp=4))
    assert batch_group_axes(plan, replicas) == axes
    assert plan.mesh.size(*axes) == replicas


def test_a_batch_that_does_not_divide_into_microbatches_is_refused():
    plan = Plan(mesh=MeshShape(data=4))
    check_batch_size(plan, 24, 3)
    with pytest.raises(BadInput, match="does not divide") as caught:
        check_batch_size(plan, 20, 3)
    assert caught.value.remedy == ("data.batch=12 or data.batch=24",)
