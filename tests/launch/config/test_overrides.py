"""Overrides, provenance, and the answers to bad words."""

import pytest

from jaxdist.core.errors import BadInput, MultipleErrors
from jaxdist.input.config import DataConfig
from jaxdist.launch.config import CheckpointConfig, Experiment
from jaxdist.launch.config.resolve import format_override, resolve_config
from jaxdist.launch.config.tree import flatten_config, key_types
from jaxdist.launch.training.job.job import make_run_schedule


def refused(*words, source="digits"):
    with pytest.raises(BadInput) as caught:
        resolve_config(source, words)
    return caught.value


def test_overrides_change_values_at_every_depth():
    words = [
        "seed=7",
        "optim.lr=1e-3",
        "plan.mesh.data=8",
        "plan.replicated_axes=tensor,pipe",
        "run.name=a",
    ]
    config = resolve_config("digits", words).config
    assert (config.seed, config.optim.lr, config.plan.mesh.data) == (7, 1e-3, 8)
    assert config.plan.replicated_axes == ("tensor", "pipe")
    assert config.plan.mesh.spatial_h == 2
    assert config.run.name == "a"


def test_the_last_of_two_overrides_holds():
    assert resolve_config("digits", ["seed=1", "seed=2"]).config.seed == 2


def test_provenance_names_who_set_each_value():
    resolved = resolve_config("digits", ["optim.lr=0.3"])
    assert resolved.sources["optim.lr"] == "command line"
    assert resolved.sources["plan.mesh.data"] == "experiment"
    assert resolved.sources["plan.mesh.fsdp"] == "default"
    assert resolved.describe("optim.lr") == "optim.lr = 0.3 (command line)"
    assert (
        set(resolved.sources)
        == set(flatten_config(resolved.config))
        == set(key_types(Experiment))
    )


def test_a_value_typed_as_it_was_still_comes_from_the_command_line():
    assert resolve_config("digits", ["seed=0"]).keys_from("command line") == ("seed",)


def test_a_run_is_named_after_its_experiment():
    assert resolve_config("digits").config.run.name == "digits"


def test_only_the_command_line_makes_a_plan_explicit():
    assert not resolve_config("digits", ["seed=3"]).plan_is_explicit
    assert resolve_config("digits", ["plan.mesh.data=2"]).plan_is_explicit


def test_unknown_key():
    assert str(refused("optm.lr=0.1")) == (
        "no key optm.lr\n"
        "  remedy   did you mean optim.lr? list them with: jaxdist config digits"
    )
    assert "did you mean optim.clip?" in str(refused("clip=0.1"))
    assert str(refused("zzz=1")) == (
        "no key zzz\n  remedy   list them with: jaxdist config digits"
    )


def test_wrong_type():
    assert str(refused("optim.lr=abc")) == (
        "optim.lr cannot be abc\n"
        "  rule     optim.lr is a number\n"
        "  values   optim.lr = abc (command line)\n"
        f"  remedy   optim.lr={resolve_config('digits').config.optim.lr}"
    )
    assert refused("data.batch=1e2").remedy == ("data.batch=100",)
    assert refused("data.batch=").what == "data.batch cannot be empty"


def test_wrong_choice():
    assert str(refused("precision=float23")) == (
        "precision cannot be float23\n"
        "  rule     precision is float32, bfloat16 or float64\n"
        "  values   precision = float23 (command line)\n"
        "  remedy   did you mean precision=float32?"
    )


def test_unknown_model():
    assert str(refused("model.name=resnet9")) == (
        "no model named resnet9\n"
        "  values   model.name = resnet9 (command line)\n"
        "  remedy   did you mean model.name=resnet8?"
    )


def test_a_group_is_no_value():
    error = refused("plan.mesh=4")
    assert error.what == "plan.mesh is a group of keys"
    assert error.remedy == ("plan.mesh.replica=4",)


def test_a_word_without_equals_sign():
    error = refused("seed")
    assert error.what == "seed changes nothing"
    assert error.remedy == ("did you mean seed=VALUE?",)


def test_values_that_the_dataclass_refuses():
    assert refused("plan.mesh.data=0").values == "plan.mesh.data = 0"
    assert refused("epochs=0").rule == "epochs is above zero"
    assert refused("seed=-1").rule == "seed is from 0 to 2147483647"
    assert refused("run.name=a/b").what == "a/b is no name for a run"
    assert refused("checkpoint.keep=0").rule == "checkpoint.keep >= 1"
    assert refused("checkpoint.every_epochs=0").what.startswith("checkpoints need")


def test_several_mistakes_are_told_together():
    error = refused("optm.lr=0.1", "seed=x", source="digit")
    assert isinstance(error, MultipleErrors)
    assert [one.what for one in error.each] == [
        "no experiment named digit",
        "no key optm.lr",
        "seed cannot be x",
    ]
    assert error.each[0].remedy == (
        "did you mean digits? list them with: jaxdist experiments",
    )
    both = refused("epochs=0", "plan.mesh.data=0", "checkpoint.keep=0")
    assert len(both.each) == 3


def test_remedies_can_be_pasted_into_a_shell():
    assert format_override("run.name", "a b") == "'run.name=a b'"


@pytest.mark.parametrize(
    ("how", "steps"),
    [
        ({"every_epochs": 0.001}, 1),
        ({"every_epochs": 0.5}, 11),
        ({"every_steps": 7}, 7),
    ],
)
def test_a_checkpoint_interval_is_at_least_a_step(how, steps):
    saving, data = CheckpointConfig(**how), DataConfig(batch=10)
    config = Experiment(name="mine", checkpoint=saving, data=data)
    assert make_run_schedule(config, 224).checkpoint_interval == steps
