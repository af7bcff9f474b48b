"""Rows of rings: no array is written over before its last use, and none is to spare."""

import pytest

from jaxdist.pipeline.schedule import forward_only, schedule
from jaxdist.pipeline.tables import NOTHING, tables

CASES = [
    ("gpipe", 3, 5, 1),
    ("1f1b", 4, 8, 1),
    ("1f1b", 2, 1, 1),
    ("interleaved", 2, 6, 3),
    ("interleaved", 4, 8, 2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_a_work_reads_is_what_was_written_for_it(case):
    name, devices, micro, chunks = case
    order = schedule(name, devices, micro, chunks)
    found = tables(order.ticks, order.stages, devices)
    inputs, gradients, kept = ({} for _ in range(3))
    up, down = {}, {}
    for tick, row in enumerate(order.ticks):
        for device in range(devices):
            for column, ring, sent in (
                (found.comes, inputs, up),
                (found.returns, gradients, down),
            ):
                at = column[tick, device]
                if at != NOTHING:
                    ring[device, at] = sent[device]
        up, down = {}, {}
        for device, work in enumerate(row):
            if work is None:
                assert found.work[tick, device] == NOTHING
                continue
            key = work.stage, work.micro
            if work.stage:
                assert inputs[device, found.input[tick, device]] == key
            slot = device, found.kept[tick, device]
            if work.kind == "forward":
                kept[slot] = key
                up[(device + 1) % devices] = work.stage + 1, work.micro
                continue
            assert kept[slot] == key
            if work.stage < order.stages - 1:
                assert gradients[device, found.gradient[tick, device]] == key
            down[(device - 1) % devices] = work.stage - 1, work.micro


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_stash_has_as_many_rows_as_are_in_flight(case):
    name, devices, micro, chunks = case
    order = schedule(name, devices, micro, chunks)
    found = tables(order.ticks, order.stages, devices)
    assert found.rows[2] == max(order.in_flight(device) for device in range(devices))


def test_an_evaluation_keeps_nothing():
    order = forward_only(4, 8)
    found = tables(order.ticks, 4, 4)
    assert found.rows == (1, 0, 0)
    assert (found.gradient == NOTHING).all()
