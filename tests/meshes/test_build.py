"""One mesh factory: every axis there, every axis Auto."""

import jax
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
