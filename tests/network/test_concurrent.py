"""Collectives at once: alone they take what they take alone, together they share."""

import numpy as np
import pytest

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.core.errors import BadInput
from jaxdist.network.concurrent import (
    halo_messages,
    schedule_messages,
    simulate_concurrent,
)
from jaxdist.network.contention_search import minimize_contention
from jaxdist.network.placement import parse_placement
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.topologies.registry import make_topology

SIZE = 2.0**24


def network(name, ranks, sharing="rtt", **settings):
    return NetworkModel(topology=make_topology(name, ranks, settings), sharing=sharing)


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_alone_step_by_step_is_the_simulation(name):
    on, steps = network("torus", 16), schedule_by_name(name, 16)
    found = simulate_concurrent(
        [schedule_messages(steps, SIZE, np.arange(16))], on, "steps"
    )
    alone = simulate_collective(steps, SIZE, on)
    assert found.seconds == pytest.approx(alone.seconds, rel=1e-9)


def test_groups_that_share_nothing_take_as_long_as_one():
    on, steps = network("star", 32), schedule_by_name("ring", 8)
    groups = np.arange(32).reshape(4, 8)
    found = simulate_concurrent([schedule_messages(steps, SIZE, g) for g in groups], on)
    form = 14 * (1e-6 + SIZE / 8 / 12.5e9)
    np.testing.assert_allclose(found.each, form, rtol=1e-9)


def test_groups_that_lie_across_share_trunks():
    """Each of 8 groups has a rank on each leaf: 8 flows leave a leaf on 4 uplinks."""
    on, steps = network("fat_tree", 64, oversubscription=2), schedule_by_name("ring", 8)
    across = np.arange(64).reshape(8, 8).T
    inside = np.arange(64).reshape(8, 8)
    far = simulate_concurrent(
        [schedule_messages(steps, SIZE, g) for g in across], on, "steps"
    )
    near = simulate_concurrent(
        [schedule_messages(steps, SIZE, g) for g in inside], on, "steps"
    )
    assert far.phi == 2
    assert near.phi == 1
    late = 14 * (2e-6 + 2 * SIZE / 8 / 12.5e9)
    assert far.seconds == pytest.approx(late, rel=1e-9)


def test_halos_beside_a_sum_take_part_of_its_links():
    on, steps = network("star", 8), schedule_by_name("ring", 8)
    ring, beside = (
        schedule_messages(steps, SIZE, np.arange(8)),
        halo_messages(np.arange(8), SIZE / 8),
    )
    alone = simulate_concurrent([ring], on).seconds
    both = simulate_concurrent([ring, beside], on)
    # Until the halos are through, three messages leave and reach a device in the middle.
    assert alone < both.each[0] <= alone + 2 * SIZE / 8 / 12.5e9 * 1.001
    assert both.each[1] < both.each[0]


def test_a_rank_that_is_done_early_goes_on():
    """Chain 0 to 1 to 2 beside a slow message from 3 to 4: ranks do not wait for it."""
    from jaxdist.collectives.algorithms.schedule import (
        CollectiveSchedule,
        ScheduleStep,
        Transfer,
    )

    steps = CollectiveSchedule(
        name="chain",
        ranks=5,
        chunks=10,
        steps=(
            ScheduleStep((Transfer(0, 1, 0, 1, False), Transfer(3, 4, 0, 10, False))),
            ScheduleStep((Transfer(1, 2, 0, 1, False),)),
        ),
    )
    on, own = network("star", 5, latency=0, sharing="maxmin"), None
    own = schedule_messages(steps, 12.5e9, np.arange(5))
    assert simulate_concurrent([own], on, "ranks").seconds == pytest.approx(1.0)
    assert simulate_concurrent([own], on, "steps").seconds == pytest.approx(1.1)


def test_work_on_what_arrived_holds_up_the_next_step():
    on, steps = network("star", 4), schedule_by_name("ring", 4)
    plain = simulate_concurrent([schedule_messages(steps, SIZE, np.arange(4))], on)
    worked = simulate_concurrent(
        [schedule_messages(steps, SIZE, np.arange(4), 1e-10)], on
    )
    # three additions of a quarter
    assert worked.seconds - plain.seconds == pytest.approx(3 * SIZE / 4 * 1e-10)


def test_work_on_several_messages_is_done_one_after_another():
    on, steps = network("star", 4), schedule_by_name("parameter_server", 4)
    plain = simulate_collective(steps, SIZE, on).seconds
    worked = simulate_concurrent(
        [schedule_messages(steps, SIZE, np.arange(4), 1e-10)], on
    )
    # the server adds three whole arrays, which arrive together
    assert worked.seconds - plain == pytest.approx(3 * SIZE * 1e-10)


def test_a_pace_that_is_none_is_refused():
    with pytest.raises(BadInput, match="did you mean ranks"):
        simulate_concurrent([], network("star", 2), "rank")


@pytest.mark.parametrize("place", ["in_order", "dealt", "reversed-bits", "random:3"])
@pytest.mark.parametrize("ranks", [1, 12, 64])
def test_every_placement_is_one_to_one(place, ranks):
    devices = parse_placement(place, ranks, make_topology("star", ranks, {}))
    assert sorted(devices.tolist()) == list(range(ranks))


def test_a_placement_that_is_none_is_refused():
    with pytest.raises(BadInput, match="did you mean dealt"):
        parse_placement("deelt", 4, make_topology("star", 4, {}))


def test_a_way_without_contention_is_found_within_two_per_cent_of_the_bound():
    on = network("dln", 64, sharing="maxmin", per_switch=4)
    textbook = simulate_collective(
        schedule_by_name("halving_doubling_far", 64), 2.0**26, on
    )
    best = minimize_contention(64, 2.0**26, on)[0]
    bound = 2 * 63 / 64 * 2.0**26 / 12.5e9
    assert textbook.seconds > 3.5 * bound
    assert best.simulation.seconds < 1.02 * bound


def test_swaps_never_make_it_worse():
    on = network("torus", 16, dims="4x4")
    plain, swapped = (
        minimize_contention(16, SIZE, on)[0],
        minimize_contention(16, SIZE, on, swaps=20)[0],
    )
    assert swapped.simulation.seconds <= plain.simulation.seconds
    again = simulate_collective(swapped.schedule, SIZE, on, swapped.devices)
    assert again.seconds == swapped.simulation.seconds
