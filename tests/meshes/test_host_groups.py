"""Files of clusters whose hosts are of several kinds."""

import pytest

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import cluster_from_tree, load_cluster
from jaxdist.meshes.clusters.what_if import apply_overrides

BIG = {
    **{"name": "big GPU", "memory": "80 GB", "memory_bandwidth": "2 TB/s"},
    **{"flops": {"float32": "20 TFLOP/s"}, "efficiency": 0.5},
}
SMALL = {**BIG, "name": "small GPU", "memory": "16 GB"}
LEVELS = [
    {"name": "host", "size": 4, "alpha": "3 us", "bandwidth": "300 GB/s"},
    {"name": "room", "size": 4, "alpha": "5 us", "bandwidth": "25 GB/s"},
]
THIN = {"level": "host", "bandwidth": "12 GB/s"}
TREE = {
    "levels": LEVELS,
    "host_groups": [
        {"name": "new", "hosts": 3, "device": BIG},
        {"name": "old", "hosts": 1, "device": SMALL, "links": [THIN]},
    ],
    "inter_group_links": [{"groups": ["new", "old"], "bandwidth": "10 gbit"}],
}


def made(**changed):
    return cluster_from_tree({**TREE, **changed}, "mine")


def test_groups_have_hosts_devices_and_links_of_their_own():
    cluster = made()
    assert [(g.name, r.start, r.stop) for g, r in cluster.group_ranges()] == [
        ("new", 0, 12),
        ("old", 12, 16),
    ]
    assert [(g.name, r.start) for g, r in cluster.group_ranges(("old",))] == [
        ("old", 0),
        ("new", 4),
    ]
    assert [kind.name for kind in cluster.kinds] == ["big GPU", "small GPU"]
    new, old = cluster.groups
    assert cluster.levels_of(new) == cluster.levels
    assert [one.bandwidth.value for one in cluster.levels_of(old)] == [12e9, 25e9]
    assert Cluster.from_json(cluster.to_json()) == cluster


def test_a_group_may_have_the_device_of_the_file_or_of_a_named_cluster():
    groups = [{"name": "a", "hosts": 3}, {"name": "b", "hosts": 1, "device": "abci"}]
    cluster = made(device=BIG, host_groups=groups, inter_group_links=[])
    assert cluster.device_of(cluster.groups[0]).name == "big GPU"
    assert cluster.device_of(cluster.groups[1]) == load_cluster("abci").device
    assert Cluster.from_json(cluster.to_json()) == cluster


def test_files_of_one_kind_say_nothing_of_groups():
    text = load_cluster("abci").to_json()
    assert "group" not in text
    assert len(load_cluster("abci").groups) == 1
    # A cluster of one level has hosts of one device.
    servers = load_cluster("pipedream-a")
    assert [group.hosts for group in servers.groups] == [16]


def test_numbers_of_groups_have_paths():
    rate = "host_groups.old.device.flops.float32"
    words = [f"{rate}=1 TFLOP/s", "host_groups.old.links.host.bandwidth=1 GB/s"]
    words += ["inter_group_links.new/old.bandwidth=1gbit"]
    words += ["device.memory=40 GB"]
    cluster = apply_overrides(made(), words)
    new, old = cluster.groups
    assert cluster.device_of(old).peak("float32").value == 1e12
    assert cluster.device_of(new).memory.value == 40e9
    assert cluster.levels_of(old)[0].bandwidth.value == 1e9
    assert dict(cluster.numbers())["inter_group_links.new/old.bandwidth"].value == (
        1.25e8
    )


def group(place, **changed):
    groups = [dict(one) for one in TREE["host_groups"]]
    groups[place] |= changed
    return {"host_groups": groups}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (group(0, hosts=2), "are not its hosts(?s:.*)4 hosts together(?s:.*)3 hosts"),
        (group(0, hosts=0), r"host_groups\[0\].hosts(?s:.*)whole number from 1"),
        (group(1, name="new"), "one stands there twice"),
        (group(1, device="abcj"), "no cluster abcj(?s:.*)did you mean abci"),
        (group(1, device={"name": "x"}), r"host_groups\[1\].device has no flops"),
        (
            group(1, device={k: v for k, v in SMALL.items() if k != "memory"}),
            r"host_groups\[1\].device has no memory",
        ),
        (group(1, links=[{"level": "hots"}]), "there is no hots(?s:.*)mean host"),
        (group(1, links=[THIN, THIN]), "one stands there twice"),
        (
            group(1, links=[{**THIN, "bandwidth": 0}]),
            r"links\[0\].bandwidth: no link has 0",
        ),
        (group(1, links=[{**THIN, "alpha": "1 ps"}]), "faster than light"),
        (group(1, device={**SMALL, "name": "CPU"}), "run no common program"),
        (
            {"inter_group_links": [{"groups": ["new", "odl"], "bandwidth": "1 GB/s"}]},
            "there is no odl(?s:.*)did you mean old",
        ),
        (
            {"inter_group_links": [{"groups": ["new", "new"], "bandwidth": "1 GB/s"}]},
            "connects no two groups",
        ),
        ({"inter_group_links": TREE["inter_group_links"] * 2}, "stands there twice"),
        ({"inter_group_links": [{"groups": ["new"]}]}, "list of two names"),
        ({"host_groups": []}, "has no device"),
        (
            {"host_groups": [{"name": "new", "hosts": 4}]},
            r"host_groups\[0\] has no device",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused(changed, said):
    with pytest.raises(BadInput, match=said) as caught:
        made(**changed)
    assert caught.value.rule
    assert caught.value.remedy


def test_orders_name_groups_once():
    for order, said in ((("odl",), "did you mean old"), (("old", "old"), "twice")):
        with pytest.raises(BadInput, match=said):
            made().group_ranges(order)


def test_what_is_for_one_kind_refuses_several():
    assert load_cluster("abci").only_device("jaxdist score").name.startswith("V100")
    with pytest.raises(BadInput, match="jaxdist score is for clusters of one kind"):
        made().only_device("jaxdist score")
