"""Files of a run are read as far as they were written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.launch.run_folder.folder import read_json_object, read_jsonl

ROWS = [{"step": 1, "loss": 2.3}, {"step": 2, "loss": 2.1}]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("run") / "metrics.jsonl"


@given(st.integers(0, len(TEXT)))
def test_a_file_cut_at_any_byte_gives_its_whole_lines(path, end):
    path.write_text(TEXT[:end])
    found = read_jsonl(path)
    assert list(found.rows) == ROWS[: len(found.rows)]
    assert len(found.rows) >= TEXT[:end].count("\n")
    assert found.unreadable <= 1


def test_a_half_line_that_was_written_on_is_left_out(path):
    path.write_text('{"step": 1, "lo' + TEXT)
    found = read_jsonl(path)
    assert list(found.rows) == ROWS[1:]
    assert found.unreadable == 1


@pytest.mark.parametrize("text", ["[1, 2]\n", "5\n", "nul\n"])
def test_what_is_no_object_is_counted(path, text):
    path.write_text(text)
    assert read_jsonl(path).rows == ()
    assert read_jsonl(path).unreadable == 1
    assert read_json_object(path) is None


def test_separators_of_unicode_are_no_line_ends(path):
    row = {"text": "a\u2028b\x85c"}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert read_jsonl(path).rows == (row,)


def test_a_missing_file_is_empty(tmp_path):
    assert read_jsonl(tmp_path / "none").rows == ()
    assert read_json_object(tmp_path / "none") is None
