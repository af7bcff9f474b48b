"""Packing: what a device computes for a sum in a lossy way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.calibrate.packing import WAYS, packing, played
from jaxdist.collectives.primitives import psum

ORIGIN = "measured: a test"
DEVICES = 2


@pytest.fixture(scope="module")
def mesh():
    auto = (AxisType.Auto,)
    devices = jax.devices()[:DEVICES]
    return jax.make_mesh((DEVICES,), ("data",), devices=devices, axis_types=auto)


def test_every_way_takes_some_time_for_a_number(mesh):
    found = packing(mesh, ORIGIN, ways=("int8", "random_k"))
    assert all(0 < each.value < 1e-5 for each in found.values())
    assert {each.origin for each in found.values()} == {ORIGIN}


@pytest.mark.parametrize("way", WAYS)
def test_what_one_device_plays_is_what_all_of_them_do(mesh, way):
    """The sum that is timed is the one that devices make of the same numbers."""
    each = np.random.default_rng(0).standard_normal((DEVICES, 32, 16), np.float32)
    along = P("data")
    summed = jax.shard_map(
        lambda x: psum(x[0], "data", way)[None],
        mesh=mesh,
        in_specs=along,
        out_specs=along,
        check_vma=False,
    )
    real = np.asarray(jax.jit(summed)(each))
    total, sent = jax.jit(lambda x: played(way, x))(jnp.asarray(each))
    np.testing.assert_allclose(total, real, rtol=1e-5, atol=1e-5)
    assert sent.shape == each.shape
