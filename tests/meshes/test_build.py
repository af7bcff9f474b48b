"""One mesh factory: every axis there, every axis Auto."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.core.axes import AXES
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.meshes.build import build_mesh
from jaxdist.meshes.rules import shard


@pytest.mark.parametrize("devices", [None, 8])
def test_every_axis_is_there_and_auto(devices):
    given = None if devices is None else jax.devices()[:devices]
    mesh = build_mesh(Plan(mesh=MeshShape(data=4, spatial_h=2)), given)
    assert mesh.axis_names == AXES
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert mesh.shape["data"] == 4
    assert mesh.size == 8


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    ("placement", "ids"),
    [
        ((), [[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9, 10, 11], [12, 13, 14, 15]]]),
        (("data",), [[[0, 2, 4, 6], [1, 3, 5, 7]], [[8, 10, 12, 14], [9, 11, 13, 15]]]),
        (("pipe",), [[[0, 2, 4, 6], [8, 10, 12, 14]], [[1, 3, 5, 7], [9, 11, 13, 15]]]),
        (
            ("data", "pipe"),
            [[[0, 4, 8, 12], [2, 6, 10, 14]], [[1, 5, 9, 13], [3, 7, 11, 15]]],
        ),
    ],
)
def test_devices_lie_as_they_are_placed(placement, ids, given):
    """Device ids by stage, shard of the batch, shard of the weights."""
    sizes = MeshShape(pipe=2, data=2, tensor=4)
    plan = Plan(mesh=sizes, placement=placement)
    mesh = build_mesh(plan, jax.devices() if given else None)
    assert mesh.axis_names == AXES
    assert mesh.device_ids.squeeze().tolist() == ids
    here = mesh.device_ids.squeeze()
    for place, axis in enumerate(("pipe", "data", "tensor")):
        stride, size = plan.placed.place(axis)
        assert here.shape[place] == size
        assert (np.diff(here, axis=place) == stride).all()


def test_more_devices_than_there_are():
    with pytest.raises(BadInput, match="larger than the devices") as caught:
        build_mesh(Plan(mesh=MeshShape(data=64)))
    assert "found 16" in caught.value.values


def test_a_split_that_divides():
    mesh = build_mesh(Plan(mesh=MeshShape(data=4)))
    x = shard(jax.numpy.zeros((8, 3)), P("data"), mesh)
    assert {s.data.shape for s in x.addressable_shards} == {(2, 3)}


def test_silent_replication_is_refused():
    mesh = build_mesh(Plan(mesh=MeshShape(data=4, spatial_h=2)))
    with pytest.raises(BadInput, match="images does not divide") as caught:
        shard(jax.numpy.zeros((17, 3)), P(("data", "spatial_h")), mesh, "images")
    assert caught.value.remedy == ("a size of 16 or 24",)
