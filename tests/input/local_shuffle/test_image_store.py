"""Hosts keep compressed images as they are, and see of each what they would see."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.input import Keep, Partial
from jaxdist.input.batch_assembly import TrainBatchAssembler
from jaxdist.input.image_files import DecodedImages, EncodedImageSource
from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer
from jaxdist.input.local_shuffle.partial import order_from_config
from jaxdist.input.local_shuffle.setup import SampleStoreRuntime
from jaxdist.input.local_shuffle.source import (
    make_local_shuffle_source,
    max_retention_steps,
)
from jaxdist.input.local_shuffle.store import ByteStore, make_store

COUNT, BATCH, HOSTS = 64, 16, 2
ORDER = order_from_config(
    Partial(exchange_fraction=0.5, partitions=4), num_samples=COUNT, batch=BATCH, seed=5
)


def png(number):
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (9 + number % 5, 11, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


class Encoded:
    """Images in memory, of several sizes, that count how often they are read."""

    classes, fingerprint, remedy = 10, "these", "another file"

    def __init__(self):
        self.files, self.read_ids = [png(i) for i in range(COUNT)], []

    def __len__(self):
        return COUNT

    def read(self, ids):
        self.read_ids += ids
        return [(self.files[i], i % 10) for i in ids]

    def name(self, sample):
        return f"image {sample}"


@pytest.fixture
def pictures():
    return DecodedImages(Encoded(), (8, 8, 3))


def recipe_of(source):
    return TrainBatchAssembler(source=source, order=ORDER)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_is_seen_of_kept_images_is_what_would_be_seen(pictures, where, tmp_path):
    """Another part of each in every epoch, as its seed, epoch and id say."""
    keep = Keep(folder=tmp_path if where == "disk" else None)
    plain, rows = recipe_of(pictures), np.arange(BATCH)
    kept = SampleStoreRuntime(pictures, ORDER, rows, keep, 0)
    recipe = kept.assembler(recipe_of)
    pictures._encoded.read_ids.clear()
    batches = [recipe(step, rows) for step in range(12)]
    assert pictures._encoded.read_ids == []
    for step, batch in enumerate(batches):
        want = plain(step, rows)
        assert all(np.array_equal(batch[key], want[key]) for key in want)
    assert not np.array_equal(batches[0]["image"], batches[4]["image"])
    kept.close()


def test_hosts_bring_each_other_images(pictures):
    like, hosts = pictures.stored.get(np.zeros(1, int)), []
    for host in range(HOSTS):
        own = EncodedImageSource(pictures._encoded)
        hosts.append(
            make_local_shuffle_source(
                own, ORDER, host=host, num_hosts=HOSTS, folder=None
            )
        )
    servers = [PeerServer(host.store, "127.0.0.1:0") for host in hosts]
    for host in hosts:
        host.fetcher = PeerClient(addresses=[s.address for s in servers], example=like)
        host.retention_steps = max_retention_steps(ORDER)
        host.fill_store(0)
    for step in range(12):
        for host, rows in zip(hosts, np.split(np.arange(BATCH), HOSTS), strict=True):
            seen = recipe_of(pictures.over(host))(step, rows)
            want = recipe_of(pictures)(step, rows)
            assert np.array_equal(seen["image"], want["image"])
        for host in hosts:
            host.exchange(step)
    share = COUNT // HOSTS
    for host, server in zip(hosts, servers, strict=True):
        assert host.fetcher.fetched_count == host.counts.received > 0
        assert (host.counts.dataset_reads, host.fetcher.corrupt_count) == (0, 0)
        assert host.store.peak_count <= share + 2 * BATCH // HOSTS
        host.fetcher.close()
        server.shutdown()


LIKE = {"file": np.array([b""], object), "label": np.zeros(1, np.int32)}


def some(ids):
    files = np.empty(len(ids), object)
    files[:] = [bytes([i]) * (i + 1) + b"\0" for i in ids]
    return {"file": files, "label": np.array(ids, np.int32)}


def test_a_store_of_files_is_there_again(tmp_path):
    ids = np.array([3, 7, 40])
    assert ByteStore(LIKE, 5, tmp_path, "these").put(ids, some(ids)) == 3
    again = ByteStore(LIKE, 5, tmp_path, "these")
    assert again.ids().tolist() == [3, 7, 40]
    found, good = again.get(np.array([40, 5, 3]))
    assert good.tolist() == [True, False, True]
    assert found["file"][0] == bytes([40]) * 41 + b"\0"
    assert found["label"].tolist() == [40, 0, 3]
    assert again.checksums(ids).tolist() == again.checksums(ids).tolist()
    assert len(ByteStore(LIKE, 5, tmp_path, "others")) == 0
    assert list(tmp_path.glob("*.bin")) == []


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "longer"])
def test_a_damaged_file_is_taken_for_gone(tmp_path, harm):
    ByteStore(LIKE, 5, tmp_path).put(np.array([7]), some([7]))
    path = tmp_path / "7.bin"
    data = bytearray(path.read_bytes())
    data[-9] ^= harm == "flip"
    kept = {"cut": data[:-3], "empty": b"", "longer": data + b"x"}.get(harm, data)
    path.write_bytes(kept)
    store = ByteStore(LIKE, 5, tmp_path)
    assert not store.get(np.array([7]))[1].any()
    assert (store.corrupt_count, len(store)) == (1, 0)
    store.put(np.array([7]), some([7]))
    assert store.get(np.array([7]))[1].all()


FULL = """
import resource, sys, warnings
import numpy as np
from pathlib import Path
from jaxdist.input.local_shuffle.store import ByteStore
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
files = np.array([b"a" * 10, b"b" * 2000, b"c" * 20, b"d" * 3000], object)
store = ByteStore({"file": files[:1]}, 9, Path(sys.argv[1]))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    kept = store.put(np.arange(4), {"file": files})
print(kept, store.ids().tolist(), len(said), said[0].message)
"""


def test_a_file_without_room_is_left_out(tmp_path):
    """A process that may write 1,000 B a file; said once."""
    words = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 [0, 2] 1 ")
    assert "is full with 1 samples" in done.stdout


def test_a_folder_that_is_a_file_is_refused(pictures, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be kept in"):
        make_store(pictures.stored, 9, tmp_path / "file" / "store")


@pytest.mark.system
def test_a_full_disk_holds_what_it_can(tmp_path):
    """A file system of 1 MiB, for files of 4 MB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    subprocess.run(mount, check=True)
    try:
        files = np.empty(400, object)
        files[:] = [bytes([i % 251]) * 10_000 for i in range(400)]
        store = ByteStore({"file": files[:1]}, 400, tmp_path / "store")
        with pytest.warns(JaxdistWarning, match="is full with"):
            kept = store.put(np.arange(400), {"file": files})
        assert 50 < kept < 105
        found, good = store.get(store.ids())
        assert good.all()
        assert found["file"].tolist() == files[store.ids()].tolist()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
