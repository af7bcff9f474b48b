"""A network of one's own that classifies pixels is laid out on images that are cut."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.registry import open_data
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.batch_spec import check_all_integers, feature_spec
from jaxdist.launch.training.job.job import make_job

FILE = """
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxdist as jd
from jaxdist.input.balls import BallsSource


class Net(nnx.Module):
    objective = jd.Segmentation(loss="dice_cross_entropy", ignore_value=255)

    def __init__(self, *, rngs):
        self.high = jd.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm, self.pool = jd.GroupNorm(4, 2, rngs=rngs), jd.MaxPool(2, 2)
        self.up = jd.Upsample(2, "linear")
        self.last = jd.Conv(8, 3, (3, 3), rngs=rngs)

    def __call__(self, x):
        high = jax.nn.relu(self.norm(self.high(x)))
        return self.last(jnp.concatenate([high, self.up(self.pool(high))], -1))


class Half(Net):
    def __call__(self, x):
        return self.pool(super().__call__(x))


class Plain(Net):
    def __call__(self, x):
        return super().__call__(jnp.roll(x, 1, 1))


def balls(worst=255):
    arrays = BallsSource((12, 8, 1), 3, 16).get(np.arange(16))
    arrays["mask"][:, 0] = worst
    return arrays, arrays


def wrong():
    return balls(3)
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "pixels.py").write_text(FILE)

    def lay_out(network="Net", data="balls"):
        names = {"model": network, "data": data}
        words = [f"{key}.name={tmp_path}/pixels.py:{x}" for key, x in names.items()]
        mesh = ["plan.mesh.data=2", "plan.mesh.spatial_h=2"]
        config = resolve_config(
            "digits",
            [*words, *mesh, "data.batch=8", "data.shift=0", "model.width=None"],
        ).config
        train, _ = open_data(config.data, feature_spec(config))
        made = make_job(config, config.plan, train)
        check_all_integers(config, made.layout, train)
        return made

    return lay_out


def test_the_network_says_which_pixels_count(job):
    layout = job().layout
    assert layout.task.objective.ignore_value == 255
    assert layout.objective.split.rows == (12, 8)
    terms = {row.what: row.payload for row in layout.ledger.rows}
    # Cross entropy and its weight, and three sums of each class, forward and backward.
    assert terms["loss"] == 2 * (8 // 2) * (2 + 3 * 3) * np.dtype(np.float32).itemsize


def test_masks_of_another_class_are_refused(job):
    with pytest.raises(BadInput, match="mask of sample 0 is out of range") as refused:
        job(data="wrong")
    assert "or 255 for what does not count" in refused.value.rule


def test_logits_of_another_size_are_refused(job):
    with pytest.raises(BadInput, match="different sizes") as refused:
        job("Half")
    assert "[6, 4, 3]" in refused.value.values


def test_what_mixes_positions_is_refused(job):
    with pytest.raises(BadInput, match="mixes positions"):
        job("Plain")
