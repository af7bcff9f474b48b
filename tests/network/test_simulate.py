"""Simulated times are the closed forms where nothing is shared, and φ times them else."""

import numpy as np
import pytest

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.core.errors import BadInput
from jaxdist.network.contention import contention_graph
from jaxdist.network.protocol_overheads import protocol_overheads
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.topologies.registry import make_topology

MIB64, RATE, LATE = 2.0**26, 12.5e9, 5e-7


def on(name, ranks, algorithm, sharing="maxmin", place=None, size=MIB64, **settings):
    network = NetworkModel(
        topology=make_topology(name, ranks, settings), sharing=sharing
    )
    return simulate_collective(schedule_by_name(algorithm, ranks), size, network, place)


def halving(ranks, hops):
    bits = ranks.bit_length() - 1
    return 2 * bits * hops * LATE + 2 * (ranks - 1) / ranks * MIB64 / RATE


@pytest.mark.parametrize("ranks", [2, 5, 16, 100])
def test_a_ring_on_a_star_is_its_closed_form(ranks):
    found = on("star", ranks, "ring")
    form = 2 * (ranks - 1) * (2 * LATE + MIB64 / ranks / RATE)
    assert found.seconds == pytest.approx(form, rel=1e-12)
    assert found.phi_max == 1


@pytest.mark.parametrize("sharing", ["maxmin", "rtt"])
@pytest.mark.parametrize(
    ("algorithm", "network", "hops"),
    [
        ("halving_doubling", "star", 2),
        ("halving_doubling_far", "star", 2),
        ("swing", "star", 2),
        ("halving_doubling_far", "dln", 3),
        ("halving_doubling", "dln", 3),
    ],
)
def test_halving_doubling_is_its_closed_form_where_nothing_is_shared(
    algorithm, network, hops, sharing
):
    found = on(network, 64, algorithm, sharing)
    assert found.seconds == pytest.approx(halving(64, hops), rel=1e-12)
    assert found.phi_max == 1
    assert len(found.steps) == 12


def test_recursive_doubling_and_server_are_their_closed_forms_on_a_star():
    found = on("star", 16, "recursive_doubling")
    assert found.seconds == pytest.approx(4 * (2 * LATE + MIB64 / RATE), rel=1e-12)
    served = on("star", 16, "parameter_server")
    form = 2 * (2 * LATE + 15 * MIB64 / RATE)
    assert served.seconds == pytest.approx(form, rel=1e-12)
    assert served.phi_max == 15


# ms, to the digits of the table of design: 64 MiB, 12.5 GB/s and 0.5 us a link.
TABLE = [
    ("ring", 64, "fat_tree", {"oversubscription": 2}, 10.8216, 10.8216),
    ("halving_doubling_far", 64, "fat_tree", {"oversubscription": 2}, 19.9829, 19.9829),
    ("halving_doubling_far", 64, "fat_tree", {}, 10.588, 10.588),
    ("halving_doubling", 64, "fat_tree", {"oversubscription": 2}, 11.762, 11.762),
    (
        "striped_halving_doubling",
        64,
        "fat_tree",
        {"oversubscription": 2},
        10.594,
        13.2301,
    ),
    ("halving_doubling_far", 64, "torus", {}, 31.723, 31.723),
    ("halving_doubling", 64, "torus", {}, 18.133, 18.133),
    ("ring", 64, "torus", {}, 10.696, 10.696),
    ("recursive_doubling", 64, "torus", {}, 75.169, 75.169),
    ("striped_halving_doubling", 256, "dln", {"per_switch": 4}, 10.71, 10.71),
    ("halving_doubling_far", 256, "dln", {"per_switch": 4}, 42.43, 42.43),
]


@pytest.mark.parametrize(
    ("algorithm", "ranks", "name", "settings", "equal", "rtt"), TABLE
)
def test_times_are_those_of_the_reference(algorithm, ranks, name, settings, equal, rtt):
    for sharing, expected in (("maxmin", equal), ("rtt", rtt)):
        found = on(name, ranks, algorithm, sharing, **settings)
        assert 1e3 * found.seconds == pytest.approx(expected, rel=5e-4)


def test_the_most_messages_on_a_link_are_counted():
    assert on("fat_tree", 64, "halving_doubling_far", oversubscription=2).phi_max == 2
    assert on("torus", 64, "halving_doubling_far").phi_max == 4
    assert on("dln", 64, "halving_doubling_far", per_switch=4).phi_max == 4


def test_the_largest_clique_of_a_link_is_phi():
    made, ranks = make_topology("torus", 16, {"dims": "16"}), np.arange(16)
    routes = made.routes(ranks, ranks ^ 4)
    edges = contention_graph(routes, made.capacity.size)
    on_one = routes.flow[routes.link == np.bincount(routes.link).argmax()]
    assert len(on_one) == 4
    assert all((a, b) in edges for a in on_one for b in on_one if a < b)


def test_a_placement_decides_who_meets():
    tree = {"oversubscription": 2}
    straight = on("fat_tree", 64, "halving_doubling", **tree)
    dealt = np.arange(64).reshape(8, 8).T.reshape(-1)
    far = on("fat_tree", 64, "halving_doubling", place=dealt, **tree)
    assert far.phi_max == straight.phi_max == 2
    assert far.seconds > 1.5 * straight.seconds


@pytest.mark.parametrize(
    "place", [np.zeros(8, int), np.arange(1, 9), np.arange(7), np.arange(8) - 1]
)
def test_a_placement_is_one_to_one(place):
    with pytest.raises(BadInput, match="placement"):
        on("star", 8, "ring", place=place)


def test_ranks_that_do_not_fit_are_refused():
    network = NetworkModel(topology=make_topology("star", 8, {}))
    with pytest.raises(BadInput, match="at most 8 ranks"):
        simulate_collective(schedule_by_name("ring", 9), 1.0, network)


def test_a_list_of_ones_own_is_replayed_like_one_of_the_registry():
    """Tuples of transfers and columns are the same messages."""
    network = NetworkModel(topology=make_topology("torus", 16, {}), sharing="rtt")
    for name in SCHEDULES:
        steps = schedule_by_name(name, 16)
        plain = [type(s)(tuple(s.transfers)) for s in steps.steps]
        copy = type(steps)(
            name="own", ranks=16, chunks=steps.chunks, steps=tuple(plain)
        )
        ours, theirs = (
            simulate_collective(steps, MIB64, network),
            simulate_collective(copy, MIB64, network),
        )
        assert ours.seconds == pytest.approx(theirs.seconds, rel=1e-12)


def test_smpi_gives_two_opposite_flows_of_a_shared_cable_its_share():
    star = make_topology("star", 2, {"duplex": "shared", "latency": 0})
    network = NetworkModel(
        topology=star, overheads=protocol_overheads("smpi"), sharing="rtt"
    )
    found = simulate_collective(
        schedule_by_name("recursive_doubling", 2), 2.0**26, network
    )
    rate = 12.5e9 * 0.97 / 2.1
    assert 2.0**26 / found.seconds == pytest.approx(rate, rel=1e-9)


def test_rtt_needs_a_latency():
    network = NetworkModel(
        topology=make_topology("star", 4, {"latency": 0}), sharing="rtt"
    )
    with pytest.raises(BadInput, match="--bandwidth-sharing maxmin"):
        simulate_collective(schedule_by_name("ring", 4), 1.0, network)
