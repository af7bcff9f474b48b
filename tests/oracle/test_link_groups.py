"""Groups of mesh axes on levels: whose links they cross, and how many share them."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.meshes.clusters.load import cluster_from_tree
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import link_group

DEVICE = {
    "name": "one",
    "memory": "16 GB",
    "memory_bandwidth": "900 GB/s",
    "flops": {"float32": "10 TFLOP/s"},
    "efficiency": 0.5,
}
LEVELS = [
    {"name": "host", "size": 4, "alpha": "1 us", "bandwidth": "100 GB/s"},
    {"name": "rack", "size": 8, "alpha": "10 us", "bandwidth": "20 GB/s"},
    {
        **{"name": "room", "size": 2, "alpha": "20 us", "bandwidth": "120 GB/s"},
        "oversubscription": 2,
    },
]
CLUSTER = cluster_from_tree({"device": DEVICE, "levels": LEVELS}, "mine")


@pytest.mark.parametrize(
    ("mesh", "axes", "size", "level", "gigabytes"),
    [
        (MeshShape(data=16, tensor=4), ["tensor"], 4, "host", 100),
        # Four rings leave a host, one for each of its devices.
        (MeshShape(data=8, tensor=4), ["data"], 8, "rack", 5),
        # One ring over all leaves a host once.
        (MeshShape(data=32), ["data"], 32, "rack", 20),
        (MeshShape(data=8, tensor=4), ["data", "tensor"], 32, "rack", 20),
        # Half a host each: two rings.
        (MeshShape(data=8, spatial_h=2, tensor=2), ["data", "tensor"], 16, "rack", 10),
        # Over racks: a rack's own links, of which half gets through, and its hosts'.
        (MeshShape(data=64), ["data"], 64, "room", 20),
        (MeshShape(data=2, tensor=32), ["data"], 2, "room", 120 / 32 / 2),
        (MeshShape(data=8, tensor=4), ["data[2]"], 2, "rack", 5),
        (MeshShape(data=2), ["data"], 2, "host", 100),
    ],
)
def test_a_group_has_its_part_of_the_slowest_links_it_crosses(
    mesh, axes, size, level, gigabytes
):
    group = link_group(CLUSTER, MeshPlacement(mesh=mesh), axes)
    assert (group.size, group.level) == (size, level)
    assert group.bandwidth == pytest.approx(1e9 * gigabytes)
    alphas = {"host": 1e-6, "rack": 1e-5, "room": 2e-5}
    assert group.alpha == pytest.approx(alphas[level])


@pytest.mark.parametrize(
    ("placement", "axis", "level", "gigabytes"),
    [
        # A row of four in each host; the four of a host reach over to the other.
        ((), "tensor", "host", 100),
        ((), "data", "rack", 20 / 4),
        # Pairs in a host; two rings of four, half of each in a host.
        (("data",), "data", "host", 100),
        (("data",), "tensor", "rack", 20 / 2),
        # Two neighbours along an axis are in a host where the axis lies so.
        ((), "tensor[2]", "host", 100),
        (("data",), "tensor[2]", "host", 100),
        (("tensor",), "tensor", "host", 100),
    ],
)
def test_a_group_lies_where_its_axes_are_placed(placement, axis, level, gigabytes):
    plan = Plan(mesh=MeshShape(data=2, tensor=4), placement=placement)
    group = link_group(CLUSTER, plan.placed, [axis])
    assert group.level == level
    assert group.bandwidth == pytest.approx(1e9 * gigabytes)


LINE = {"kind": "all-gather", "devices": 8, "messages": 6, "share": 1.2}


def test_what_was_measured_goes_with_its_kind_its_group_and_its_level():
    rack = {**LEVELS[1], "lines": [LINE]}
    cluster = cluster_from_tree({"device": DEVICE, "levels": [LEVELS[0], rack]}, "mine")
    over_racks = link_group(
        cluster, MeshPlacement(mesh=MeshShape(data=8, tensor=4)), ["data"]
    )
    assert over_racks.collective_cost("all-gather").devices == 8
    assert over_racks.collective_cost("all-reduce") is None
    inside = link_group(cluster, MeshPlacement(mesh=MeshShape(data=4)), ["data"])
    assert inside.collective_cost("all-gather") is None
    of_four = link_group(
        cluster, MeshPlacement(mesh=MeshShape(data=4, tensor=8)), ["data"]
    )
    assert (of_four.level, of_four.collective_cost("all-gather")) == ("rack", None)
    moved = collective_seconds("all-gather", 8000, 3, over_racks)
    assert moved == pytest.approx(3 * 6 * 1e-5 + 1.2 * 7000 / over_racks.bandwidth)


def test_of_lines_of_one_size_that_one_is_taken_which_lies_most_alike():
    """Eight devices: two of each of four hosts, or four of each of two."""
    lines = [{**LINE, "messages": n, "inside": n} for n in (4, 1)]
    rack = {**LEVELS[1], "lines": lines}
    cluster = cluster_from_tree({"device": DEVICE, "levels": [LEVELS[0], rack]}, "mine")
    for mesh, axes, inside in (
        (MeshShape(data=4, spatial_h=2, tensor=4), ["data[2]", "tensor"], 4),
        (MeshShape(data=8, tensor=4), ["data"], 1),
        # Two in a host lie as near to four as to one: the first of the file.
        (MeshShape(data=8, spatial_h=2, tensor=2), ["data[4]", "tensor"], 4),
    ):
        group = link_group(cluster, MeshPlacement(mesh=mesh), axes)
        assert group.size == 8
        assert group.collective_cost("all-gather").inside == inside
    every = cluster_from_tree(
        {"device": DEVICE, "levels": [LEVELS[0], {**rack, "lines": [LINE]}]}, "mine"
    )
    found = link_group(every, MeshPlacement(mesh=MeshShape(data=8, tensor=4)), ["data"])
    assert found.collective_cost("all-gather").inside is None


@pytest.mark.parametrize(
    ("inside", "said"), [(0, "inside cannot be"), (8, "crosses no links")]
)
def test_a_line_that_crosses_nothing_is_refused(inside, said):
    rack = {**LEVELS[1], "lines": [{**LINE, "inside": inside}]}
    with pytest.raises(BadInput, match=said):
        cluster_from_tree({"device": DEVICE, "levels": [LEVELS[0], rack]}, "mine")


def test_arrays_of_a_size_take_what_that_size_was_measured_to_take():
    """A line bends: an array of 8 kB takes twice as long as the line says, of 1 half."""
    bent = {**LINE, "bend": [[875, 0.5], [7000, 2.0]]}
    found = []
    for one in (LINE, bent):
        rack = {**LEVELS[1], "lines": [one]}
        cluster = cluster_from_tree(
            {"device": DEVICE, "levels": [LEVELS[0], rack]}, "mine"
        )
        group = link_group(
            cluster, MeshPlacement(mesh=MeshShape(data=8, tensor=4)), ["data"]
        )
        found.append([collective_seconds("all-gather", 8000, n, group) for n in (1, 8)])
    (straight_one, straight_eight), (bent_one, bent_eight) = found
    assert bent_one == pytest.approx(2.0 * straight_one)
    assert bent_eight == pytest.approx(0.5 * straight_eight)


def test_bytes_that_begin_no_array_take_their_share_of_a_line():
    rack = {**LEVELS[1], "lines": [{**LINE, "share": 3.0}]}
    cluster = cluster_from_tree({"device": DEVICE, "levels": [LEVELS[0], rack]}, "mine")
    group = link_group(
        cluster, MeshPlacement(mesh=MeshShape(data=8, tensor=4)), ["data"]
    )
    assert collective_seconds("all-gather", 8000, 0, group) == pytest.approx(
        3 * 7000 / group.bandwidth
    )


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(BadInput, match="too few devices"):
        link_group(CLUSTER, MeshPlacement(mesh=MeshShape(data=65)), ["data"])
