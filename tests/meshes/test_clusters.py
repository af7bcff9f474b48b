"""Clusters: what is written is read again, and what no machine is is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import EfficiencyCurve
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.meshes.clusters.load import (
    cluster_from_tree,
    cluster_names,
    load_cluster,
    parser_for,
)

SMALL = {
    "name": "small",
    "device": {
        "name": "one",
        "memory": "16 GB",
        "memory_bandwidth": "900 GB/s",
        "flops": {"float32": "15.7 TFLOP/s"},
        "efficiency": 0.5,
    },
    "levels": [
        {"name": "host", "size": 4, "alpha": "9 us", "bandwidth": "50 GB/s"},
        {
            "name": "rack",
            "size": 8,
            "alpha": "40 us",
            "port_bandwidth": "100 gbit",
            "ports": 2,
            "origin": "datasheet: EDR",
        },
    ],
}


def level(**changed):
    one = {"name": "host", "size": 4, "alpha": "9 us", "bandwidth": "50 GB/s"}
    return cluster_from_tree({**SMALL, "levels": [{**one, **changed}]}, "small")


def test_every_named_cluster_is_read_again_as_it_was_written():
    for name in cluster_names():
        cluster = load_cluster(name)
        assert Cluster.from_json(cluster.to_json()) == cluster
        assert cluster.name == name
        assert all(number.origin for _, number in cluster.numbers())


def test_what_cluster_to_json_wrote_is_a_cluster_file_too(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(load_cluster("abci").to_json())
    assert load_cluster(str(path)) == load_cluster("abci")


LINE = {
    "kind": "all-gather",
    "devices": 4,
    "messages": 6.5,
    "share": 1.2,
    "bend": [[1000, 0.9], [1000000, 1.3]],
}


def test_lines_of_a_level_are_written_read_and_asked_about(tmp_path):
    cluster = level(lines=[LINE], origin="measured: here")
    (line,) = cluster.levels[0].lines
    assert line.share == SourcedNumber(1.2, "measured: here")
    path = tmp_path / "lines.json"
    path.write_text(cluster.to_json())
    assert load_cluster(str(path)) == cluster
    other = cluster.with_number(
        "levels.host.lines.all-gather/4.share", SourcedNumber(2, "given: me")
    )
    assert other.levels[0].lines[0].share.value == 2
    with pytest.raises(BadInput, match="no field pieces"):
        level(lines=[{**LINE, "pieces": 3}])
    with pytest.raises(BadInput, match="at least two"):
        level(lines=[{**LINE, "devices": 1}])
    with pytest.raises(BadInput, match="bends nowhere"):
        level(lines=[{**LINE, "bend": [[1000, 1.0], [10, 1.0]]}])


def test_what_packing_costs_is_a_number_of_the_device(tmp_path):
    packing = {"int8": "12 ns", "top_k": {"value": 2e-8, "origin": "measured: here"}}
    cluster = cluster_from_tree(
        {**SMALL, "device": {**SMALL["device"], "packing": packing}}, "x"
    )
    assert cluster.device.packing["int8"].value == pytest.approx(12e-9)
    assert cluster.device.packing["top_k"].origin == "measured: here"
    path = tmp_path / "packing.json"
    path.write_text(cluster.to_json())
    assert load_cluster(str(path)) == cluster
    assert parser_for("device.packing.int8")("3 us", "here") == pytest.approx(3e-6)


def test_kernels_have_a_peak_with_its_unit_and_the_origin_of_their_table():
    row = ["product", 1, 16, 64, 64, 1e-6, 3e-6]
    kernels = {"peak": "60 GFLOP/s", "timed": [row]}
    device = {**SMALL["device"], "origin": "measured: here", "kernels": kernels}
    found = cluster_from_tree({**SMALL, "device": device}, "x").device.kernels
    assert (found.peak, found.origin) == (60e9, "measured: here")
    assert [one.row for one in found.timed] == [row]
    kernels = {**kernels, "peak": "60 GB/s"}
    with pytest.raises(BadInput, match=r"kernels\.peak"):
        cluster_from_tree({**SMALL, "device": {**device, "kernels": kernels}}, "x")


def test_numbers_have_units_and_the_origin_of_their_table():
    cluster = cluster_from_tree(SMALL, "small")
    rack = cluster.levels[1]
    assert rack.bandwidth == SourcedNumber(25e9, "datasheet: EDR; times 2 ports")
    assert cluster.device.memory == SourcedNumber(16e9, "given: small")
    assert cluster.sizes == (4, 32)
    assert [cluster.level_of(n) for n in (1, 4, 5, 32)] == [0, 0, 1, 1]


def test_a_number_is_replaced_by_its_path():
    cluster = load_cluster("abci")
    fitted = SourcedNumber(6.2e9, "fitted: rows of 8 devices")
    other = cluster.with_number("levels.leaf.bandwidth", fitted)
    assert dict(other.numbers())["levels.leaf.bandwidth"] == fitted
    changed = {n for n, v in other.numbers() if dict(cluster.numbers())[n] != v}
    assert changed == {"levels.leaf.bandwidth"}
    faster = other.with_number("device.flops.float32", SourcedNumber(1.0, "given: me"))
    assert faster.device.peak("float32").value == 1
    with pytest.raises(BadInput, match=r"did you mean levels\.leaf\.alpha"):
        cluster.with_number("levels.leaf.alpa", fitted)


def test_efficiency_is_straight_over_the_logarithm_and_level_outside():
    curve = EfficiencyCurve(points=((1e6, 0.1), (1e8, 0.5)), origin="given: me")
    assert [curve.at(x) for x in (1, 1e6, 1e7, 1e8, 1e12)] == [0.1, 0.1, 0.3, 0.5, 0.5]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"alpha": "-1 us"}, "no link takes -1 us"),
        ({"alpha": "1 ns", "length": "10 m"}, "faster than light"),
        ({"port_bandwidth": "10 GB/s", "ports": 4}, "more bandwidth than ports"),
        ({"bandwidth": "50 GHz"}, "no such quantity"),
        ({"bandwith": "1 GB/s"}, "did you mean bandwidth"),
        ({"size": 0}, "size is a whole number from 1"),
        ({"oversubscription": 0.5}, "more than is sent"),
        ({"origin": "somebody"}, "an origin is text that begins with"),
    ],
)
def test_impossible_levels_are_refused(changed, said):
    with pytest.raises(BadInput, match=said):
        level(**changed)


def test_unknown_clusters_and_missing_parts_are_refused(tmp_path):
    with pytest.raises(BadInput, match="did you mean dgx-a100"):
        load_cluster("dgx-a10")
    with pytest.raises(BadInput, match="no file"):
        load_cluster(str(tmp_path / "none.yaml"))
    with pytest.raises(BadInput, match="has no levels"):
        cluster_from_tree({"device": SMALL["device"]}, "x")
    device = {k: v for k, v in SMALL["device"].items() if k != "memory"}
    with pytest.raises(BadInput, match="device has no memory"):
        cluster_from_tree({**SMALL, "device": device}, "x")
    with pytest.raises(BadInput, match="too few devices"):
        cluster_from_tree(SMALL, "small").level_of(33)
    with pytest.raises(BadInput, match="no FLOP/s for int8"):
        cluster_from_tree(SMALL, "small").device.peak("int8")
    path = tmp_path / "broken.yaml"
    path.write_text(json.dumps(SMALL)[:-2])
    with pytest.raises(BadInput, match="cannot be read"):
        load_cluster(str(path))


def test_a_price_is_a_number_with_an_origin():
    bill = {"value": 4.1, "origin": "given: the bill of May"}
    for price, origin in ((4.1, "given: small"), (bill, bill["origin"])):
        cluster = cluster_from_tree(SMALL | {"price": price}, "small")
        assert cluster.price == SourcedNumber(4.1, origin)
        assert dict(cluster.numbers())["price"] == cluster.price
        assert Cluster.from_json(cluster.to_json()) == cluster
    assert cluster_from_tree(SMALL, "small").price is None
    for wrong, said in (
        ({"price": -1.0}, "no negative"),
        ({"price": "much"}, "price has no unit"),
        ({"prize": 4.1}, "did you mean price"),
    ):
        with pytest.raises(BadInput, match=said):
            cluster_from_tree(SMALL | wrong, "small")


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(
        ["16", "8.5", "80 GB", "1e6", "3 us", "host", "given: me", "bf16"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["value", "origin", "points", "name", "kind", "timed"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=4,
)
PLAIN_LINE = {"kind": "all-gather", "devices": 4, "messages": 1.0, "share": 1.0}
FULL = {
    **SMALL,
    **{"source": "a wiki", "origin": "given: me", "overlap": 0.5, "price": 4},
    "levels": [{**SMALL["levels"][0], "lines": [PLAIN_LINE]}, SMALL["levels"][1]],
}


def places(tree, path=()):
    yield path
    items = ()
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    for key, value in items:
        yield from places(value, (*path, key))


def changed(tree, path, value):
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([p for p in places(FULL) if p]), _ANY)
def test_any_value_at_any_place_is_read_or_refused(path, value):
    try:
        made = cluster_from_tree(changed(FULL, path, value), "mine")
    except BadInput as refused:
        said = refused.what, refused.rule, refused.values, *refused.remedy
    else:
        said = ("read",)
        assert Cluster.from_json(made.to_json()) == made
    assert all(said)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("levels", 1, "size"), "16", r"mine: levels\[1\].size(?s:.*)without quotes"),
        (("levels", 1, "size"), 8.5, r"mine: levels\[1\].size"),
        (("levels", 1, "size"), True, r"mine: levels\[1\].size"),
        (("levels", 1, "name"), "host", r"levels\[1\].name(?s:.*)a name of its own"),
        (("levels",), {"host": 8}, "mine: levels cannot be"),
        (("device", "flops"), "312 TFLOP/s", "mine: device.flops"),
        (("device", "flops"), {"bf16": 1e12}, "mine: device.flops.bf16"),
        (("device", "memory"), 80, "mine: device.memory(?s:.*)memory: 80 GB"),
        (("device", "efficiency"), "0.5", "mine: device.efficiency"),
        (("device", "efficiency"), [[1e9]], r"device.efficiency\[0\]"),
        (("origin",), 2026, "mine: origin(?s:.*)given: 2026"),
        (("device",), "A100", "mine: device is not a table"),
    ],
)
def test_what_cannot_be_is_named_by_its_place(path, value, said):
    with pytest.raises(BadInput, match=said):
        cluster_from_tree(changed(FULL, path, value), "mine")


def test_units_as_people_write_them():
    for alpha in ("3 us", "3 \u00b5s", "3 \u03bcs"):
        assert level(alpha=alpha).levels[0].alpha.value == 3e-6
    for rate in ("200 Gbps", "200 gbit", "200 Gb/s", "25 GBps"):
        assert level(bandwidth=rate).levels[0].bandwidth.value == 25e9


def test_a_key_twice_is_refused(tmp_path):
    text = json.dumps(SMALL)
    file = tmp_path / "twice.yaml"
    file.write_text(text.replace('"size": 4', '"size": 4, "size": 8'))
    with pytest.raises(BadInput, match="size, again in line 1"):
        load_cluster(str(file))
