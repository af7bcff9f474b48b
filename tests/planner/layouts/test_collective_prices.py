"""Collectives of a whole space, as the oracle prices them."""

from dataclasses import replace

import numpy as np
import pytest

from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.plan import MeshShape
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import link_group
from jaxdist.planner.layouts.cost_estimate import price_collectives

KIND = "all-reduce"
MESHES = (
    MeshShape(data=4),
    MeshShape(data=2, tensor=2),
    MeshShape(tensor=4),
)
PLACED = tuple(MeshPlacement(mesh=mesh) for mesh in MESHES)


@pytest.fixture(scope="module")
def plain():
    return load_cluster("testbed")


def bent(cluster):
    """The cluster, where sums of 100 KB among four take twice what the line says."""
    (level,) = cluster.levels
    one = SourcedNumber(1.0, "measured: a test")
    line = CollectiveCost(
        kind=KIND,
        devices=4,
        messages=replace(one, value=4.0),
        share=one,
        bend=((1e4, 1.0), (1e5, 2.0), (1e6, 1.0)),
    )
    return replace(cluster, levels=(replace(level, lines=(line,)),))


def of_oracle(cluster, mesh, arrays, payload):
    group = link_group(cluster, MeshPlacement(mesh=mesh), ("data",))
    return collective_seconds(KIND, payload, arrays, group)


def priced(cluster, arrays, payload):
    """Price arrays of a plan on the first mesh, along data."""
    columns = np.array([0]), np.array([arrays]), np.array([payload])
    return price_collectives(KIND, cluster, PLACED, ("data",), *columns)


@pytest.mark.parametrize("arrays", [1, 12])
@pytest.mark.parametrize("each", [0, 700, 50_000, 3_000_000, 90_000_000])
def test_on_a_line_it_is_the_price_at_any_size(plain, each, arrays):
    place = np.arange(len(MESHES))
    count, payload = np.full(3, arrays), np.full(3, arrays * each)
    axes = "data", "spatial_h"
    said = price_collectives(KIND, plain, PLACED, axes, place, count, payload)
    assert said[2] == 0
    for mesh, one in zip(MESHES[:2], said, strict=False):
        assert one == pytest.approx(of_oracle(plain, mesh, arrays, arrays * each))


def test_a_size_that_lies_off_the_line_is_priced_so(plain):
    cluster = bent(plain)
    for size in (1 << 16, 1 << 20):
        said = priced(cluster, 2, 2 * size)
        assert said[0] == pytest.approx(of_oracle(cluster, MESHES[0], 2, 2 * size))
    assert priced(cluster, 1, 1 << 16)[0] > 1.5 * priced(plain, 1, 1 << 16)[0]


def test_large_sizes_that_were_measured_are_priced_so(plain):
    """`calibrate --max-size 64MB` finds another algorithm there."""
    (level,) = bent(plain).levels
    (line,) = level.lines
    far = replace(line, bend=((1e6, 1.0), (3e7, 1.0), (9e7, 0.5)))
    cluster = replace(plain, levels=(replace(level, lines=(far,)),))
    for size in (1 << 24, 1 << 26):
        said = priced(cluster, 1, size)
        assert said[0] == pytest.approx(of_oracle(cluster, MESHES[0], 1, size))


def test_bytes_of_less_than_an_array_are_paid_for(plain):
    """A stage has a part of what a whole network moves."""
    group = link_group(plain, MeshPlacement(mesh=MESHES[0]), ("data",))
    said = priced(plain, 0.0, 1e6)
    assert said[0] == pytest.approx(
        collective_seconds(KIND, 10**9, 1, group) / 1000, rel=0.02
    )


def test_axes_that_a_mesh_does_not_have_cross_no_link():
    """Tensor within a host; data, of one device, would stand across hosts."""
    cluster, mesh = load_cluster("abci"), MeshShape(fsdp=8, tensor=4)
    said = price_collectives(
        KIND,
        cluster,
        [MeshPlacement(mesh=mesh)],
        ("data", "tensor"),
        *(np.array([0]), np.array([1]), np.array([1 << 20])),
    )
    inside = link_group(cluster, MeshPlacement(mesh=mesh), ("tensor",))
    assert (
        inside.level
        != link_group(cluster, MeshPlacement(mesh=mesh), ("data", "tensor")).level
    )
    assert said[0] == pytest.approx(collective_seconds(KIND, 1 << 20, 1, inside))
