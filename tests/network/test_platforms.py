"""Platform files: what they say is what is simulated, and what they cannot say."""

import re

import numpy as np
import pytest
import yaml

from jaxdist.core.errors import BadInput
from jaxdist.network.platforms.read import find_topology
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.topologies.registry import make_topology

STAR = """
devices: {name: "h{i}", for: {i: 8}}
switches: {name: s}
cables: {from: "h{i}", to: s, for: {i: 8}, bandwidth: 12.5 GB/s, latency: 0.5us}
"""
TREE = """
name: tree
devices: {name: "h{i}", for: {i: 16}}
switches:
  - {name: "leaf{j}", for: {j: 4}}
  - {name: "spine{k}", for: {k: 2}}
cables:
  - {from: "h{i}", to: "leaf{i // 4}", for: {i: 16}, kind: plain}
  - {from: "leaf{j}", to: "spine{k}", for: {j: 4, k: 2}, kind: plain}
kinds:
  plain: {bandwidth: 100gbit, latency: 500ns}
"""


@pytest.fixture
def platform(tmp_path):
    def read(text, ranks=4, **more):
        file = tmp_path / "mine.yaml"
        tree = yaml.safe_load(text)
        tree.update(more)
        file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        return find_topology(str(file), ranks, {})

    return read


def way(made, source, target):
    return made.routes(np.array([source]), np.array([target])).link.tolist()


@pytest.mark.parametrize("sharing", ["maxmin", "rtt"])
def test_a_star_by_cables_is_the_star_by_name(platform, sharing):
    by_name = NetworkModel(topology=make_topology("star", 8, {}), sharing=sharing)
    by_file = NetworkModel(topology=platform(STAR), sharing=sharing)
    for name in ("ring", "halving_doubling", "parameter_server"):
        steps = schedule_by_name(name, 8)
        expected = simulate_collective(steps, 2.0**20, by_name).seconds
        found = simulate_collective(steps, 2.0**20, by_file).seconds
        assert found == pytest.approx(expected, rel=1e-12)


