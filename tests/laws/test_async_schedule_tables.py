"""PipeDream's tables: the versions of the publications, and no more of anything held."""

import bisect
import functools
import math
import random
from collections import Counter

import pytest

from jaxdist.pipeline.pipedream_schedule import pipedream, pipedream_2bw
from jaxdist.pipeline.sync_schedule import make_sync_schedule

pytestmark = pytest.mark.laws

LAYOUTS = [
    ((1,), 24),
    ((1, 1, 1, 1), 24),
    ((2, 1, 1), 24),
    ((3, 2, 1), 24),
    ((7, 1), 28),
    ((9, 5, 1, 1), 45),
    ((2, 2, 2), 24),
    ((1, 2, 3), 24),
    ((4, 2, 1), 24),
    ((5, 1, 2), 30),
]
GROUPS = [(s, g) for s in range(1, 7) for g in (s, s + 1, 2 * s)]


@functools.cache
def streams(**options):
    return tuple(pipedream(*layout, **options) for layout in LAYOUTS)


@functools.cache
def grouped():
    return tuple(pipedream_2bw(s, 5 * g, g) for s, g in GROUPS)


def everything():
    asked = ({}, {"stashing": False}, {"vertical_sync": True})
    return (*(s for options in asked for s in streams(**options)), *grouped())


def held(replicas, stage):
    """NOAM of the stages from this one on: ceil(devices / devices of the first)."""
    return math.ceil(sum(replicas[stage:]) / replicas[stage])


def cells(stream):
    return {
        (work.kind, work.stage, work.microbatch): (tick, device)
        for tick, row in enumerate(stream.ticks)
        for device, work in enumerate(row)
        if work
    }


def counter(stream):
    """Count the rounds of a stage whose last backward was done before a tick."""
    at, ends = cells(stream), Counter()
    for stage, micro in numbers(stream):
        key = stage, micro // stream.update_microbatches[stage]
        ends[key] = max(ends[key], at["backward", stage, micro][0])
    of = [
        sorted(e for (s, _), e in ends.items() if s == stage)
        for stage in stages(stream)
    ]
    return lambda stage, tick: bisect.bisect_left(of[stage], tick)


def stages(stream):
    return range(len(stream.replicas))


def numbers(stream):
    return ((s, m) for s in stages(stream) for m in range(stream.microbatches))


def test_each_work_is_done_once_by_its_replica_and_after_what_it_needs():
    for stream in (*streams(), *grouped()):
        at = cells(stream)
        works = [work for row in stream.ticks for work in row if work]
        assert len(at) == len(works) == 2 * stream.stages * stream.microbatches
        for (kind, stage, micro), (tick, device) in at.items():
            first = sum(stream.replicas[:stage])
            assert device == first + micro % stream.replicas[stage]
            if kind == "forward" and stage > 0:
                assert at["forward", stage - 1, micro][0] < tick
            if kind == "backward":
                assert at["forward", stage, micro][0] < tick
            if kind == "backward" and stage < stream.stages - 1:
                assert at["backward", stage + 1, micro][0] < tick


def test_a_device_holds_as_many_microbatches_as_the_formula_has():
    for stream in everything():
        for device in range(stream.devices):
            most = held(stream.replicas, stream.stage_of(device))
            assert stream.in_flight(device) == most


def test_an_update_is_applied_when_the_last_gradient_of_its_round_is_there():
    for stream in (*streams(), *grouped()):
        updates_before = counter(stream)
        for stage, applied in enumerate(stream.update_ticks):
            assert (
                len(applied) == stream.microbatches // stream.update_microbatches[stage]
            )
            for round_, tick in enumerate(applied):
                assert updates_before(stage, tick) == round_
                assert updates_before(stage, tick + 1) == round_ + 1


def test_with_one_replica_a_stage_versions_are_those_of_the_publication():
    """w(t+1) = w(t) - rate g(w_1(t-S+1), ..., w_S(t)), stages there counted from 1."""
    stream = pipedream((1, 1, 1, 1), 24)
    for stage, micro in numbers(stream):
        assert stream.forward_versions[stage][micro] == max(0, micro - (3 - stage))


def test_a_forward_takes_the_newest_weights_there_are():
    for stashing in (True, False):
        for stream in streams(stashing=stashing):
            at, updates_before = cells(stream), counter(stream)
            for stage, micro in numbers(stream):
                tick, _ = at["forward", stage, micro]
                newest = updates_before(stage, tick)
                assert stream.forward_versions[stage][micro] == newest


def test_versions_do_not_depend_on_how_long_anything_takes():
    """Replicas as the authors' program runs them, works and messages of any length."""
    for stream in streams():
        for seed in range(3):
            found = versions_of_programs(stream.replicas, stream.microbatches, seed)
            assert found == {
                (stage, micro): stream.forward_versions[stage][micro]
                for stage, micro in numbers(stream)
            }


