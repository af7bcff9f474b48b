"""Volumes are the same samples in every format, whole and by slab."""

import pickle

import numpy as np
import pytest
from volume_files import WRITERS, volumes

from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import is_known, is_own_data, open_data
from jaxdist.input.sources import SlabSource

FEATURES = {
    "image": Feature(shape=(16, 16, 16, 1)),
    "mask": Feature(shape=(16, 16, 16), upper_bound=3),
}
SLABS = {
    "image": (slice(2, 5), slice(0, 6), slice(1, 3), slice(0, 1)),
    "mask": (slice(2, 5), slice(0, 6), slice(1, 3)),
}


@pytest.fixture(params=WRITERS)
def stored(request, tmp_path):
    """Return data.name of volumes in a format, and the arrays."""
    found = volumes()
    return WRITERS[request.param](tmp_path, found), found


def test_samples_are_those_that_were_written(stored):
    name, found = stored
    config = DataConfig(name=name)
    assert is_known(config)
    assert is_own_data(config)
    for source, arrays in zip(open_data(config, FEATURES), found.values()):
        assert len(source) == len(arrays["image"])
        ids = np.array([2, 0, 2])
        got = source.get(ids)
        assert set(got) == {"image", "mask"}
        for key, array in arrays.items():
            assert got[key].dtype == array.dtype
            np.testing.assert_array_equal(got[key], array[ids])


def test_a_slab_is_a_part_of_each_sample_and_its_bytes_are_counted(stored):
    name, found = stored
    train, _ = open_data(DataConfig(name=name), FEATURES)
    assert isinstance(train, SlabSource)
    before = train.bytes_read
    cut = train.slab(SLABS)
    got = cut.get(np.array([4, 1]))
    for key, slab in SLABS.items():
        want = found["train"][key][[4, 1]][(slice(None), *slab)]
        np.testing.assert_array_equal(got[key], want)
    assert train.bytes_read - before == sum(array.nbytes for array in got.values())
    assert {k: x.shape[1:] for k, x in train.template.items()} == {
        "image": (8, 6, 4, 1),
        "mask": (8, 6, 4),
    }
    empty = {"image": (slice(8, 8), *SLABS["image"][1:])}
    assert train.slab(empty).get(np.array([0]))["image"].shape == (1, 0, 6, 2, 1)


def test_fingerprints_name_the_content_and_survive_a_worker(stored):
    name, _ = stored
    train, test = open_data(DataConfig(name=name), FEATURES)
    again, _ = open_data(DataConfig(name=name), FEATURES)
    assert train.fingerprint == again.fingerprint != test.fingerprint
    sent = pickle.loads(pickle.dumps(train))
    ids = np.array([1])
    np.testing.assert_array_equal(sent.get(ids)["mask"], train.get(ids)["mask"])