def test_of_equally_short_ways_the_first_is_taken_both_ways(platform):
    made = platform(TREE)
    there, back = way(made, 0, 5), way(made, 5, 0)
    assert len(there) == 4
    # each cable has two links, one behind the other, so the way back is the same cables
    assert [link // 2 for link in back] == [link // 2 for link in reversed(there)]
    assert not set(there) & set(back)
    # sixteen cables of devices, then those of leaf0: the first of them is to spine0
    assert there[1] // 2 == 16
    spines = {tuple(way(made, a, b))[1:3] for a in range(4) for b in range(4, 8)}
    assert len(spines) == 1


def test_ways_that_are_drawn_part(platform):
    made = platform(TREE, ties="hash")
    spines = {tuple(way(made, a, b))[1:3] for a in range(4) for b in range(4, 8)}
    assert len(spines) == 2
    assert way(made, 0, 5) == way(made, 0, 5)


def test_devices_forward_only_where_they_are_told_to(platform):
    chain = {
        "devices": {"name": "d{i}", "for": {"i": 3}},
        "cables": {
            "from": "d{i}",
            "to": "d{i + 1}",
            "for": {"i": 2},
            "bandwidth": "1GB/s",
            "latency": "1us",
        },
    }
    text = yaml.safe_dump(chain)
    assert len(way(platform(text, devices_forward=True), 0, 2)) == 2
    with pytest.raises(BadInput, match="no way from d0 to d2"):
        way(platform(text), 0, 2)


def test_the_least_latency_may_take_more_cables(platform):
    text = """
    devices: [{name: a}, {name: b}]
    switches: [{name: fast1}, {name: fast2}, {name: slow}]
    cables:
      - {from: a, to: slow, bandwidth: 1GB/s, latency: 1ms}
      - {from: slow, to: b, bandwidth: 1GB/s, latency: 1ms}
      - {from: a, to: fast1, bandwidth: 1GB/s, latency: 1us}
      - {from: fast1, to: fast2, bandwidth: 1GB/s, latency: 0}
      - {from: fast2, to: b, bandwidth: 1GB/s, latency: 1us}
    """
    assert len(way(platform(text), 0, 1)) == 2
    assert len(way(platform(text, routing="least_latency"), 0, 1)) == 3


@pytest.mark.parametrize(("counts", "crossed"), [("once", 1), ("below", 2)])
def test_the_inside_of_a_switch_is_a_link(platform, counts, crossed):
    text = STAR.replace("{name: s}", "{name: s, bandwidth: 20GB/s, latency: 0.1us}")
    made = platform(text, switch_counts=counts)
    links = way(made, 0, 1)
    inner = [link for link in links if made.capacity[link] == 20e9]
    assert len(inner) == crossed
    assert made.latency[links].sum() == pytest.approx(1e-6 + crossed * 1e-7)


def test_both_directions_of_a_cable_may_share_it(platform):
    made = platform(STAR, duplex="shared")
    assert set(way(made, 0, 1)) == set(way(made, 1, 0))


def test_a_topology_by_name_takes_its_settings_from_a_file(platform):
    made = platform("topology: fat_tree\nper_leaf: 8\nuplinks: 4", ranks=64)
    assert made.ports == 12
    assert "fat tree 8:4" in made.name
    assert platform("topology: dln\ndevices: 32", ranks=8).devices == 32


def test_named_platforms_are_wired_as_their_source_says():
    made = find_topology("tsubame3", 1, {})
    assert (made.devices, made.switches, made.ports) == (256, 128 + 17, 16)
    # the last device of a node to the first of the next one: 0.452 us, over NVLink
    hop = way(made, 3, 4)
    assert made.latency[hop].sum() == pytest.approx(0.452e-6)
    abci = find_topology("abci", 1, {})
    assert (abci.devices, abci.switches) == (272, 136 + 8 + 6 + 2)
    assert abci.latency[way(abci, 3, 4)].sum() == pytest.approx(15.464e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"swithces": {"name": "s"}}, "did you mean switches"),
        ({"duplex": "half"}, "full, shared"),
        ({"routing": "fewest_cable"}, "did you mean fewest_cables"),
        ({"devices_forward": "yes please"}, "neither true nor false"),
        ({"devices": None}, "no devices"),
        ({"devices": {"name": "h", "for": {"i": 8}}}, "two are named h"),
        ({"devices": {"name": "h{i}", "for": {"i": 0}}}, "how often"),
        ({"devices": {"name": "h{i / 2}", "for": {"i": 8}}}, "is no number"),
        ({"devices": {"name": "h{__import__}", "for": {"i": 8}}}, "is no number"),
        ({"switches": {"name": "s", "ports": 4}}, "more cables than ports"),
        ({"switches": {"name": "s", "bandwidth": "-3GB/s"}}, "above 0"),
        ({"switches": {"name": "t"}}, "no device or switch named s"),
        ({"cables": {"from": "h0", "to": "s"}}, "has no bandwidth"),
        ({"per_host": -1}, "no count"),
    ],
)
def test_what_a_file_cannot_say_is_refused(platform, change, says):
    with pytest.raises(BadInput, match=says):
        platform(STAR, **change)


@pytest.mark.parametrize(
    ("cable", "says"),
    [
        ("length: 300m", "faster than light"),
        ("latency: -1us", "between 0 and a minute"),
        ("bandwidth: 12.5GBit", "no such quantity|above 0|GB/s"),
        ("kind: fibre", "no kind of cable"),
        ("to: h0", "cannot be joined"),
        ("lenght: 3m", "did you mean length"),
    ],
)
def test_cables_that_cannot_be_are_refused(platform, cable, says):
    tree = yaml.safe_load(STAR)
    tree["cables"].update(yaml.safe_load(cable))
    if cable.startswith("bandwidth"):
        tree["cables"]["bandwidth"] = "12.5 G"
    with pytest.raises(BadInput, match=says):
        platform(yaml.safe_dump(tree, sort_keys=False))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "cannot be read"),
        ("- 1", "not a table"),
        ("topology: fattree", "did you mean fat_tree"),
        ("topology: dln\nper_swtch: 4", "did you mean per_switch"),
        ("topology: dln\ndevices: many", "not a whole number"),
    ],
)
def test_files_that_are_no_platform_are_refused(tmp_path, text, says):
    file = tmp_path / "p.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=says):
        find_topology(str(file), 8, {})


def test_names_that_are_near_are_told(tmp_path):
    with pytest.raises(BadInput, match="did you mean tsubame3"):
        find_topology("tsubame", 8, {})
    (tmp_path / "mine.yaml").write_text(STAR, encoding="utf-8")
    with pytest.raises(BadInput, match=re.escape("did you mean")):
        find_topology(str(tmp_path / "mein.yaml"), 8, {})
    with pytest.raises(BadInput, match="has no settings"):
        find_topology(str(tmp_path / "mine.yaml"), 8, {"per_leaf": 3})
