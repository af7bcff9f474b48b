"""Zarr in a bucket of a real server with Amazon's interface, in a process of its own."""

import numpy as np
import pytest
from s3_server import s3_bucket
from volume_files import volumes, write_zarr_group

from jaxdist.core.errors import BadInput, SourceFailedError
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import open_data

FEATURES = {
    "image": Feature(shape=(16, 16, 16, 1)),
    "mask": Feature(shape=(16, 16, 16), upper_bound=3),
}


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket("scans") as bucket:
        yield bucket


@pytest.fixture
def opened(bucket, monkeypatch):
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return lambda name: open_data(DataConfig(name=f"zarr:s3://{name}"), FEATURES)


def test_samples_of_a_bucket_are_those_of_the_folder(bucket, opened, tmp_path, capfd):
    found = volumes()
    write_zarr_group(tmp_path, found)
    bucket.upload(tmp_path, "whole")
    train, test = opened("scans/whole")
    for source, split in ((train, "train"), (test, "test")):
        ids = np.arange(len(source))
        for key, array in source.get(ids).items():
            np.testing.assert_array_equal(array, found[split][key])
    # Credentials of the environment are enough: nothing is said of files that are not
    # there.
    assert capfd.readouterr().err == ""


def test_an_object_that_is_damaged_is_named(bucket, opened, tmp_path):
    write_zarr_group(tmp_path, volumes(), version=2)
    (tmp_path / "train" / "image" / "3.0.0.0.0").write_bytes(b"abc")
    bucket.upload(tmp_path, "damaged")
    train, _ = opened("scans/damaged")
    train.get(np.array([1, 2]))
    with pytest.raises(SourceFailedError, match="image of sample 3") as caught:
        train.get(np.array([1, 3]))
    assert "s3://scans/damaged/train/image[3]" in caught.value.values


def test_a_bucket_that_is_not_there_is_refused(opened):
    with pytest.raises(BadInput, match=r"volumes in|cannot be read") as caught:
        opened("nobody")
    assert "s3://nobody" in str(caught.value)
