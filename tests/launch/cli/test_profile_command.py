"""`jaxdist profile`: what it prints, what it refuses, and XLA's own count beside it."""

import json
from dataclasses import fields

import jax
import pytest
from flax import nnx

from jaxdist.core.profile import Profile
from jaxdist.launch.cli.main import main
from jaxdist.launch.training.job.abstract_model import (
    abstract_inputs,
    abstract_network,
    load_profile_config,
    profile_model,
)
from jaxdist.launch.training.job.abstract_step import bind_dropout_rng
from jaxdist.models import registry
from jaxdist.models.config import ModelConfig
from jaxdist.profile.trace import as_function, with_gradient

SIZES = {field.name for field in fields(ModelConfig)} & {"size"}


@pytest.fixture
def answer(capsys):
    def run(*words):
        code = main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def small(name):
    """Words that make a network small; one without a small size gets a small image."""
    return [f"model.{key}=tiny" for key in SIZES] or ["input.size=16"]


# XLA multiplies every row with every expert on CPUs; a profile counts those that tokens
# go through (tests/profile/test_flops.py).
@pytest.mark.parametrize("name", sorted({*registry.model_names()} - {"mixtral"}))
def test_flops_are_those_of_xla_within_a_hundredth(name, monkeypatch):
    specimen, _ = load_profile_config(name, [*small(name), "batch=2"])
    profile = profile_model(specimen)
    run, state = as_function(
        abstract_network(specimen), lambda network: bind_dropout_rng(network, 2)
    )
    rolled = jax.lax.scan  # XLA counts the body of a loop once: roll them out
    monkeypatch.setattr(
        jax.lax, "scan", lambda *a, **k: rolled(*a, **{**k, "unroll": True})
    )
    for function, ours in (
        (run, profile.flops_forward),
        (with_gradient(run), profile.flops),
    ):
        lowered = jax.jit(function).lower(*state, *abstract_inputs(specimen))
        assert ours == pytest.approx(lowered.cost_analysis()["flops"], rel=0.01)


@pytest.mark.parametrize("name", registry.model_names())
def test_every_parameter_is_in_one_row(name):
    specimen, _ = load_profile_config(name, small(name))
    network, profile = abstract_network(specimen), profile_model(specimen)
    assert profile.parameters == sum(
        leaf.size for leaf in jax.tree.leaves(as_function(network)[1][0])
    )
    assert all(row.flops_forward >= 0 <= row.flops_backward for row in profile.layers)
    names = [row.name for row in profile.layers]
    assert len(set(names)) == len(names)


def test_json_is_a_profile_and_nothing_else(answer):
    code, out, err = answer("profile", "resnet8", "input.size=16", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["parameters"] == 77_562
    assert found["flops"] == found["flops_forward"] + found["flops_backward"]
    assert found["cuts"] == ["stem", "block1", "block2", "block3"]
    (conv,) = [row for row in found["layers"] if row["name"] == "block3.conv1"]
    assert (conv["parameters"], conv["output_bytes"]) == (18_432, 4 * 4 * 64 * 4)
    for key in ("parameters", "flops_forward", "flops_backward", "output_bytes"):
        assert found[key] == sum(row[key] for row in found["layers"])
    assert Profile.from_json(out).cuts == tuple(found["cuts"])


def test_people_get_a_row_a_block_and_layer(answer):
    code, out, err = answer("profile", "resnet8", "input.size=16")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert ["resnet8", "float32[1,16,16,1]"] in lines
    assert [line[:2] for line in lines].count(["block3", "57,600"]) == 1
    assert ["conv2", "36,864"] in [line[:2] for line in lines]
    assert "cuts     4, between any two of its 5 blocks" in out
    assert max(map(len, out.splitlines())) <= 100


def test_flops_are_for_the_batch():
    one, four = (
        profile_model(
            load_profile_config("resnet8", [f"batch={n}", "input.size=16"])[0]
        )
        for n in (1, 4)
    )
    assert four.flops == pytest.approx(4 * one.flops, rel=0.02)
    assert (four.batch, four.parameters) == (4, one.parameters)


def test_an_experiment_is_read_on_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specimen, data = load_profile_config("digits", [])
    assert abstract_inputs(specimen, data) == (
        jax.ShapeDtypeStruct((1, 16, 16, 1), "float32"),
    )
    sized, data = load_profile_config("digits", ["input.size=32", "precision=float64"])
    profile = profile_model(sized, data)
    assert profile.inputs == ("float64[1,32,32,1]",)
    assert profile.parameter_bytes == 8 * profile.parameters
    assert not jax.config.jax_enable_x64


def test_clips_are_read_with_their_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specimen, data = load_profile_config("captions", ["batch=2"])
    assert abstract_inputs(specimen, data) == (
        jax.ShapeDtypeStruct((2, 5, 16, 16, 1), "float32"),
        jax.ShapeDtypeStruct((2, 7), "int32"),
    )
    sized, _ = load_profile_config("s2vt", ["input.size=64"])
    assert [x.shape for x in abstract_inputs(sized)] == [(1, 60, 64, 64, 3), (1, 20)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resnt8"], "no model or experiment named resnt8\n  remedy   did you mean"),
        (["resnet8", "input.size=0"], "an input has at least one row\n  rule"),
        (["resnet8", "input.size=big"], "input.size cannot be big\n"),
        (["resnet8", "batch=0"], "there is nothing to count\n"),
        (
            ["resnet8", "input.sze=9"],
            "no key input.sze\n  remedy   did you mean input.size? "
            "list them with: jaxdist profile --help",
        ),
        (["resnet8", "model.widht=9"], "no key model.widht\n"),
        (["missing.py"], "no file missing.py\n"),
    ],
)
def test_bad_words_are_bad_input(answer, words, said):
    code, out, err = answer("profile", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")


class Shrinking(nnx.Module):
    """One convolution that needs three rows."""

    def __init__(self, *, dtype, rngs):
        self.conv = nnx.Conv(1, 2, (3, 3), padding="VALID", dtype=dtype, rngs=rngs)

    def __call__(self, x):
        return self.conv(x)


def test_an_input_too_small_for_the_network_is_bad_input(answer, monkeypatch):
    monkeypatch.setattr(registry, "model_factory", lambda config: Shrinking)
    code, out, err = answer("profile", "resnet8", "input.size=2")
    assert (code, out) == (2, "")
    assert err.startswith("error: resnet8 cannot take this input\n  rule     ")
    assert "2 x 2 x 1: conv returns nothing" in err
    assert "  remedy   input.size=" in err


def test_a_network_that_is_no_chain_says_that_it_is_not_cut(answer, monkeypatch):
    monkeypatch.setattr(registry, "model_factory", lambda config: Shrinking)
    code, out, _ = answer("profile", "resnet8", "input.size=8")
    assert code == 0
    assert "cuts     none: the network has no chain() of named blocks" in out
