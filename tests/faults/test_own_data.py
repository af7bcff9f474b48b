"""Data of one's own: nothing is augmented unasked, and what does not fit is told first.

Features, masks, labels for each pixel, labels out of range: each is trained on as it
is, or refused before anything is written.
"""

import numpy as np
import pytest

from jaxdist.input.config import DataConfig
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.resolve import resolve_config

OWN = '''
import jax
import jax.numpy as jnp
import numpy as np
from dataclasses import dataclass
from flax import nnx
from jaxdist import object_reference
from jaxdist.input import DataConfig
from jaxdist.launch.config import Experiment
from jaxdist.layers import Conv, Linear
from jaxdist.models import ModelConfig
from jaxdist.train.objective import Classification, Objective


@dataclass(frozen=True, kw_only=True)
class Pixels(Objective):
    """A class for each pixel."""

    inputs: tuple = (("image", "float32"),)
    targets: tuple = (("mask", "int32"),)

    def losses(self, outputs, batch):
        said = jax.nn.log_softmax(outputs)
        one = jax.nn.one_hot(batch["mask"], outputs.shape[-1], dtype=said.dtype)
        return -(one * said).sum(-1).mean((1, 2))

    def correct(self, outputs, batch):
        return outputs.argmax(-1) == batch["mask"]


class Flat(nnx.Module):
    def __init__(self, *, rngs):
        self.out = Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(x)


class Segment(nnx.Module):
    objective = Pixels()

    def __init__(self, *, rngs):
        self.out = Conv(1, 2, (3, 3), rngs=rngs)

    def __call__(self, x):
        return self.out(x)


class PerPixelLabels(Segment):
    objective = Classification()


def parts(make):
    return tuple(make(np.random.default_rng(n), n) for n in (48, 16))


def features():
    return parts(lambda draw, n: {"image": draw.random((n, 4)), "label": np.arange(n) % 3})


def masked():
    def make(draw, n):
        image = draw.random((n, 8, 8, 1))
        return {"image": image, "mask": (image[..., 0] > 0.5).astype(int)}
    return parts(make)


def labelled_pixels():
    def make(draw, n):
        image = draw.random((n, 8, 8, 1))
        return {"image": image, "label": (image[..., 0] > 0.5).astype(int)}
    return parts(make)


def below_zero():
    return parts(lambda draw, n: {"image": draw.random((n, 4)), "label": np.arange(n) % 3 - 1})


def beyond_classes():
    return parts(lambda draw, n: {"image": draw.random((n, 4)), "label": np.array([0, 1, 7] * n)[:n]})


def of(net, data, **more):
    return Experiment(name="own", model=ModelConfig(name=object_reference(net)),
        data=DataConfig(name=object_reference(data), batch=16, **more))


def flat() -> Experiment:
    return of(Flat, features)


def masks() -> Experiment:
    return of(Segment, masked)


def shifted_masks() -> Experiment:
    return of(Segment, masked, shift=1)


def pixels() -> Experiment:
    return of(PerPixelLabels, labelled_pixels)


def beyond() -> Experiment:
    return of(Flat, beyond_classes)


def negative() -> Experiment:
    return of(Flat, below_zero)
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


def train(job, file, name, tmp_path, *words):
    runs = tmp_path / "runs"
    code, _, said = job.call("train", f"{file}:{name}", f"run.dir={runs}", *words)
    return code, said, runs.exists()


@pytest.mark.parametrize("name", ["flat", "masks"])
def test_samples_that_are_no_pictures_train_as_they_are(job, file, tmp_path, name):
    assert train(job, file, name, tmp_path)[0] == 0


def test_masks_of_ones_own_move_with_their_images(job, file, tmp_path):
    words = "data.augment=flip,rotate90,roll:2,noise:0.1"
    assert train(job, file, "masks", tmp_path, words)[0] == 0


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("flat", ["data.shift=1"], "are for images [H, W, C]"),
        ("shifted_masks", [], "nothing can move into mask from outside"),
        ("masks", ["data.augment=crop:9"], "crop:8x8"),
        ("pixels", [], "losses of 16 samples are [16, 8, 8]"),
        ("negative", [], "label = -1 in sample 0"),
        ("beyond", [], "label = 7 in sample 2"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    job, file, tmp_path, name, words, said
):
    code, text, wrote = train(job, file, name, tmp_path, *words)
    assert (code, wrote) == (2, False)
    assert said in text
    assert "remedy" in text


@pytest.mark.parametrize(
    ("wrong", "values"), [(-1, "label = -1 in sample 40"), (7, "8 in the data")]
)
def test_labels_of_a_file_that_are_no_class_are_refused(job, tmp_path, wrong, values):
    label = np.arange(64) % 3
    label[40] = wrong
    image = np.random.default_rng(0).random((64, 16, 16, 1)).astype(np.float32)
    parts = {"train_image": image, "test_image": image[:16], "test_label": label[:16]}
    np.savez(tmp_path / "x.npz", train_label=label, **parts)
    words = (f"data.name=numpy:{tmp_path}/x.npz", "model.classes=3", "data.batch=16")
    runs = tmp_path / "runs"
    code, _, said = job.call("train", "digits", *words, f"run.dir={runs}")
    assert code == 2
    assert values in said
    assert not runs.exists()


def test_nothing_is_augmented_unless_it_is_asked_for():
    assert DataConfig().shift == 0
    assert Experiment(name="own").data.shift == 0
    # Of its own data set the experiment knows that images may be moved.
    assert resolve_config("digits").config.data.shift == 1


@pytest.mark.parametrize("data", ["numpy:my.npz", "my.py:samples", "folder", "volumes"])
def test_what_an_experiment_asks_for_is_not_for_data_of_ones_own(data):
    own = resolve_config("digits", [f"data.name={data}"])
    assert own.config.data.shift == 0
    typed = resolve_config("digits", [f"data.name={data}", "data.shift=2"])
    assert typed.config.data.shift == 2
    flipped = resolve_config("digits", [f"data.name={data}", "data.augment=flip"])
    assert flipped.config.data.augment == ("flip",)
