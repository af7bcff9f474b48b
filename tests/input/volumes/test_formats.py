"""Volumes are the same samples in every format, whole and by slab."""

import os
import pickle
import resource

import numpy as np
import pytest
from volume_files import WRITERS, volumes

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import is_known, is_own_data, open_data
from jaxdist.input.sample_validation import check_source
from jaxdist.input.sources import ArraySource, SlabSource

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


class Scans:
    """A source of one's own that reads parts."""

    fingerprint = "scans"

    def __init__(self, array, part=()):
        self.array, self.part = array, part
        self.template = {"image": array[:1]}

    def __len__(self):
        return len(self.array)

    def get(self, ids):
        return {"image": self.array[(ids, *self.part)]}

    def slab(self, parts):
        return Scans(self.array, parts["image"])


class Halved(ArraySource):
    def get(self, ids):
        return {key: array / 2 for key, array in super().get(ids).items()}


def test_a_source_of_ones_own_is_cut_and_checked():
    array = np.random.default_rng(0).random((4, 8, 3))
    checked = check_source(Scans(array))
    assert isinstance(checked, SlabSource)
    cut = checked.slab({"image": (slice(2, 5), slice(0, 3))})
    np.testing.assert_array_equal(cut.get(np.array([3]))["image"], array[[3], 2:5])
    cut._source.array = array[:, :, :1]
    with pytest.raises(BadInput, match="another shape than that of its first sample"):
        cut.get(np.array([3]))
    # What is inherited of arrays in memory does not do what `get` does.
    assert not isinstance(check_source(Halved({"x": array})), SlabSource)


@pytest.mark.parametrize("kind", ["hdf5 files", "zarr samples", "nifti", "npy files"])
def test_more_files_than_a_process_can_hold_open(kind, tmp_path):
    found = volumes((2, 2, 2, 1), {"train": 60, "test": 1})
    name = WRITERS[kind](tmp_path, found)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        train, _ = open_data(DataConfig(name=name), FEATURES)
        got = train.get(np.arange(60))
        assert len(train.fingerprint) == 64
        # What a worker process is sent are names, and no volumes.
        assert len(pickle.dumps(train)) < 100_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    want = found["train"]["image"][np.argsort([f"case{i}." for i in range(60)])]
    np.testing.assert_array_equal(got["image"], want)


def test_fingerprints_name_the_content_and_survive_a_worker(stored):
    name, _ = stored
    train, test = open_data(DataConfig(name=name), FEATURES)
    again, _ = open_data(DataConfig(name=name), FEATURES)
    assert train.fingerprint == again.fingerprint != test.fingerprint
    sent = pickle.loads(pickle.dumps(train))
    ids = np.array([1])
    np.testing.assert_array_equal(sent.get(ids)["mask"], train.get(ids)["mask"])
