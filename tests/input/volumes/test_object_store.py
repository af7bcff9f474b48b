"""Zarr over HTTP: a server of one's own, its failures, and stores that are not there."""

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from volume_files import volumes, write_zarr_group

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import open_data
from jaxdist.input.volumes.zarr import ZarrStore

FEATURES = {
    "image": Feature(shape=(16, 16, 16, 1)),
    "mask": Feature(shape=(16, 16, 16), upper_bound=3),
}


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; says 503 as often as it is told, or 403 always."""

    def do_GET(self):
        if self.server.denies:
            self.send_error(403)
        elif self.server.failures > 0:
            self.server.failures -= 1
            self.send_error(503)
        else:
            self.server.asked.append(self.path)
            super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))
    ) as server:
        server.failures, server.denies, server.asked = 0, False, []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def opened(server, path="scans"):
    name = f"zarr:http://127.0.0.1:{server.server_port}/{path}"
    return open_data(DataConfig(name=name), FEATURES)


def test_samples_come_over_http_chunk_by_chunk(server, tmp_path):
    found = volumes()
    write_zarr_group(tmp_path / "scans", found)
    train, test = opened(server)
    assert (len(train), len(test)) == (5, 3)
    got = train.get(np.array([3, 1]))
    for key, array in got.items():
        np.testing.assert_array_equal(array, found["train"][key][[3, 1]])
    server.asked.clear()
    # Chunks have two rows: the slab lies in two of four.
    part = (slice(2, 6), slice(0, 6), slice(0, 4), slice(0, 1))
    train.slab({"image": part}).get(np.array([0]))
    chunks = {f"/scans/train/image/c/0/{row}/0/0/0" for row in (1, 2)}
    assert {path for path in server.asked if "/c/" in path} == chunks


def test_failures_for_a_while_are_tried_again(server, tmp_path):
    found = volumes()
    write_zarr_group(tmp_path / "scans", found)
    server.failures = 2
    train, _ = opened(server)
    server.failures = 1
    got = train.get(np.array([2]))["mask"]
    np.testing.assert_array_equal(got, found["train"]["mask"][[2]])


def test_names_in_consolidated_metadata_are_found(server, tmp_path):
    found = volumes()
    write_zarr_group(tmp_path / "scans", found)
    named = {}
    for split in found:
        (tmp_path / "scans" / split / "image").rename(
            tmp_path / "scans" / split / "raw"
        )
        for key in ("raw", "mask"):
            text = (tmp_path / "scans" / split / key / "zarr.json").read_text()
            named[f"{split}/{key}"] = json.loads(text)
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    listed = {"kind": "inline", "must_understand": False, "metadata": named}
    (tmp_path / "scans" / "zarr.json").write_text(
        json.dumps({**group, "consolidated_metadata": listed})
    )
    with pytest.raises(BadInput, match="train has no image") as caught:
        opened(server)
    assert caught.value.values == "arrays of train are mask, raw"


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_are_asked_for_once(server, tmp_path, version):
    write_zarr_group(tmp_path / "scans", volumes(), version=version)
    store = ZarrStore(f"http://127.0.0.1:{server.server_port}/scans")
    assert store.arrays(["train/image", "train/raw"]) == ["train/image"]
    assert len(server.asked) == len(set(server.asked))


def test_stores_that_are_not_there(server, tmp_path):
    with pytest.raises(BadInput, match="no volumes in http"):
        opened(server, "other")
    server.denies = True
    with pytest.raises(BadInput, match="cannot be read as Zarr") as caught:
        opened(server)
    assert "403" in caught.value.values
    assert any("AWS_ACCESS_KEY_ID" in each for each in caught.value.remedy)
    with pytest.raises(BadInput, match="is no address of a store") as caught:
        open_data(DataConfig(name="zarr:ftp://127.0.0.1/scans"), FEATURES)
    assert "s3://" in caught.value.remedy[0]
