"""Synchronous schedules: tables that can be run, as long as their closed form says."""

import functools
from collections import Counter

import pytest

from jaxdist.pipeline.sync_schedule import forward_only, make_sync_schedule

pytestmark = pytest.mark.laws

NUMBERS = [(s, m) for s in range(1, 9) for m in (1, 2, 3, 4, 7, 8, 12, 16, 21)]


@functools.cache
def tables():
    return (
        *(
            make_sync_schedule(name, s, m)
            for name in ("gpipe", "1f1b")
            for s, m in NUMBERS
        ),
        *(make_sync_schedule("zb-h1", s, m) for s, m in NUMBERS if m >= s),
        *(
            make_sync_schedule("interleaved", s, s * rounds, v)
            for s in range(1, 7)
            for rounds in (1, 2, 3)
            for v in (2, 3, 4)
        ),
        *(make_sync_schedule("eager-1f1b", s, m) for s, m in NUMBERS),
        *(
            make_sync_schedule("eager-1f1b", s, s * rounds, v)
            for s in range(1, 7)
            for rounds in (1, 2, 3)
            for v in (2, 3, 4)
        ),
    )


@functools.cache
def evaluations():
    return tuple(forward_only(s, m, v) for s, m in NUMBERS for v in (1, 2, 3))


def cells(table):
    """(kind, stage, microbatch), device and tick of each work."""
    return [
        ((work.kind, work.stage, work.microbatch), device, tick)
        for tick, row in enumerate(table.ticks)
        for device, work in enumerate(row)
        if work
    ]


def length(table):
    """The ticks of the publications' closed forms; every work takes one."""
    s, m, v = table.devices, table.microbatches, table.chunks
    return {
        "gpipe": 2 * (m + s - 1),
        "1f1b": 2 * (m + s - 1),
        "interleaved": 2 * (v * m + s - 1),
        "eager-1f1b": 2 * (v * m + s - 1),
        "zb-h1": 3 * m + s - 1,
    }[table.name]


def in_flight(table, device):
    """The microbatches of a device that have gone forward and not backward."""
    s, m, v = table.devices, table.microbatches, table.chunks
    return {
        "gpipe": m,
        "1f1b": min(s - device, m),
        "interleaved": min(v * s - device, v * m),
        "eager-1f1b": min((v + 1) * s - 1 - 2 * device, v * m),
        "zb-h1": min(s - device, m),
    }[table.name]


def kinds_of(table):
    if table.name == "forward":
        return {"forward"}
    return {"forward", "backward"} | ({"weights"} if table.name == "zb-h1" else set())


def test_each_work_is_done_once_and_where_its_stage_lies():
    for table in (*tables(), *evaluations()):
        done = Counter(work for work, _, _ in cells(table))
        every = {
            (kind, stage, micro)
            for kind in kinds_of(table)
            for stage in range(table.devices * table.chunks)
            for micro in range(table.microbatches)
        }
        assert done == Counter(every)
        assert all(len(row) == table.devices for row in table.ticks)
        assert all(device == w[1] % table.devices for w, device, _ in cells(table))


def beat_of(table):
    """Return the beat of each tick."""
    return [b for b, ticks in enumerate(table.supersteps) for _ in ticks]


def test_nothing_is_used_before_it_is_made_and_handed_on():
    for table in (*tables(), *evaluations()):
        at = {work: tick for work, _, tick in cells(table)}
        last, beat = table.stages - 1, beat_of(table)
        for (kind, stage, micro), tick in at.items():
            if kind == "forward" and stage > 0:
                assert beat[at["forward", stage - 1, micro]] < beat[tick]
            if kind == "backward":
                assert at["forward", stage, micro] < tick
            if kind == "backward" and stage < last:
                assert beat[at["backward", stage + 1, micro]] < beat[tick]
            if kind == "weights":
                assert at["backward", stage, micro] < tick


def test_a_device_goes_forward_and_backward_once_in_a_beat_at_most():
    for table in (*tables(), *evaluations()):
        for beat in table.supersteps:
            for works in zip(*beat, strict=True):
                kinds = [work.kind for work in works if work]
                assert len(kinds) == len(set(kinds)) <= 2


def test_eager_1f1b_has_a_tick_of_one_kind_and_hands_on_half_as_often():
    """So that neighbours never wait for a backward pass with a forward pass."""
    for table in tables():
        s, m, v = table.devices, table.microbatches, table.chunks
        if table.name != "eager-1f1b":
            assert table.exchanges == table.length
            continue
        assert all(len({w.kind for w in row if w}) == 1 for row in table.ticks)
        assert table.exchanges == v * m + v * s + s - 2


def test_ticks_are_those_of_the_closed_form():
    for table in tables():
        s, m, v = table.devices, table.microbatches, table.chunks
        assert table.length == length(table), (table.name, s, m, v)
        works = len(kinds_of(table)) * v * m
        assert table.bubble_fraction == pytest.approx(1 - works / length(table))


def test_an_evaluation_takes_one_tick_a_microbatch_and_the_filling():
    for table in evaluations():
        s, m, v = table.devices, table.microbatches, table.chunks
        if v == 1 or m % s == 0:
            assert table.length == v * m + s - 1


def test_in_flight_is_the_closed_form_exactly():
    for table in tables():
        for device in range(table.devices):
            assert table.in_flight(device) == in_flight(table, device)


def test_inputs_are_held_for_the_gradient_of_weights_no_more_than_in_1f1b():
    for table in tables():
        most = max(in_flight(table, d) for d in range(table.devices))
        for device in range(table.devices):
            held = table.live_inputs(device)
            if table.name == "zb-h1":
                assert table.in_flight(device) <= held <= most
            else:
                assert held == table.in_flight(device)


def test_no_message_of_gpipe_and_1f1b_waits():
    """What arrives is used in that tick, so a device needs no store for messages."""
    for table in tables():
        if table.name not in ("gpipe", "1f1b"):
            continue
        at = {work: tick for work, _, tick in cells(table)}
        for (kind, stage, micro), tick in at.items():
            if kind == "forward" and stage < table.stages - 1:
                assert at["forward", stage + 1, micro] == tick + 1
            if kind == "backward" and stage > 0:
                assert at["backward", stage - 1, micro] == tick + 1


def test_1f1b_is_its_formula():
    """Forward m on device s in tick s + 2m, its backward in tick 2S - 1 - s + 2m."""
    for table in tables():
        if table.name == "1f1b":
            s = table.devices
            for (kind, stage, micro), _, tick in cells(table):
                first = stage if kind == "forward" else 2 * s - 1 - stage
                assert tick == first + 2 * micro
