"""Experiments by name and in files."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.config.experiment import (
    experiment_names,
    list_experiments,
    load_experiment,
)

HEAD = "from jaxdist.launch.config import Experiment\n"
MINE = (
    HEAD + "def mine() -> Experiment:\n    return Experiment(name='mine', epochs=3)\n"
)
OTHER = "def other() -> Experiment:\n    return Experiment(name='other')\n"


@pytest.fixture
def file(tmp_path):
    def write(text, name="my_experiment.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def refused(source):
    with pytest.raises(BadInput) as caught:
        load_experiment(source)
    return caught.value


@pytest.mark.parametrize("entry", list_experiments(), ids=lambda entry: entry.name)
def test_every_experiment_says_what_to_expect(entry):
    assert load_experiment(entry.name).name == entry.name
    assert entry.summary
    for part in (
        "Source:",
        "Expected time:",
        "Expected score:",
        f"Command: jaxdist train {entry.name}",
    ):
        assert part in entry.details


def test_digits_is_there():
    assert "digits" in experiment_names()


def test_unknown_name():
    assert str(refused("digit")) == (
        "no experiment named digit\n"
        "  remedy   did you mean digits? list them with: jaxdist experiments"
    )


def test_a_file_of_ones_own(file):
    config = load_experiment(file(MINE))
    assert (config.name, config.epochs, config.run.name) == ("mine", 3, "mine")


def test_a_file_may_use_the_experiments_that_exist(file):
    text = HEAD + (
        "from dataclasses import replace\n"
        "from jaxdist.launch.experiments.digits import digits\n"
        "def long() -> 'Experiment':\n    return replace(digits(), name='long', epochs=90)\n"
    )
    assert load_experiment(file(text)).epochs == 90


def test_a_file_with_several_functions_takes_the_one_that_is_named(file):
    path = file(MINE + OTHER)
    assert load_experiment(f"{path}:other").name == "other"
    error = refused(path)
    assert error.values == "mine, other"
    assert error.remedy == (f"{path}:mine", f"{path}:other")
    assert refused(f"{path}:othr").remedy == ("did you mean other?",)


def test_a_file_without_an_experiment(file):
    error = refused(file("x = 1\n"))
    assert error.what.endswith("has no experiment")
    assert "-> Experiment" in error.remedy[0]


def test_a_function_that_returns_something_else(file):
    error = refused(file(HEAD + "def mine() -> Experiment:\n    return 3\n"))
    assert error.values == "it returned int"


def test_a_file_that_is_not_there(file):
    path = file(MINE)
    error = refused(path.replace("my_", "ny_"))
    assert error.remedy == (f"did you mean {path}?",)


@pytest.mark.parametrize(
    ("text", "values", "line"),
    [
        ("x = 1\ny = z\n", "NameError: name 'z' is not defined", 2),
        ("def f(:\n", "SyntaxError", 1),
    ],
)
def test_a_file_with_an_error_names_the_line(file, text, values, line):
    error = refused(file(text))
    assert error.values.startswith(values)
    assert error.remedy[0].endswith(f"at line {line}")
