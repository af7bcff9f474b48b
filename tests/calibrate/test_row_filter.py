"""Selections of measured rows: what they say, and what they refuse."""

import pytest

from jaxdist.calibrate.row_filter import parse_row_filter
from jaxdist.core.errors import BadInput


@pytest.mark.parametrize(
    ("text", "works"),
    [
        ("devices<=4", [1, 2, 4]),
        ("devices <4", [1, 2]),
        ("devices>=16", [16, 32]),
        ("devices > 16", [32]),
        ("devices == 8.0", [8]),
        ("devices=8", [8]),
        ("devices != 8 and devices>2", [4, 16, 32]),
        ("devices in (1, 2, 32)", [1, 2, 32]),
        ("devices in [2]", [2]),
        ("kind == b and devices < 32", [8, 16]),
        ('"kind" == "a"', [1, 2, 4]),
        ("`Kind` in (a, b) AND devices % 3 == 2", [2, 8, 32]),
        ("# devices <= 1", [1]),
    ],
)
def test_a_selection_has_the_rows_for_which_all_comparisons_hold(toy, text, works):
    if text.startswith("#"):
        text = '"' + text.replace(" <=", '" <=')
    assert [row.devices for row in parse_row_filter(text).select(toy.rows())] == works


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device<=4", "did you mean devices"),
        ("devices<=0", "selects none of 6 rows"),
        ("devices ~ 4", "cannot read"),
        ("devices<=", "cannot read"),
        ("", "cannot read"),
        ("devices<=4 and", "cannot read"),
        ("devices<=4 or devices>8", "cannot read"),
        ("devices == 4 8", "cannot read"),
        ("kind < 3", "a is no number"),
        ("devices % 0 == 1", "cannot read"),
        ("__import__('os')", "cannot read"),
    ],
)
def test_what_is_no_selection_is_refused(toy, text, said):
    with pytest.raises(BadInput, match=said):
        parse_row_filter(text).select(toy.rows())
