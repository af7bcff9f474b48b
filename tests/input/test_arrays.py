"""Arrays of labelled images are read from IDX files or an archive, or refused."""

import gzip
import struct

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data

NAMES = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}


def arrays():
    rng = np.random.default_rng(0)
    counts = {"train": 6, "test": 4}
    found = {}
    for part, n in counts.items():
        found[f"{part}_x"] = rng.integers(0, 256, (n, 8, 4)).astype(np.uint8)
        found[f"{part}_y"] = rng.integers(0, 3, n).astype(np.uint8)
    return found


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + (
        array.tobytes()
    )


@pytest.fixture
def folder(tmp_path):
    """Two files as they are, two packed: both lie about."""
    for key, array in arrays().items():
        name, content = NAMES[key], idx(array)
        if key.endswith("y"):
            name, content = f"{name}.gz", gzip.compress(content)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def opened(path):
    return open_data(DataConfig(name="arrays", path=str(path)))


def assert_are_the_arrays(splits):
    for part, split in zip(("train", "test"), splits, strict=True):
        ids = np.arange(len(split))[::-1]
        got, want = split.get(ids), arrays()
        images, labels = want[f"{part}_x"][ids], want[f"{part}_y"][ids]
        np.testing.assert_array_equal(
            got["image"], images[..., None].astype(np.float32) / 255
        )
        np.testing.assert_array_equal(got["label"], labels)
        assert (got["image"].dtype, got["label"].dtype) == (np.float32, np.int32)


def test_idx_files_and_an_archive_are_the_same_samples(folder, tmp_path_factory):
    packed = tmp_path_factory.mktemp("packed")
    np.savez(packed / "clothes.npz", **arrays())
    found = [opened(path) for path in (folder, packed, packed / "clothes.npz")]
    for splits in found:
        assert_are_the_arrays(splits)
    assert len({splits[0].fingerprint for splits in found}) == 1
    assert found[0][0].fingerprint != found[0][1].fingerprint
    highest = max(arrays()["train_y"].max(), arrays()["test_y"].max())
    assert found[0][0].classes == found[0][1].classes == highest + 1


def test_colour_keeps_its_channels(tmp_path):
    colour = {key: x.repeat(3).reshape(*x.shape, 3) for key, x in arrays().items()}
    np.savez(
        tmp_path / "a.npz", **arrays() | {k: colour[k] for k in colour if "x" in k}
    )
    train, _ = opened(tmp_path)
    assert train.get(np.arange(2))["image"].shape == (2, 8, 4, 3)


def test_images_are_made_smaller_by_the_mean_of_squares(tmp_path):
    square = {k: x.repeat(2, 2) if "x" in k else x for k, x in arrays().items()}
    np.savez(tmp_path / "a.npz", **square)
    config = DataConfig(name="arrays", path=str(tmp_path), size=4)
    got = open_data(config)[0].get(np.arange(6))["image"][..., 0]
    want = square["train_x"].reshape(6, 4, 2, 4, 2).mean((2, 4))
    np.testing.assert_allclose(255 * got, np.rint(want), atol=1e-4)
    with pytest.raises(BadInput, match=r"8 x 8 are not cut to 3 x 3"):
        open_data(DataConfig(name="arrays", path=str(tmp_path), size=3))


def test_what_is_missing_is_named_with_what_to_type(folder, tmp_path):
    with pytest.raises(BadInput, match=r"data.path is empty"):
        opened("")
    with pytest.raises(BadInput, match="holds nothing"):
        opened(tmp_path / "none")
    (folder / f"{NAMES['test_y']}.gz").unlink()
    with pytest.raises(BadInput, match=f"no {NAMES['test_y']} and no") as refused:
        opened(folder)
    assert "data.path=FOLDER" in str(refused.value)


def test_files_that_are_cut_or_something_else_are_refused(folder):
    images, labels = folder / NAMES["train_x"], folder / f"{NAMES['train_y']}.gz"
    whole, packed = images.read_bytes(), labels.read_bytes()
    for content in (b"", whole[:9], whole[:-1], b"\x00\x00\x0d" + whole[3:]):
        images.write_bytes(content)
        with pytest.raises(BadInput, match=r"train-images-idx3-ubyte is no whole IDX"):
            opened(folder)
    images.write_bytes(whole)
    labels.write_bytes(packed[:-9])
    with pytest.raises(BadInput, match=r"train-labels-idx1-ubyte.gz is no whole IDX"):
        opened(folder)


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_y": np.zeros(5, np.uint8)},
        {"train_y": np.full(6, -1)},
        {"train_y": np.zeros(6, np.float32)},
        {"test_x": np.zeros((4, 8, 4), np.float32)},
        {"test_x": np.zeros((0, 8, 4), np.uint8), "test_y": np.zeros(0, np.uint8)},
    ],
)
def test_arrays_that_are_no_images_with_labels_are_refused(tmp_path, wrong):
    np.savez(tmp_path / "a.npz", **arrays() | wrong)
    with pytest.raises(BadInput, match=r"uint8 \[N, H, W\]"):
        opened(tmp_path)


def test_an_archive_without_one_of_the_arrays_is_refused(tmp_path):
    held = arrays()
    del held["test_y"]
    np.savez(tmp_path / "a.npz", **held)
    with pytest.raises(BadInput, match="test_y"):
        opened(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"no archive")
    with pytest.raises(BadInput, match=r"a.npz"):
        opened(tmp_path)
