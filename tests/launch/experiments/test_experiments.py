"""Every experiment can be tried on random data, on a small network, with no download."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from jaxdist.core.errors import BadInput
from jaxdist.input.registry import dataset_names as datasets
from jaxdist.input.registry import open_data
from jaxdist.launch.config.experiment import experiment_names
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.batch_spec import (
    batch_shapes,
    feature_spec,
    fit_model_config,
)
from jaxdist.launch.training.job.job import make_job
from jaxdist.models.registry import model_names, objective_for

SMALL = [
    *("data.name=synthetic", "data.samples=16", "data.batch=8", "data.context=16"),
    *("model.size=tiny", "plan.mesh.data=2"),
]
OWN_SIZES = ("depth", "heads", "kv_heads", "embed", "hidden")
ELSEWHERE = {"resnet8": "digits", "s2vt": "captions"}
"""Networks whose experiment has another name."""


def small(name):
    open_again = [f"model.{key}=None" for key in OWN_SIZES]
    return resolve_config(name, [*SMALL, *open_again]).config


def test_the_page_names_every_experiment_and_data_set():
    page = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    assert {*experiment_names(), *datasets()} <= rows


def test_every_network_has_an_experiment():
    known = {ELSEWHERE.get(name, name) for name in model_names()}
    assert known <= set(experiment_names())


@pytest.mark.parametrize("name", sorted(set(experiment_names()) - {"digits"}))
def test_synthetic_data_is_one_setting_away(name):
    config = small(name)
    train, test = open_data(config.data, feature_spec(config))
    assert (len(train), len(test)) == (16, 2)
    job = make_job(config, config.plan, train)
    sample = train.get(np.arange(1))
    assert {key: sample[key].shape[1:] for key in sample} == {
        key: job.layout.batch_shapes[key].shape[1:]
        for key in job.layout.task.objective.dtypes
    }


@pytest.mark.parametrize(
    ("name", "size"), [("resnet50", 224), ("inception_v3", 299), ("cosmoflow", 128)]
)
def test_the_full_network_gets_samples_of_its_size(name, size):
    config = resolve_config(name, ["data.name=synthetic", "data.samples=1"]).config
    train, _ = open_data(config.data, feature_spec(config))
    shape = train.get(np.arange(1))["image"].shape[1:-1]
    assert set(shape) == {size}


def test_the_line_that_people_type():
    config = resolve_config(
        "resnet50", ["data.name=imagenet2012", "plan.mesh.data=8", "optim.lr=0.4"]
    ).config
    assert (config.plan.mesh.data, config.optim.lr) == (8, 0.4)
    assert (config.data.batch, config.epochs) == (256, 90)


@pytest.mark.parametrize(
    ("name", "how", "kind"),
    [
        ("resnet50", [], "image"),
        ("cosmoflow", ["plan.mesh.spatial_d=2"], "volume"),
        ("gpt2_small", [], "token"),
        ("unet3d", ["data.name=balls"], "voxel"),
    ],
)
def test_an_epoch_of_random_data_runs(job, tmp_path, name, how, kind):
    words = [*SMALL, *how, "epochs=1", f"run.dir={tmp_path}", "--json"]
    code, out, err = job.call("train", name, *words)
    assert code == 0, err
    summary = json.loads(out)
    each = {"image": 1, "volume": 4, "token": 16, "voxel": 8**3}[kind]
    assert summary["answers"] == summary["held_out"] * each == 2 * each
    assert summary["steps"] == 2
    assert np.isfinite(summary["loss"])


def test_classes_come_from_the_images_unless_they_are_set(tmp_path):
    for split in ("train", "test"):
        for label in "abc":
            (tmp_path / split / label).mkdir(parents=True)
            Image.new("RGB", (9, 9)).save(tmp_path / split / label / "1.png")
    words = ["data.name=folder", f"data.path={tmp_path}", "model.size=tiny"]
    config = resolve_config("resnet50", words).config
    train, _ = open_data(config.data, feature_spec(config))
    assert fit_model_config(config, train).classes == 3
    wide = resolve_config("resnet50", [*words, "model.classes=5"]).config
    assert fit_model_config(wide, train).classes == 5
    narrow = resolve_config("resnet50", [*words, "model.classes=2"]).config
    with pytest.raises(BadInput, match=r"model.classes=3"):
        fit_model_config(narrow, train)


def test_volumes_are_shifted_as_images_are():
    config = resolve_config("cosmoflow", [*SMALL, "data.shift=1"]).config
    train, _ = open_data(config.data, feature_spec(config))
    shapes = batch_shapes(config, objective_for(config.model), train)
    assert shapes["image"].shape[1:] == train.get(np.zeros(1, int))["image"].shape[1:]
    cut = replace(config, data=replace(config.data, augment=("crop:2",)))
    shapes = batch_shapes(cut, objective_for(cut.model), train)
    assert shapes["image"].shape[1:-1] == (2, 2, 2)


def test_cosmoflow_is_scored_by_the_squares_of_its_errors():
    config = small("cosmoflow")
    train, _ = open_data(config.data, feature_spec(config))
    job = make_job(config, config.plan, train)
    batch = {"target": jax.numpy.zeros((2, 4))}
    outputs = jax.numpy.array([[1.0, 0, 0, 0], [0.05, 0.2, 0, 0]])
    np.testing.assert_allclose(
        job.layout.task.objective.losses(outputs, batch), [0.25, 0.010625], rtol=1e-6
    )
    assert job.layout.task.objective.correct(outputs, batch).sum() == 6