def versions_of_programs(replicas, micros, seed):
    """Run each device's program in continuous time; return what its forwards find."""
    draw = random.Random(seed)
    stages, done, free, found = len(replicas), {}, {}, {}
    programs = {}
    for stage, count in enumerate(replicas):
        ahead = (sum(replicas[stage:]) - 1) // count
        for replica in range(count):
            mine = list(range(replica, micros, count))
            steps = [("f", m) for m in mine[:ahead]]
            for index, micro in enumerate(mine):
                steps += [("f", m) for m in mine[ahead + index : ahead + index + 1]]
                steps += [("b", micro)]
            programs[stage, replica] = steps
            free[stage, replica] = 0.0
    summed = [[] for _ in replicas]

    def inputs(stage, kind, micro):
        near = stage - 1 if kind == "f" else stage + 1
        return [(near, kind, micro)] if 0 <= near < stages else []

    while any(programs.values()):
        for (stage, replica), steps in programs.items():
            while steps and all(x in done for x in inputs(stage, *steps[0])):
                kind, micro = steps[0]
                if free[stage, replica] is None:
                    break  # waits for the sum over its round
                needed = [done[x] + draw.random() for x in inputs(stage, kind, micro)]
                start = max([free[stage, replica], *needed])
                end = start + 0.1 + draw.random()
                if kind == "f":
                    found[stage, micro] = sum(t <= start for t in summed[stage])
                    free[stage, replica] = end
                else:
                    free[stage, replica] = None
                done[stage, kind, micro] = end
                steps.pop(0)
        for stage, count in enumerate(replicas):
            first = len(summed[stage]) * count
            round_ = [(stage, "b", m) for m in range(first, first + count)]
            if all(x in done for x in round_) and first < micros:
                summed[stage].append(max(done[x] for x in round_) + draw.random())
                for replica in range(count):
                    free[stage, replica] = summed[stage][-1]
    return found


def test_staleness_is_the_formula():
    for stream in streams():
        for stage, micro in numbers(stream):
            round_ = micro // stream.replicas[stage]
            late = min(round_, held(stream.replicas, stage) - 1)
            assert stream.staleness(stage, micro) == late


def test_a_backward_takes_the_weights_of_its_forward_or_without_stashing_the_newest():
    for stream in (*streams(), *streams(vertical_sync=True), *grouped()):
        assert stream.backward_versions == stream.forward_versions
    for stream in streams(stashing=False):
        at, updates_before = cells(stream), counter(stream)
        for stage, micro in numbers(stream):
            tick, _ = at["backward", stage, micro]
            newest = updates_before(stage, tick)
            assert stream.backward_versions[stage][micro] == newest


def test_in_sync_all_stages_have_seen_the_microbatches_that_the_first_had():
    for stream in streams(vertical_sync=True):
        first = stream.forward_versions[0]
        for stage, micro in numbers(stream):
            seen = first[micro] * stream.replicas[0]
            own = stream.forward_versions[stage][micro] * stream.replicas[stage]
            assert seen - stream.replicas[stage] < own <= seen
    stream = pipedream((1, 1, 1, 1), 24, vertical_sync=True)
    for stage, micro in numbers(stream):
        assert stream.forward_versions[stage][micro] == max(0, micro - 3)


def test_with_two_versions_every_gradient_is_one_update_old():
    """W(t+1) = W(t) - rate g(W(t-1)), microbatches of group t."""
    for stream in grouped():
        for stage, micro in numbers(stream):
            group = micro // stream.update_microbatches[stage]
            assert stream.forward_versions[stage][micro] == max(0, group - 1)
            assert stream.staleness(stage, micro) == min(1, group)


def test_nothing_is_taken_before_it_is_there():
    for stream in everything():
        at, updates_before = cells(stream), counter(stream)
        for stage, micro in numbers(stream):
            for kind, versions in (
                ("forward", stream.forward_versions),
                ("backward", stream.backward_versions),
            ):
                tick, _ = at[kind, stage, micro]
                assert versions[stage][micro] <= updates_before(stage, tick)


def test_versions_held_are_the_formula():
    for stream in streams():
        for stage in stages(stream):
            assert stream.live_versions(stage) == held(stream.replicas, stage)
    for stream in streams(stashing=False):
        assert {stream.live_versions(s) for s in stages(stream)} == {1}
    for stream in streams(vertical_sync=True):
        first = stream.replicas[0]
        window = held(stream.replicas, 0) * first
        for stage, count in enumerate(stream.replicas):
            most = 1 + math.ceil((window - math.gcd(first, count)) / count)
            assert stream.live_versions(stage) == most
    for stream in grouped():
        assert {stream.live_versions(s) for s in stages(stream)} == {2}


def test_versions_held_are_those_between_the_oldest_and_the_newest_that_is_needed():
    for stream in everything():
        at, updates_before = cells(stream), counter(stream)
        for stage in stages(stream):
            uses = [
                (at[kind, stage, micro][0], versions[stage][micro])
                for kind, versions in (
                    ("forward", stream.forward_versions),
                    ("backward", stream.backward_versions),
                )
                for micro in range(stream.microbatches)
            ]
            most = 1
            for tick in range(stream.length):
                newest = updates_before(stage, tick)
                needed = [v for t, v in uses if t >= tick]
                most = max(most, newest - min([newest, *needed]) + 1)
            assert stream.live_versions(stage) == most


def test_one_replica_a_stage_takes_the_ticks_of_1f1b():
    for stages in range(1, 7):
        want = make_sync_schedule("1f1b", stages, 24).ticks
        assert pipedream((1,) * stages, 24).ticks == want
        assert pipedream_2bw(stages, 24, 12).ticks == want


def test_waiting_for_rounds_does_not_slow_the_slowest_stage():
    """In the middle a microbatch takes 2 ticks of the stage with fewest replicas."""
    for (replicas, micros), short in zip(LAYOUTS, streams(), strict=True):
        more = pipedream(replicas, 2 * micros).length - short.length
        assert more == 2 * micros // min(replicas)
