"""What a data set has is held against what the network is trained on."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.clips import Clips
from jaxdist.input.sources import ArraySource
from jaxdist.input.text import open_text
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.batch_spec import (
    batch_shapes,
    fit_model_config,
    source_vocabulary,
)
from jaxdist.models.registry import objective_for


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("to be or not to be: " * 40)
    return open_text(str(path), context=16)[0]


def experiment(*words):
    return resolve_config("characters", ["data.context=16", *words]).config


def shapes(config, source):
    return batch_shapes(config, objective_for(config.model), source)


def test_text_gives_tokens_and_targets(text):
    found = shapes(experiment("data.batch=4"), text)
    assert {key: (s.shape, s.dtype.name) for key, s in found.items()} == {
        "tokens": ((4, 16), "int32"),
        "target": ((4, 16), "int32"),
        "id": ((4,), "int32"),
    }


def test_images_give_images_and_labels():
    images = ArraySource({"image": np.zeros((9, 8, 6, 1)), "label": np.arange(9)})
    found = shapes(resolve_config("digits", ["data.batch=4"]).config, images)
    assert {key: (s.shape, s.dtype.name) for key, s in found.items()} == {
        "image": ((4, 8, 6, 1), "float32"),
        "label": ((4,), "int32"),
        "id": ((4,), "int32"),
    }


def test_a_network_for_images_is_not_trained_on_text(text):
    with pytest.raises(
        BadInput, match="text has tokens, target, no image, label"
    ) as no:
        shapes(experiment("model.name=resnet8"), text)
    assert no.value.remedy[0] == "arrays called image, label in text"


def test_what_is_left_open_comes_from_the_text(text):
    model = fit_model_config(experiment(), text)
    assert (
        (model.vocabulary, model.context)
        == (8, 16)
        == (len(source_vocabulary(text)), 16)
    )
    given = fit_model_config(
        experiment("model.vocabulary=100", "model.context=32"), text
    )
    assert (given.vocabulary, given.context) == (100, 32)


@pytest.mark.parametrize(("key", "least"), [("vocabulary", 8), ("context", 16)])
def test_a_network_without_room_is_refused(text, key, least):
    with pytest.raises(BadInput) as refused:
        fit_model_config(experiment(f"model.{key}=5"), text)
    assert f"model.{key}={least}, or model.{key}=None" in str(refused.value)
    fit_model_config(experiment(f"model.{key}={least}"), text)
    fit_model_config(experiment(f"model.{key}=None"), text)


def test_images_leave_the_network_as_it_is():
    images = ArraySource({"image": np.zeros((9, 8, 8, 1)), "label": np.arange(9)})
    config = resolve_config("digits", []).config
    assert fit_model_config(config, images) == config.model
    assert source_vocabulary(images) == ""


@pytest.fixture(scope="module")
def clips():
    known = ("<padding>", "<begin>", "<end>", "up")
    return Clips(np.zeros((9, 5, 16, 8, 1), np.uint8), ["up"] * 9, known, 4)


def test_clips_give_clips_words_and_targets(clips):
    config = resolve_config("captions", ["data.batch=4"]).config
    assert {
        key: (s.shape, s.dtype.name) for key, s in shapes(config, clips).items()
    } == {
        "clip": ((4, 5, 16, 8, 1), "float32"),
        "words": ((4, 4), "int32"),
        "target": ((4, 4), "int32"),
        "id": ((4,), "int32"),
    }


def test_clips_give_the_vocabulary_alone(clips):
    model = fit_model_config(resolve_config("captions", []).config, clips)
    assert (model.vocabulary, model.context) == (4, None)
    with pytest.raises(BadInput, match=r"model\.vocabulary = 3, 4 words and signs"):
        fit_model_config(
            resolve_config("captions", ["model.vocabulary=3"]).config, clips
        )


def test_a_network_for_other_frames_is_refused(clips):
    with pytest.raises(BadInput, match=r"model\.channels=1"):
        shapes(resolve_config("captions", ["model.channels=3"]).config, clips)
