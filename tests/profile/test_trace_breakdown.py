"""Spans of a profiler dealt out to terms: each moment once, and all of it."""

import pytest

from jaxdist.core.step_breakdown import LayerTime, StepBreakdown
from jaxdist.profile.trace_breakdown import (
    InstructionLabel,
    TraceSpan,
    device_breakdowns,
)

PARTS = {
    "conv": InstructionLabel(term="compute", layer="a"),
    "back": InstructionLabel(term="compute", layer="a", is_backward=True),
    "sum": InstructionLabel(term="all-reduce, data", wait_term="waiting"),
    "move": InstructionLabel(term="update"),
}
MS = 1_000_000


def span(op, start, end, run=0, **more):
    return TraceSpan(
        device=0, run=run, instruction=op, start_ns=start * MS, end_ns=end * MS, **more
    )


def step(run, begin):
    """Ten ms: 4 of computing, of a sum 2 exposed and 1 waited, 2 of update, 1 of none.

    A loop holds the first eight; a part of the sum is hidden behind computing.
    """
    found = (
        ("loop", 0, 8, False),
        ("conv", 0, 1, False),
        ("back", 1, 4, False),
        ("sum", 3, 7, False),
        ("sum", 4, 5, True),
        ("move", 8, 10, False),
    )
    return [span(op, begin + a, begin + b, run, is_wait=w) for op, a, b, w in found]


def test_each_moment_belongs_to_one_term():
    (one,) = device_breakdowns(step(0, 0), PARTS)
    assert one.terms_s == pytest.approx(
        {
            "compute": 4e-3,
            "all-reduce, data": 2e-3,
            "waiting": 1e-3,
            "update": 2e-3,
            "other": 1e-3,
        }
    )
    assert one.layers_s["a"].forward == pytest.approx(1e-3)
    assert one.layers_s["a"].backward == pytest.approx(3e-3)


def test_terms_add_up_to_the_step_with_what_lies_between():
    spans = [s for n in range(4) for s in step(n, 12 * n)]
    (one,) = device_breakdowns(spans, PARTS)
    assert one.steps == 4
    assert one.terms_s["between steps"] == pytest.approx(2e-3)
    assert one.step_s == pytest.approx(12e-3)


def test_one_long_pause_is_of_no_step():
    spans = [s for n, at in enumerate((0, 10, 20, 900)) for s in step(n, at)]
    (one,) = device_breakdowns(spans, PARTS)
    assert one.step_s == pytest.approx(10e-3)


def test_a_step_that_is_cut_is_left_out():
    spans = [*step(0, 0)[3:], *step(1, 10), *step(2, 20), *step(3, 30)[:2]]
    (one,) = device_breakdowns(spans, PARTS)
    assert one.steps == 2
    assert one.step_s == pytest.approx(10e-3)


def test_operations_at_once_share_their_time():
    parts = PARTS | {"other": InstructionLabel(term="compute", layer="b")}
    (one,) = device_breakdowns([span("conv", 0, 4), span("other", 2, 4)], parts)
    assert one.layers_s["a"].forward == pytest.approx(3e-3)
    assert one.layers_s["b"].forward == pytest.approx(1e-3)


def test_work_for_stages_is_told_apart_by_what_is_handed_on():
    parts = {
        "f": InstructionLabel(term="compute", stage_work=("forward", 0)),
        "g": InstructionLabel(term="compute", stage_work=("forward", 0)),
        "b": InstructionLabel(term="compute", stage_work=("backward", 0)),
        "send": InstructionLabel(term="activations, pipe", wait_term="bubble"),
    }
    ran = ("f", 0, 1), ("g", 1, 2), ("send", 2, 3), ("f", 3, 5), ("b", 5, 9)
    (one,) = device_breakdowns([span(op, a, b) for op, a, b in ran], parts)
    assert [(c.kind, c.micro) for c in one.lane] == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 0),
    ]
    assert [c.start for c in one.lane] == pytest.approx([0.0, 3e-3, 5e-3])
    assert [c.end for c in one.lane] == pytest.approx([2e-3, 5e-3, 9e-3])


def test_what_was_measured_is_read_back_as_it_was_written():
    found = StepBreakdown(
        cores=2, processes=1, devices=device_breakdowns(step(0, 0), PARTS)
    )
    assert StepBreakdown.from_json(found.to_json()) == found
    assert found.layer("nowhere") == LayerTime()
