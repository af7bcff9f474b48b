"""`jaxdist schedule`, and the recipe it shows: many settings as one."""

import json

import numpy as np
import pytest

from jaxdist.launch.cli.main import main
from jaxdist.launch.config.resolve import recipe_overrides, resolve_config
from jaxdist.launch.training.job.job import (
    make_model_spec,
    make_run_schedule,
    make_task,
)
from jaxdist.launch.training.job.optimizer_schedule import (
    optimizer_schedule,
    schedule_from_task,
)
from jaxdist.models.config import ModelConfig, resolve_preset
from jaxdist.models.registry import (
    _CLASS_PATHS,
    _model_class,
    ends_blocks_in_norm,
    takes_clips,
    takes_tokens,
)
from jaxdist.train.optimizers import make_learning_rate

RECIPE = ("recipe=large_batch", "data.batch=512", "plan.mesh.data=8")


def config_of(*words):
    return resolve_config("digits", words).config


def test_the_recipe_sets_rate_warm_up_and_gamma():
    config = config_of(*RECIPE)
    assert config.optim.scaling == "linear"
    assert config.optim.warmup_epochs == 5
    assert config.model.zero_gamma


def test_what_is_typed_goes_before_the_recipe():
    resolved = resolve_config("digits", [*RECIPE, "optim.warmup_epochs=3"])
    assert resolved.config.optim.warmup_epochs == 3
    assert resolved.config.optim.scaling == "linear"
    assert resolved.sources["optim.scaling"] == "command line"


def test_networks_without_a_last_gamma_keep_theirs():
    config = config_of(*RECIPE, "model.name=vgg16")
    assert not config.model.zero_gamma
    assert "model.zero_gamma" not in recipe_overrides(config)


@pytest.mark.parametrize("name", _CLASS_PATHS)
def test_the_registry_knows_which_networks_have_a_last_gamma(name):
    config = ModelConfig(name=name)
    if not (takes_tokens(config) or takes_clips(config)):
        preset = resolve_preset(config, _model_class(name).presets)
        assert ends_blocks_in_norm(config) == preset.residual


def test_the_schedule_is_what_the_run_does():
    config = config_of(*RECIPE, "optim.accumulate=4", "epochs=7")
    found = optimizer_schedule(config, config.plan, 1437)
    course = make_run_schedule(config, 1437)
    rate = make_learning_rate(config.optim, course.steps, 1437 / 512, 512)
    task = make_task(config, make_model_spec(config), rate)
    assert schedule_from_task(config, config.plan, task, course) == found
    for row in found.epochs:
        np.testing.assert_allclose(row.rate, rate(row.step - 1), rtol=1e-6)
        assert course.epoch_of(row.step) in (row.epoch - 1, row.epoch - 2)
    assert found.peak_rate_text == "0.2 x 512/256 = 0.4"
    assert (found.ramp.initial_rate, found.ramp.steps) == (0.2, 14)
    assert (found.replicas, found.microbatch, found.sharing) == (8, 16, 128)


@pytest.mark.parametrize(
    ("words", "sharing"),
    [
        (("model.norm=global",), 512),
        (("model.norm=replica",), 64),
        (("model.norm=replica", "model.norm_group=4"), 256),
        (("model.norm=replica", "model.norm_group=4", "optim.accumulate=2"), 128),
    ],
)
def test_the_samples_that_share_statistics_are_counted(words, sharing):
    config = config_of(*RECIPE, *words)
    assert optimizer_schedule(config, config.plan, 1437).sharing == sharing


def test_norms_and_biases_are_counted_apart():
    found = optimizer_schedule(config_of(), config_of().plan, 1437)
    assert found.numbers[1] == 77_562
    # Of the leaves, kernels decay: seven 3x3, two 1x1 and the head's.
    assert found.leaves == (10, 25)
    assert found.numbers[1] - found.numbers[0] == 2 * (3 * 16 + 2 * 32 + 2 * 64) + 10


def test_the_command_prints_a_row_an_epoch(capsys):
    assert main(["schedule", "digits", *RECIPE, "epochs=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits    sgd, 20 steps"
    assert lines[1:3] == [
        "  rate     0.2 x 512/256 = 0.4",
        "  warm-up  0.2 to 0.4 over 14 steps (5 epochs)",
    ]
    assert [line.split()[0] for line in lines if "░" in line] == [*"1234567"]
    assert lines[-1] == f"  try      jaxdist train digits {' '.join(RECIPE)} epochs=7"


def test_as_json(capsys):
    assert main(["schedule", "digits", *RECIPE, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["ramp"] == {"initial_rate": 0.2, "peak_rate": 0.4, "steps": 14}
    assert len(tree["epochs"]) == 30


def test_random_data_will_do(capsys):
    assert main(["schedule", "vgg16", "data.name=synthetic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] > 0
