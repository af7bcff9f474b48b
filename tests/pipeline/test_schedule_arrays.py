"""Rows of rings: no array is written over before its last use, and none is to spare."""

import pytest

from jaxdist.pipeline.pipedream_schedule import pipedream
from jaxdist.pipeline.plan_schedule import replicated_placement, round_robin_placement
from jaxdist.pipeline.schedule_arrays import NO_ENTRY, WORK_KINDS, schedule_arrays
from jaxdist.pipeline.sync_schedule import forward_only, make_sync_schedule

ROUND = [
    ("gpipe", 3, 5, 1),
    ("1f1b", 4, 8, 1),
    ("1f1b", 2, 1, 1),
    ("interleaved", 2, 6, 3),
    ("interleaved", 4, 8, 2),
    ("eager-1f1b", 4, 8, 1),
    ("eager-1f1b", 3, 2, 1),
    ("eager-1f1b", 2, 6, 3),
    ("zb-h1", 4, 8, 1),
    ("zb-h1", 3, 3, 1),
]
SIDE = [((1, 1, 1), 6), ((2, 1, 1), 8), ((3, 2, 1), 12), ((1, 2), 6), ((7, 1), 14)]


def orders():
    for name, devices, micro, chunks in ROUND:
        order = make_sync_schedule(name, devices, micro, chunks)
        yield order, round_robin_placement(order.stages, devices)
    for replicas, micro in SIDE:
        yield pipedream(replicas, micro), replicated_placement(replicas)


def works(rows):
    """Yield the works of a beat in their order, with their devices."""
    for row in rows:
        for device, work in enumerate(row):
            if work is not None:
                yield device, work


CASES = [pytest.param(*case, id=case[0].title) for case in orders()]


@pytest.mark.parametrize(("order", "places"), CASES)
def test_what_a_work_reads_is_what_was_written_for_it(order, places):
    found = schedule_arrays(order.supersteps, places)
    inputs, gradients, kept, late = ({} for _ in range(4))
    up, down = {}, {}
    for beat, rows in enumerate(order.supersteps):
        for hop, pairs in enumerate(found.hops):
            for sender, to in pairs:
                if (at := found.comes[beat, to, hop]) != NO_ENTRY:
                    inputs[to, at] = up[sender]
                if (at := found.returns[beat, sender, hop]) != NO_ENTRY:
                    gradients[sender, at] = down[to]
        up, down = {}, {}
        for device, work in works(rows):
            at = beat, device, WORK_KINDS.index(work.kind)
            key = work.stage, work.microbatch
            assert (found.stage[at], found.micro[at]) == key
            if work.stage:
                assert inputs[device, found.input[at]] == key
            slot = device, found.kept[at]
            if work.kind == "forward":
                kept[slot] = key
                up[device] = work.stage + 1, work.microbatch
                continue
            assert kept[slot] == key
            if work.stage < order.stages - 1:
                assert gradients[device, found.gradient[at]] == key
            if found.weight_kept is not None:
                slot = device, found.weight_kept[at]
                if work.kind == "weights":
                    assert late[slot] == key
                    continue
                late[slot] = key
            down[device] = work.stage - 1, work.microbatch


@pytest.mark.parametrize(("order", "places"), CASES)
def test_there_are_as_many_works_as_in_the_schedule(order, places):
    found = schedule_arrays(order.supersteps, places)
    assert (found.stage != NO_ENTRY).sum() == sum(
        1 for beat in order.supersteps for _ in works(beat)
    )


@pytest.mark.parametrize(("order", "places"), CASES)
def test_the_stash_has_as_many_rows_as_are_in_flight(order, places):
    found = schedule_arrays(order.supersteps, places)
    assert found.rows[2] == max(map(order.live_inputs, range(places.devices)))


@pytest.mark.parametrize(("order", "places"), CASES)
def test_weight_residuals_have_rows_where_weights_have_ticks_of_their_own(
    order, places
):
    found = schedule_arrays(order.supersteps, places)
    want = max(map(order.pending_weights, range(places.devices)))
    assert found.rows[3] == want
    assert (found.weight_kept is None) == (want == 0)
    assert found.kinds == ("forward", "backward", "weights")[: 2 + (want > 0)]


@pytest.mark.parametrize(("order", "places"), CASES)
def test_hops_are_permutations(order, places):
    for pairs in schedule_arrays(order.supersteps, places).hops:
        senders, takers = zip(*pairs, strict=True)
        assert len(set(senders)) == len(set(takers)) == len(pairs)


def test_an_evaluation_keeps_nothing():
    order = forward_only(4, 8)
    found = schedule_arrays(order.supersteps, round_robin_placement(4, 4))
    assert found.rows == (1, 0, 0, 0)
    assert (found.gradient == NO_ENTRY).all()
