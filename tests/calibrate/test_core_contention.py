"""Crowd: one device computes, then all, and a machine says how much slower that is."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxdist.calibrate import measure_cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.meshes.clusters.what_if import apply_overrides


@pytest.fixture
def mesh():
    return jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=jax.devices()[:4])


@pytest.mark.parametrize("some", [1, 3, 4])
def test_so_many_devices_compute_and_the_others_do_not(mesh, some):
    made = measure_cluster._compute_on(mesh, some)()
    rests = np.full(
        (measure_cluster._MATRIX_SIDE, measure_cluster._MATRIX_SIDE),
        1 / measure_cluster._MATRIX_SIDE,
        np.float32,
    )
    works = [not np.array_equal(shard.data[0], rests) for shard in _in_order(made)]
    assert works == [place < some for place in range(4)]


def _in_order(made):
    return sorted(made.addressable_shards, key=lambda shard: shard.index[0].start)


@pytest.mark.parametrize(
    ("alone", "together", "times"), [(1.0, 2.0, 2.0), (1.0, 0.9, 1.0)]
)
def test_it_is_the_time_in_company_over_that_alone(
    mesh, monkeypatch, alone, together, times
):
    """One that is a little faster in company was measured a little wrong."""
    monkeypatch.setattr(
        measure_cluster, "first_quartiles", lambda *_, **__: [alone, together]
    )
    assert measure_cluster.measure_core_contention(mesh) == times


def test_no_device_is_faster_in_company():
    with pytest.raises(BadInput, match="at least 1"):
        apply_overrides(load_cluster("testbed"), ["device.crowd=0.5"])
    slower = load_cluster("testbed").with_number(
        "device.crowd", SourcedNumber(2.0, "given: a test")
    )
    assert type(slower).from_json(slower.to_json()) == slower
