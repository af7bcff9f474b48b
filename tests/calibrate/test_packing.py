"""Packing: what a lossy sum takes beyond its collectives, as they are priced."""

from dataclasses import replace

import jax
import pytest
from jax.sharding import AxisType

from jaxdist.calibrate.packing import packing
from jaxdist.core.number import Number
from jaxdist.meshes.clusters.read import find

ORIGIN = "measured: a test"


@pytest.fixture(scope="module")
def mesh():
    auto = (AxisType.Auto,)
    return jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=auto)


def cluster(bandwidth, alpha):
    machine = find("testbed")
    (level,) = machine.levels
    numbers = {"bandwidth": Number(bandwidth, ORIGIN), "alpha": Number(alpha, ORIGIN)}
    return replace(machine, levels=(replace(level, **numbers),))


def test_it_is_what_links_do_not_take(mesh):
    """Of links that take no time all is packing; of slow ones nothing is left."""
    fast, slow = cluster(1e15, 1e-9), cluster(1.0, 10.0)
    found = packing(mesh, fast, ORIGIN, ways=("int8",))
    assert 0 < found["int8"].value < 1e-3
    assert found["int8"].origin == ORIGIN
    assert packing(mesh, slow, ORIGIN, ways=("int8",))["int8"].value == 0
