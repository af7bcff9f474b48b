"""Copies between a device and its host's memory, measured."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxdist.calibrate import measure_cluster


@pytest.fixture(scope="module")
def mesh():
    auto = (AxisType.Auto,)
    return jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=auto)


def test_a_copy_is_some_bytes_a_second(mesh):
    assert 1e7 < measure_cluster.host_copy_bandwidth(mesh) < 1e13


@pytest.mark.parametrize(("one", "both"), [(2.0, 3.0), (1.0, 5.0)])
def test_the_slower_way_counts(mesh, monkeypatch, one, both):
    """There in a second or two, and back in one or four."""

    def timed(mesh, calls, count):
        for call in calls:
            call()
        return np.array([[one] * count, [both] * count])

    monkeypatch.setattr(measure_cluster, "time_rounds", timed)
    slower = max(one, both - one)
    assert measure_cluster.host_copy_bandwidth(mesh) == pytest.approx(
        (1 << 25) / slower
    )
