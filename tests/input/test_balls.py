"""Balls: masks and images of the ids alone, brighter than the noise around them."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.balls import open_balls
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import open_data


def features(*image, classes=3):
    mask = Feature(shape=image[:-1], upper_bound=classes)
    return {"image": Feature(shape=image), "mask": mask}


@pytest.mark.parametrize("image", [(16, 12, 1), (8, 16, 8, 2)])
def test_a_sample_is_a_function_of_its_id(image):
    train, test = open_balls(features(*image), 16)
    assert (len(train), len(test)) == (16, 2)
    some, one = train.get(np.array([3, 5, 3])), train.get(np.array([5]))
    assert some["image"].shape == (3, *image)
    assert (some["image"].dtype, some["mask"].dtype) == (np.float32, np.int32)
    for key in ("image", "mask"):
        np.testing.assert_array_equal(some[key][1], one[key][0])
        np.testing.assert_array_equal(some[key][0], some[key][2])
        assert (some[key][0] != some[key][1]).any()
        assert (test.get(np.array([0]))[key] != train.get(np.array([0]))[key]).any()
    assert train.fingerprint != test.fingerprint


def test_classes_are_brightness_over_noise():
    train, _ = open_balls(features(32, 32, 1), 32)
    every = train.get(np.arange(32))
    assert set(np.unique(every["mask"])) == {0, 1, 2}
    image, mask = every["image"][..., 0], every["mask"]
    assert image[mask == 0].max() <= 0.5
    assert (image[mask == 2] == 1).all()
    assert 0.02 < (mask > 0).mean() < 0.8


def test_the_size_is_that_of_images_and_masks():
    config = DataConfig(name="balls", size=24, samples=8)
    train, _ = open_data(config, features(16, 16, 1))
    sample = train.get(np.array([0]))
    assert sample["image"].shape == (1, 24, 24, 1)
    assert sample["mask"].shape == (1, 24, 24)


def test_a_field_is_the_image_without_its_noise():
    config = DataConfig(name="balls", size=24, samples=8)
    spec = {"image": Feature(shape=(16, 16, 1)), "target": Feature(shape=(16, 16, 2))}
    train, test = open_data(config, spec)
    sample = train.get(np.array([0, 1]))
    image, target = sample["image"], sample["target"]
    assert (target.shape, target.dtype) == ((2, 24, 24, 2), np.float32)
    np.testing.assert_array_equal(target[..., 0], target[..., 1])
    lit = target[..., :1] > 0.5
    np.testing.assert_array_equal(image[lit], target[..., :1][lit])
    assert image[target[..., :1] == 0].max() <= 0.5
    assert train.fingerprint != test.fingerprint


def test_networks_without_masks_are_refused():
    with pytest.raises(BadInput, match="balls are images with masks") as refused:
        open_balls({"image": Feature(shape=(8, 8, 1)), "label": Feature()}, 8)
    assert "label" in refused.value.values
    with pytest.raises(BadInput, match="balls are images"):
        open_balls(features(8, 8, 1, classes=1), 8)
