"""The key `model.loss` chooses what a U-Net says of each pixel, and how it is scored."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.metric_goal import MetricGoal
from jaxdist.input.registry import open_data
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.batch_spec import feature_spec, sample_spec
from jaxdist.launch.training.job.job import make_job
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import objective_for
from jaxdist.train.field_regression import FieldRegression
from jaxdist.train.segmentation import Segmentation

UNET = ["model.size=tiny", "data.samples=16", "data.batch=8"]


@pytest.mark.parametrize(
    ("loss", "weights", "objective"),
    [
        (None, (), Segmentation()),
        ("dice", (), Segmentation(loss="dice")),
        (
            *("dice_cross_entropy", (1, 2)),
            Segmentation(loss="dice_cross_entropy", class_weights=(1, 2)),
        ),
        ("l1", (), FieldRegression(loss="l1")),
        (
            *("relative_l2", (3.0,)),
            FieldRegression(loss="relative_l2", channel_weights=(3.0,)),
        ),
    ],
)
def test_the_loss_is_that_of_the_key(loss, weights, objective):
    config = ModelConfig(name="unet3d", loss=loss, loss_weights=weights)
    assert objective_for(config) == objective


@pytest.mark.parametrize("how", [dict(loss="l2"), dict(loss_weights=(1.0,))])
@pytest.mark.parametrize("name", ["resnet8", "cosmoflow", "net.py:Net"])
def test_other_networks_have_their_own(name, how):
    with pytest.raises(BadInput, match="has its own loss") as refused:
        objective_for(ModelConfig(name=name, **how))
    assert "unet2d, unet3d" in refused.value.rule


def test_a_field_is_cut_as_its_image_and_may_have_holes(tmp_path):
    rng = np.random.default_rng(0)
    fields = {
        f"{part}_{key}": rng.random((16, 12, 8, 1), np.float32)
        for part in ("train", "test")
        for key in ("image", "target")
    }
    for key in ("train_target", "test_target"):
        fields[key][:, :3] = np.nan
    np.savez(tmp_path / "fields.npz", **fields)
    words = [f"data.name=numpy:{tmp_path / 'fields.npz'}", "model.loss=l2"]
    words += ["model.classes=1", "plan.mesh.data=1", "checkpoint.best=rmse"]
    config = resolve_config("unet2d", [*UNET, *words]).config
    train, _ = open_data(config.data, feature_spec(config))
    layout = make_job(config, config.plan, train).layout
    assert layout.objective.split.rows == (12, 8)
    checks = sample_spec(config, SimpleNamespace(task=layout.task))
    assert math.isnan(checks.ignore_values["target"])
    terms = {row.what: row.payload for row in layout.ledger.rows}
    # Errors and what they are of, of one channel, forward and backward.
    assert terms["loss"] == 2 * 8 * 2 * np.dtype(np.float32).itemsize


def test_the_lowest_error_is_best():
    assert not MetricGoal.parse("rmse").maximize
    assert MetricGoal.parse("mean_dice").maximize
