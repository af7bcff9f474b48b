"""Tiers of devices, from numbers and from clusters; and how fast a device is."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.planner.stages.graph_from_profile import device_time_model
from jaxdist.planner.stages.link_hierarchy import cluster_link_levels, parse_link_levels


def test_one_bandwidth_is_for_all_levels():
    made = parse_link_levels(8, (4, 2), (1e9,))
    assert [(t.size, t.bandwidth) for t in made] == [(4, 1e9), (2, 1e9)]


@pytest.mark.parametrize(
    ("workers", "sizes"),
    [(1, [1]), (3, [3]), (4, [4]), (8, [4, 2]), (68, [4, 17]), (136, [4, 17, 2])],
)
def test_neighbouring_devices_of_a_cluster_fill_its_levels(workers, sizes):
    assert [
        tier.size for tier in cluster_link_levels(load_cluster("abci"), workers)
    ] == sizes


def test_what_gets_through_is_shared_where_all_send():
    cluster = load_cluster("abci")
    *_, machine = cluster_link_levels(cluster, None)
    assert machine.bandwidth == cluster.levels[-1].bandwidth.value / 3


@pytest.mark.parametrize("workers", [6, 100, 4353])
def test_half_full_units_are_refused(workers):
    with pytest.raises(BadInput, match=r"--workers|--devices 4352"):
        cluster_link_levels(load_cluster("abci"), workers)


@pytest.mark.parametrize("flops", [0, 10**6, 10**12])
def test_a_layer_takes_what_its_kernels_or_its_bytes_take(flops):
    device = load_cluster("abci").device
    row = LayerProfile(
        name="a",
        kind="Conv",
        flops_forward=flops,
        flops_backward=2 * flops,
        output_bytes=10**6,
        parameter_bytes=10**5,
    )
    profile = Profile(model="m", inputs=("float32[8]",), batch=8, layers=(row,))
    forward, backward = device_time_model(device, profile).layer_seconds(row)
    moved = 1.1e6 / 900e9
    done = flops / (15.7e12 * device.efficiency.at(flops)) if flops else 0.0
    assert forward == pytest.approx(max(done, 2 * moved) + 5e-6)
    assert backward == pytest.approx(max(2 * done, 3 * moved) + 2 * 5e-6)
