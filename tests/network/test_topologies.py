"""Ways by arithmetic are ways: cable by cable from source to target, and short."""

from collections import deque

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.network.topologies.registry import make_topology


def fat_tree(cable, hosts, per_leaf, spines):
    if cable < hosts:
        return ("h", cable), ("L", cable // per_leaf)
    leaf, spine = divmod(cable - hosts, spines)
    return ("L", leaf), ("S", spine)


def torus(cable, dims):
    here, dim = divmod(cable, len(dims))
    stride = int(np.prod(dims[:dim]))
    place = here // stride % dims[dim]
    there = here + ((place + 1) % dims[dim] - place) * stride
    return ("h", here), ("h", there)


def dln(cable, hosts, per_switch):
    if cable < hosts:
        return ("h", cable), ("S", cable // per_switch)
    n = -(-hosts // per_switch)
    kinds = sum(1 << k < n for k in range(20))
    here, kind = divmod(cable - hosts, kinds)
    return ("S", here), ("S", (here + (1 << kind)) % n)


def dragonfly(cable, hosts, p, a, h):
    groups = -(-hosts // (p * a))
    if cable < hosts:
        return ("h", cable), ("R", cable // p)
    inner = cable - hosts
    if inner < groups * a * a:
        low, place = divmod(inner, a)
        return ("R", low), ("R", low // a * a + place)
    low, high = divmod(inner - groups * a * a, groups)
    # cable k of a group leads to group k, or to k + 1 from its own number on
    return ("R", low * a + (high - 1) // h), ("R", high * a + low // h)


CASES = [
    ("fat_tree", 64, {}, lambda c: fat_tree(c, 64, 8, 8), 4),
    ("fat_tree", 37, {"per_leaf": 8, "uplinks": 4}, lambda c: fat_tree(c, 37, 8, 4), 4),
    ("fat_tree", 64, {"routing": "ecmp"}, lambda c: fat_tree(c, 64, 8, 8), 4),
    ("torus", 64, {}, lambda c: torus(c, (8, 8)), 8),
    ("torus", 30, {"dims": "5x3x2"}, lambda c: torus(c, (5, 3, 2)), 4),
    ("torus", 7, {"dims": "7"}, lambda c: torus(c, (7,)), 3),
    ("dln", 64, {}, lambda c: dln(c, 64, 1), None),
    ("dln", 64, {"per_switch": 4}, lambda c: dln(c, 64, 4), None),
    ("dln", 45, {}, lambda c: dln(c, 45, 1), None),
    ("dln", 2, {}, lambda c: dln(c, 2, 1), 3),
    ("dragonfly", 72, {"per_router": 2}, lambda c: dragonfly(c, 72, 2, 4, 2), 5),
    ("dragonfly", 30, {"per_router": 2}, lambda c: dragonfly(c, 30, 2, 4, 2), 5),
]


@pytest.mark.parametrize(("name", "devices", "settings", "ends", "most"), CASES)
def test_every_way_leads_from_its_source_to_its_target(
    name, devices, settings, ends, most
):
    made = make_topology(name, devices, settings)
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    sources, targets = np.array(pairs).T
    routes = made.routes(sources, targets)
    lengths = np.bincount(routes.flow)
    for (a, b), way in zip(pairs, np.split(routes.link, np.cumsum(lengths)[:-1])):
        at = ("h", a)
        for link in way.tolist():
            tail, head = ends(link // 2)[:: -1 if link % 2 else 1]
            assert tail == at
            at = head
        assert at == ("h", b)
    if most:
        assert lengths.max() == most


@pytest.mark.parametrize("switches", [8, 64, 256])
def test_ways_on_a_dln_of_a_power_of_two_are_shortest(switches):
    offsets = [1 << k for k in range(switches.bit_length() - 1)]
    away, queue = {0: 0}, deque([0])
    while queue:
        at = queue.popleft()
        for step in (*offsets, *(-o for o in offsets)):
            if (other := (at + step) % switches) not in away:
                away[other] = away[at] + 1
                queue.append(other)
    targets = np.arange(1, switches)
    routes = make_topology("dln", switches, {}).routes(np.zeros_like(targets), targets)
    hops = np.bincount(routes.flow) - 2
    assert hops.tolist() == [away[target] for target in targets.tolist()]


def test_partners_of_halving_doubling_are_one_cable_apart_on_a_dln():
    made, ranks = make_topology("dln", 64, {}), np.arange(64)
    for bit in range(6):
        routes = made.routes(ranks, ranks ^ (1 << bit))
        assert (np.bincount(routes.flow) == 3).all()
        assert np.bincount(routes.link).max() == 1


def test_ports_are_counted():
    assert make_topology("dln", 1024, {}).ports == 1 + 2 * 10 - 1
    assert make_topology("fat_tree", 1024, {"oversubscription": 2}).ports == 32 + 16
    assert make_topology("torus", 64, {"dims": "4x4x4"}).ports == 6
    assert make_topology("dragonfly", 72, {"per_router": 2}).ports == 2 + 3 + 2


@pytest.mark.parametrize("inside", ["nvlink", "pcie"])
def test_devices_of_a_host_do_not_load_the_network(inside):
    settings = {"per_host": 4, "nics": 2, "inside": inside}
    made = make_topology("fat_tree", 64, settings)
    network = make_topology("fat_tree", 32, {}).capacity.size
    near = made.routes(np.array([0, 5]), np.array([3, 6]))
    assert (near.link >= network).all()
    assert np.bincount(near.flow).tolist() == [1 if inside == "nvlink" else 2] * 2
    # devices 2 and 3 of a host have its second card
    far = made.routes(np.array([0, 2]), np.array([60, 60]))
    first = [far.link[far.flow == flow][1] for flow in (0, 1)]
    assert first == [2 * 0, 2 * 1]
    assert made.latency[far.link[far.flow == 0]].sum() == pytest.approx(2.2e-6)


def test_both_directions_share_a_cable_where_they_are_told_to():
    both = np.array([[0, 1], [1, 0]])
    apart = make_topology("star", 2, {}).routes(*both)
    shared = make_topology("star", 2, {"duplex": "shared"}).routes(*both)
    assert np.bincount(apart.link).max() == 1
    assert np.bincount(shared.link).max() == 2


@pytest.mark.parametrize(
    ("name", "devices", "settings", "says"),
    [
        ("fattree", 8, {}, "did you mean fat_tree"),
        ("dln", 8, {"per_swich": 2}, "did you mean per_switch"),
        ("torus", 8, {"dims": "3x3"}, "dims=4x2"),
        ("torus", 8, {"dims": "ax2"}, "not a whole number"),
        ("fat_tree", 8, {"routing": "emcp"}, "did you mean ecmp"),
        ("fat_tree", 8, {"per_leaf": 0}, "per_leaf is at least 1"),
        ("fat_tree", 64, {"oversubscription": 100}, "uplinks is at least 1"),
        ("star", 8, {"bandwidth": "-1GB/s"}, "above 0"),
        ("star", 8, {"bandwidth": "12.5 GB"}, "12.5GB/s or 100gbit"),
        ("star", 8, {"latency": "-1us"}, "between 0 and a minute"),
        ("star", 8, {"latency": "1 parsec"}, "0.5us"),
        ("star", 8, {"duplex": "half"}, "full, shared"),
        ("star", 10, {"per_host": 4}, "per_host=5"),
        ("dragonfly", 100, {"per_router": 1}, "do not fit"),
        ("star", 0, {}, "1 to"),
    ],
)
def test_what_makes_no_network_is_refused(name, devices, settings, says):
    with pytest.raises(BadInput, match=says):
        make_topology(name, devices, settings)
