"""Goodput: every second is of one kind, and work that is done again is lost."""

import pytest

from jaxdist.launch.run_folder.goodput import compute_goodput, list_attempts


def begin(start):
    return {"name": "compile", "start": start, "step": 0, "begin": True}


def span(name, start, seconds, step=0):
    return {"name": name, "start": start, "seconds": seconds, "step": step}


FIRST = [
    begin(100),
    span("compile", 100, 5),
    span("input", 105, 1, step=1),
    span("compute", 106, 2, step=1),
    span("checkpoint", 108, 1, step=1),
    span("compute", 109, 4, step=2),
    {"name": "evaluation", "start": 113, "step": 2, "begin": True},
]
SECOND = [
    begin(123),
    span("compile", 123, 3),
    span("checkpoint", 126, 1),
    span("compute", 127, 2, step=2),
    span("compute", 129, 2, step=3),
]


def test_work_that_is_done_again_is_lost_and_the_time_between_is_restart():
    found = compute_goodput([*FIRST, *SECOND])
    assert (found.attempts, found.wall_s) == (2, 31)
    assert found.phases_s == {
        "compile": 8,
        "input": 1,
        "compute": 6,
        "checkpoint": 2,
        "lost": 4,
        "restart": 10,
    }
    assert sum(found.phases_s.values()) == found.wall_s
    assert found.fraction == pytest.approx(6 / 31)


def test_one_attempt_loses_nothing():
    found = compute_goodput(FIRST)
    assert found.attempts == 1
    assert {"lost", "restart"}.isdisjoint(found.phases_s)


def test_a_attempt_that_was_killed_in_its_compile_is_counted():
    found = compute_goodput([*FIRST, begin(115), begin(119), *SECOND])
    assert (found.attempts, found.wall_s) == (4, 31)
    assert found.phases_s["restart"] == 10
    assert found.fraction == pytest.approx(6 / 31)
    attempts = list_attempts([*FIRST, begin(115), *SECOND])
    assert [one.first_step for one in attempts] == [1, None, 2]
    assert (attempts[1].start, attempts[1].end) == (115, 115)


def test_nothing_has_run_yet():
    assert compute_goodput([]).fraction == 0


def test_the_line_names_the_largest_part_first():
    line = compute_goodput([*FIRST, *SECOND]).summary_line
    assert line.startswith("goodput   19.4 % of 31.0 s in 2 attempts: restart 10.0 s,")
