"""Questions with choices are read a line each, and refused with the line's number."""

import json

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.training.choices import read_questions

QUESTION = {"prompt": "a\u2028b\x85c", "choices": ["d", "e"], "answer": 0}


def test_separators_of_unicode_are_no_line_ends(tmp_path):
    path = tmp_path / "asked.jsonl"
    text = json.dumps(QUESTION, ensure_ascii=False) + "\r\n\n"
    path.write_text(text, encoding="utf-8", newline="")
    (found,) = read_questions(path)
    assert found.prompt == QUESTION["prompt"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"choices": "yes"},
        {"choices": {"d": 0, "e": 1}},
        {"choices": ["d"]},
        {"choices": ["d", ""]},
        {"answer": 2},
        {"answer": True},
    ],
)
def test_what_is_no_question_is_refused(tmp_path, wrong):
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps(QUESTION) + "\n" + json.dumps(QUESTION | wrong))
    with pytest.raises(BadInput, match="line 2 of"):
        read_questions(path)
