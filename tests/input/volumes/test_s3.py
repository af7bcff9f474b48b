"""Zarr in a bucket of a real server with Amazon's interface, in a process of its own."""

import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from volume_files import volumes, write_zarr_group

from jaxdist.core.errors import BadInput, SourceFailedError
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import open_data
from jaxdist.launch.launchers.processes.loopback import free_port

FEATURES = {
    "image": Feature(shape=(16, 16, 16, 1)),
    "mask": Feature(shape=(16, 16, 16), upper_bound=3),
}


class Bucket:
    """Puts objects into a bucket by HTTP, as any client may."""

    def __init__(self, address):
        self.address = address
        self.put("", b"")

    def put(self, key, content):
        url = f"{self.address}/scans/{key}".rstrip("/")
        # urllib would call it a form, which the server parses.
        kind = {"Content-Type": "application/octet-stream"}
        asked = urllib.request.Request(url, content, kind, method="PUT")
        with urllib.request.urlopen(asked, timeout=20):
            pass

    def upload(self, folder, prefix):
        for file in Path(folder).rglob("*"):
            if file.is_file():
                inside = file.relative_to(folder).as_posix()
                self.put(f"{prefix}/{inside}", file.read_bytes())


@pytest.fixture(scope="module")
def bucket():
    port = free_port()
    words = sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, **quiet) as server:
        yield started(f"http://127.0.0.1:{port}")
        server.terminate()


def started(address):
    """Return a bucket of a server, as soon as it answers."""
    for _ in range(600):
        try:
            return Bucket(address)
        except URLError:
            time.sleep(0.1)
    raise TimeoutError(address)


@pytest.fixture
def opened(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anyone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.address)
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
