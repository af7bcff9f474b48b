"""Synthetic samples have the shape that is wanted, and are functions of their id."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import open_data
from jaxdist.input.synthetic import SyntheticSource, open_synthetic

IMAGES = {"image": Feature(shape=(6, 5, 3)), "label": Feature(upper_bound=7)}
VOLUMES = {"image": Feature(shape=(4, 4, 4, 2)), "target": Feature(shape=(3,))}
TOKENS = {
    "tokens": Feature(shape=(9,), upper_bound=11),
    "target": Feature(shape=(9,), upper_bound=11),
}


@pytest.mark.parametrize("wanted", [IMAGES, VOLUMES, TOKENS])
def test_shapes_types_and_ranges_are_those_that_are_wanted(wanted):
    samples = SyntheticSource(wanted, 50).get(np.arange(50))
    assert samples.keys() == wanted.keys()
    for name, field in wanted.items():
        array = samples[name]
        assert array.shape == (50, *field.shape)
        if field.upper_bound is None:
            assert array.dtype == np.float32
            assert -1 <= array.min() < -0.9
            assert 0.9 < array.max() <= 1
        else:
            assert array.dtype == np.int32
            assert set(np.unique(array)) == set(range(field.upper_bound))


def test_a_sample_depends_on_its_id_alone():
    source = SyntheticSource(IMAGES, 50)
    whole = source.get(np.arange(50))
    some = SyntheticSource(IMAGES, 50).get(np.array([31, 2, 31], np.int32))
    for name, array in some.items():
        np.testing.assert_array_equal(array, whole[name][[31, 2, 31]])
    assert len(np.unique(whole["image"], axis=0)) == 50


def test_arrays_of_a_sample_are_unlike_each_other():
    sample = SyntheticSource(TOKENS, 1).get(np.array([0]))
    assert (sample["tokens"] != sample["target"]).any()


def test_held_out_samples_are_others():
    train, test = open_synthetic(IMAGES, 16)
    assert (len(train), len(test)) == (16, 2)
    first, held = train.get(np.arange(16))["image"], test.get(np.arange(2))["image"]
    assert all((sample != first).any(axis=(1, 2, 3)).all() for sample in held)
    assert train.fingerprint != test.fingerprint


def test_another_number_of_samples_is_another_data_set():
    assert (
        SyntheticSource(IMAGES, 3).fingerprint != SyntheticSource(IMAGES, 4).fingerprint
    )
    assert (
        SyntheticSource(IMAGES, 3).fingerprint
        != SyntheticSource(VOLUMES, 3).fingerprint
    )


def test_the_size_that_is_set_holds():
    train, _ = open_data(DataConfig(name="synthetic", size=8, samples=4), IMAGES)
    assert train.get(np.array([0]))["image"].shape == (1, 8, 8, 3)


def test_nothing_is_drawn_for_a_network_that_is_not_known():
    with pytest.raises(BadInput, match="synthetic data has no shape"):
        open_data(DataConfig(name="synthetic"))
