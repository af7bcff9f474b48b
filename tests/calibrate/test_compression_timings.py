"""Packing: what a device computes for a sum in a lossy way."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxdist.calibrate.compression_cost import (
    COMPRESSORS,
    emulate_all_reduce,
    measure_compression_cost,
)
from jaxdist.collectives.primitives import psum

ORIGIN = "measured: a test"
DEVICES = 2


@pytest.fixture(scope="module")
def mesh():
    auto = (AxisType.Auto,)
    devices = jax.devices()[:DEVICES]
    return jax.make_mesh((DEVICES,), ("data",), devices=devices, axis_types=auto)


def test_every_way_takes_some_time_for_a_number(mesh):
    found = measure_compression_cost(mesh, ORIGIN, compressors=("int8", "random_k"))
    assert all(0 < each.value < 1e-5 for each in found.values())
    assert {each.origin for each in found.values()} == {ORIGIN}


@pytest.mark.parametrize("way", COMPRESSORS)
def test_what_one_device_plays_is_what_all_of_them_do(mesh, way):
    """The sum that is timed is the one that devices make of the same numbers."""
    draw = np.random.default_rng(0)
    each = [draw.standard_normal((DEVICES, n, 16), np.float32) for n in (32, 8)]
    summed = jax.shard_map(
        lambda *xs: [x[None] for x in psum([x[0] for x in xs], "data", way)],
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    real = jax.jit(summed)(*each)
    totals, sent = jax.jit(lambda *xs: emulate_all_reduce(way, xs))(*each)
    for total, one, put in zip(totals, real, sent, strict=True):
        np.testing.assert_allclose(total, np.asarray(one), rtol=1e-5, atol=1e-5)
        assert put.shape == one.shape
