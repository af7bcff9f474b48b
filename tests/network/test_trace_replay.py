"""Replay of traces: alone a collective takes what its simulation says."""

import numpy as np
import pytest

from jaxdist.collectives.algorithms.registry import SCHEDULES
from jaxdist.core.errors import BadInput
from jaxdist.network.chakra.trace import ExecutionTrace, TraceNode
from jaxdist.network.collective_schedules import collective_schedule
from jaxdist.network.concurrent import schedule_messages, simulate_concurrent
from jaxdist.network.schedules_by_name import schedule_by_name
from jaxdist.network.simulate import NetworkModel, simulate_collective
from jaxdist.network.topologies.registry import make_topology
from jaxdist.network.trace_replay import replay_trace

SIZE = 2**22


def network(name, ranks, **settings):
    return NetworkModel(topology=make_topology(name, ranks, settings))


def compute(number, *waits, us=100):
    return TraceNode(
        id=number, name="work", kind="compute", dependencies=waits, duration_us=us
    )


def collective(number, *waits, kind="all-reduce", size=SIZE, group=""):
    return TraceNode(
        id=number, name=kind, kind="collective", dependencies=waits, collective=kind,
        size=size, group=group,
    )  # fmt: skip


def message(number, kind, peer, *waits, size=SIZE):
    return TraceNode(
        id=number, name="stage", kind=kind, dependencies=waits, size=size, peer=peer
    )


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("topology", ["torus", "fat_tree"])
def test_one_all_reduce_is_its_simulation(name, topology):
    on = network(topology, 16)
    trace = ExecutionTrace(ranks=((compute(0), collective(1, 0)),) * 16)
    found = replay_trace(trace, on, name)
    alone = simulate_collective(schedule_by_name(name, 16), SIZE, on).seconds
    assert found.communication_s == pytest.approx(alone, rel=1e-9)
    assert found.seconds == pytest.approx(100e-6 + alone, rel=1e-9)
    assert found.compute_s == 100e-6
    (one,) = found.collectives
    assert (one.kind, one.ranks, one.size, one.count) == ("all-reduce", 16, SIZE, 1)


def test_groups_at_once_share_links_as_in_their_simulation():
    """Each of 8 groups has a rank on each leaf: 8 flows leave a leaf on 4 uplinks."""
    on, steps = network("fat_tree", 64, oversubscription=2), schedule_by_name("ring", 8)
    across = np.arange(64).reshape(8, 8).T
    groups = {str(1 + k): tuple(own) for k, own in enumerate(across.tolist())}
    trace = ExecutionTrace(
        ranks=tuple((collective(0, group=str(1 + rank % 8)),) for rank in range(64)),
        groups=groups,
    )
    found = replay_trace(trace, on, "ring")
    wanted = simulate_concurrent(
        [schedule_messages(steps, SIZE, g) for g in across], on, "steps"
    )
    assert found.seconds == pytest.approx(wanted.seconds, rel=1e-9)
    (one,) = found.collectives
    assert one.count == 8


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scatter_and_a_gather_are_an_all_reduce(name):
    """Where its schedule has halves; else they are a ring's."""
    on = network("star", 8)
    both = (
        collective(0, kind="reduce-scatter"),
        collective(1, 0, kind="all-gather", size=SIZE // 8),
    )
    found = replay_trace(ExecutionTrace(ranks=(both,) * 8), on, name)
    split = collective_schedule("all-gather", name, 8).name != "all-gather, ring"
    whole = schedule_by_name(name if split else "ring", 8)
    alone = simulate_collective(whole, SIZE, on).seconds
    assert found.seconds == pytest.approx(alone, rel=1e-9)
    trees = ("double_binary_tree", "parameter_server", "recursive_doubling")
    assert split == (name not in ("ring", *trees))


def test_an_all_to_all_sends_each_part_once():
    on = network("star", 8)
    trace = ExecutionTrace(ranks=((collective(0, kind="all-to-all"),),) * 8)
    found = replay_trace(trace, on)
    each = 1e-6 + SIZE / 8 / 12.5e9
    assert found.seconds == pytest.approx(7 * each, rel=1e-9)


def test_a_collective_waits_for_its_last_rank_and_runs_beside_compute():
    on = network("star", 2)
    trace = ExecutionTrace(
        ranks=(
            (compute(0, us=50), collective(1, 0), compute(2, 0, us=9000)),
            (compute(0, us=800), collective(1, 0), compute(2, 0, us=10)),
        )
    )
    found = replay_trace(trace, on)
    alone = simulate_collective(schedule_by_name("ring", 2), SIZE, on).seconds
    assert found.seconds == pytest.approx(9050e-6)
    assert found.compute_s == pytest.approx(9050e-6)
    assert found.communication_s == pytest.approx(alone, rel=1e-9)


def test_messages_go_from_stage_to_stage_and_share_a_link():
    """Of two messages over one link each has half of it."""
    on = network("star", 3)
    one = ExecutionTrace(
        ranks=(
            (compute(0), message(1, "send", 1, 0)),
            (message(0, "receive", 0), compute(1, 0)),
            (compute(0),),
        )
    )
    alone = replay_trace(one, on).seconds
    assert alone == pytest.approx(200e-6 + 1e-6 + SIZE / 12.5e9)
    both = ExecutionTrace(
        ranks=(
            (compute(0), message(1, "send", 1, 0)),
            (message(0, "receive", 0), message(1, "receive", 2), compute(2, 0, 1)),
            (compute(0), message(1, "send", 1, 0)),
        )
    )
    assert replay_trace(both, on).seconds == pytest.approx(alone + SIZE / 12.5e9)


def test_a_rank_computes_one_thing_at_a_time_in_the_order_of_its_trace():
    trace = ExecutionTrace(ranks=((compute(0), compute(1), compute(2, 1)),))
    assert replay_trace(trace, network("star", 1)).seconds == pytest.approx(300e-6)


def test_empty_collectives_and_groups_of_one_rank_are_no_obstacle():
    groups = {"1": (0,), "2": (1,)}
    trace = ExecutionTrace(
        ranks=tuple(
            (collective(0, group=str(1 + rank)), collective(1, 0, size=0))
            for rank in range(2)
        ),
        groups=groups,
    )
    found = replay_trace(trace, network("star", 2))
    assert found.seconds == pytest.approx(2e-6)


def test_ranks_that_do_not_agree_are_refused():
    on = network("star", 2)
    for other, what in (
        (collective(0, size=8), "do not agree"),
        (collective(0, kind="all-to-all"), "do not agree"),
        (compute(0), "lacks ranks"),
        (message(0, "send", 0), "lacks ranks"),
    ):
        with pytest.raises(BadInput, match=what):
            replay_trace(ExecutionTrace(ranks=((collective(0),), (other,))), on)


def test_ranks_that_wait_for_each_other_are_refused():
    groups = {"1": (0, 1), "2": (1, 0)}
    trace = ExecutionTrace(
        ranks=(
            (collective(0, group="1"), collective(1, 0, group="2")),
            (collective(0, 1, group="1"), collective(1, group="2")),
        ),
        groups=groups,
    )
    with pytest.raises(BadInput, match="wait for each other"):
        replay_trace(trace, network("star", 2))


def test_a_trace_of_more_ranks_than_devices_is_refused():
    trace = ExecutionTrace(ranks=((collective(0),),) * 4)
    with pytest.raises(BadInput, match="do not fit"):
        replay_trace(trace, network("star", 2))
