"""How errors look on a terminal: no word is cut, and no command."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.cli.main import main
from jaxdist.launch.terminal.console import wrap_error

MANY = "list them with: jaxdist experiments --json --and-an-option-that-is-long"
LONG = BadInput(
    "no experiment named digit in a sentence that is longer than eighty columns are",
    rule="a run ends after epochs, of which a part will do, or "
    "`jaxdist plan EXPERIMENT --devices 4`, which nobody cuts",
    values="/a/path/that/is/longer/than/a/line/" + "x" * 60,
    remedy=[f"did you mean digits? {MANY}", MANY],
)


@pytest.mark.parametrize("width", [80, 60])
def test_an_error_is_wrapped_between_words(width):
    text = f"error: {LONG}"
    lines = wrap_error(text, width).split("\n")
    whole = {"jaxdist plan EXPERIMENT --devices 4", MANY.split(": ")[1]}
    assert all(any(command in line for line in lines) for command in whole)
    for line in lines:
        assert len(line) <= width or len(line.split()) <= 2 or "jaxdist" in line
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())


def test_a_short_error_is_as_it_was():
    text = f"error: {BadInput('no', rule='a', values='b', remedy=['c', 'd'])}"
    assert wrap_error(text, 80) == text


def test_a_terminal_is_wrapped_and_a_pipe_is_not(capsys, monkeypatch):
    words = ["config", "digits", "max_steps=5"]
    assert main(words) == 2
    plain = capsys.readouterr().err
    assert max(map(len, plain.splitlines())) > 80
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.split() == plain.split()
