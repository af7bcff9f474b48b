"""The words of a sweep: ranges, lists, and what is wrong with them."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.sweep.space import ParameterChoice, ParameterRange, parse_space


def parameters(*words):
    return parse_space("digits", words).parameters


def test_ranges_and_lists():
    space = parse_space(
        "digits",
        [
            *("optim.lr=1e-3..1e-1:log", "epochs=3..6", "optim.momentum=0.5..0.9"),
            *("model.width=8,16", "precision=float32,bfloat16", "seed=7"),
        ],
    )
    lr, epochs, momentum, width, precision = space.parameters
    assert lr == ParameterRange(key="optim.lr", low=1e-3, high=1e-1, log=True)
    assert epochs == ParameterRange(key="epochs", low=3, high=6, whole=True)
    assert momentum == ParameterRange(key="optim.momentum", low=0.5, high=0.9)
    assert width == ParameterChoice(key="model.width", choices=("8", "16"))
    assert precision.choices == ("float32", "bfloat16")
    assert space.fixed == ("seed=7",)
    assert lr.text == "optim.lr=0.001..0.1:log"


def test_a_range_of_either_kind_of_number_is_what_its_ends_are():
    (epochs,) = parameters("epochs=0.5..2")
    assert not epochs.whole
    (width,) = parameters("model.width=4..16:log")
    assert (width.whole, width.log) == (True, True)


def test_commas_of_a_value_that_is_a_list_are_its_own():
    space = parse_space("digits", ["track=csv,mlflow", "seed=1,2"])
    assert space.fixed == ("track=csv,mlflow",)


def test_a_path_is_no_range():
    space = parse_space("digits", ["data.dir=../data", "seed=1,2"])
    assert space.fixed == ("data.dir=../data",)


@pytest.mark.parametrize(
    ("word", "what", "remedy"),
    [
        ("optim.lr=1e-1..1e-3", "the range of optim.lr is empty", "=1e-3..1e-1"),
        ("optim.lr=0.1..0.1", "the range of optim.lr is empty", "optim.lr=0.1"),
        ("optim.lr=0..1:log", "0 has no logarithm", "optim.lr=1e-6..1:log"),
        ("optim.lr=-1..1:log", "-1 has no logarithm", "optim.lr=-1..1"),
        ("optim.lr=1..2:lin", "no scale lin of a range", "optim.lr=1..2:log"),
        ("optim.lr=1..2:", "no scale", "optim.lr=1..2:log"),
        ("optim.lr=a..2", "optim.lr has no such range", "optim.lr=1e-3..1e-1:log"),
        ("optim.lr=..2", "optim.lr has no such range", "optim.lr=1e-3..1e-1:log"),
        ("model.width=0.5..2", "model.width has no such range", "model.width=1..8"),
        ("model.width=8,x", "model.width cannot be x", "model.width=8"),
        ("model.width=8,8", "model.width has a value twice", "model.width=8"),
        ("model.width=8,", "model.width cannot be empty", "model.width=8"),
        ("epochs=1..2,4", "epochs has no such range", "epochs=1..8"),
        ("precision=float32,half", "precision cannot be half", "precision=float32"),
        ("run.name=a,b", "run.name=a,b names a run", "--name NAME"),
        ("optm.lr=1..2", "no key optm.lr", "optim.lr"),
        ("seed=1", "the sweep varies nothing", "jaxdist sweep digits"),
        # Held against the experiment, before a trial: no range ends outside of a rule.
        ("epochs=0..3", "there is nothing to train", "epochs=1"),
        ("data.batch=64,63", "does not divide", "data.batch=64"),
        ("model.name=resnet8,resnt50", "no model named resnt50", "resnet50"),
    ],
)
def test_what_is_wrong_is_said_with_rule_values_and_remedy(word, what, remedy):
    with pytest.raises(BadInput) as error:
        parameters(word)
    text = str(error.value)
    assert what in text
    assert "remedy" in text
    assert remedy in text.split("remedy")[1]


def test_mistakes_are_told_together_and_a_key_is_varied_once():
    with pytest.raises(BadInput) as error:
        parameters("optim.lr=2..1", "epochs=1..x", "seed=1,2", "seed=3,4")
    text = str(error.value)
    for part in ("optim.lr is empty", "epochs has no such", "seed is varied twice"):
        assert part in text
