"""Arrays in NumPy's files are samples under their own names."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import is_known, open_data

ARRAYS = {
    "train_image": np.random.default_rng(0).random((30, 8, 8, 1)).astype(np.float32),
    "train_label": np.arange(30) % 3,
    "test_image": np.random.default_rng(1).random((6, 8, 8, 1)).astype(np.float32),
    "test_label": np.array([0, 1, 2, 3, 0, 1]),
}


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    if request.param == "folder":
        for name, array in ARRAYS.items():
            np.save(tmp_path / f"{name}.npy", array)
        return str(tmp_path)
    np.savez(tmp_path / "my.npz", **ARRAYS)
    return str(tmp_path / "my.npz")


def test_samples_are_those_of_the_arrays(path):
    train, test = open_data(DataConfig(name=f"numpy:{path}"))
    assert (len(train), len(test)) == (30, 6)
    found = train.get(np.array([7, 3]))
    assert set(found) == {"image", "label"}
    assert np.array_equal(found["image"], ARRAYS["train_image"][[7, 3]])
    assert found["label"].tolist() == [1, 0]
    same, _ = open_data(DataConfig(name="numpy", path=path))
    assert same.fingerprint == train.fingerprint != test.fingerprint


def test_labels_of_both_parts_are_classes(path):
    train, test = open_data(DataConfig(name=f"numpy:{path}"))
    assert train.classes == test.classes == 4


def test_arrays_without_labels_are_samples_too(tmp_path):
    clips = {"train_tokens": np.zeros((4, 5), int), "test_tokens": np.ones((2, 5), int)}
    np.savez(tmp_path / "my.npz", **clips)
    train, _ = open_data(DataConfig(name=f"numpy:{tmp_path / 'my.npz'}"))
    assert train.get(np.array([0]))["tokens"].shape == (1, 5)


WRONG = {
    "one part": {k: x for k, x in ARRAYS.items() if k.startswith("train")},
    "other keys": {**ARRAYS, "test_more": np.zeros(6)},
    "no part": {"image": np.zeros((3, 8))},
    "objects": {**ARRAYS, "train_label": np.array([object()] * 30)},
}


@pytest.mark.parametrize("kind", WRONG)
def test_other_arrays_are_refused(tmp_path, kind):
    np.savez(tmp_path / "my.npz", **WRONG[kind])
    with pytest.raises(BadInput, match="no arrays of samples") as caught:
        open_data(DataConfig(name=f"numpy:{tmp_path / 'my.npz'}"))
    assert "np.savez" in caught.value.remedy[0]


def test_a_label_below_0_is_named(tmp_path):
    wrong = {**ARRAYS, "train_label": np.arange(30) - 1}
    np.savez(tmp_path / "my.npz", **wrong)
    with pytest.raises(BadInput, match="out of range") as caught:
        open_data(DataConfig(name=f"numpy:{tmp_path / 'my.npz'}"))
    assert caught.value.values == "label = -1 in sample 0"


def test_lengths_that_differ_are_refused(tmp_path):
    np.savez(tmp_path / "my.npz", **{**ARRAYS, "train_label": np.arange(29)})
    with pytest.raises(BadInput, match="no data set") as caught:
        open_data(DataConfig(name=f"numpy:{tmp_path / 'my.npz'}"))
    assert caught.value.values == "image: 30, label: 29"


def test_a_file_that_is_not_there_is_named_with_one_that_is_spelled_alike(tmp_path):
    np.savez(tmp_path / "my.npz", **ARRAYS)
    with pytest.raises(BadInput, match="no file or folder") as caught:
        open_data(DataConfig(name=f"numpy:{tmp_path / 'mi.npz'}"))
    assert caught.value.remedy == (f"did you mean numpy:{tmp_path / 'my.npz'}?",)


@pytest.mark.parametrize("content", [b"", b"no zip"])
def test_what_is_no_file_of_numpy_is_refused(tmp_path, content):
    (tmp_path / "my.npz").write_bytes(content)
    with pytest.raises(BadInput, match="no arrays of samples"):
        open_data(DataConfig(name=f"numpy:{tmp_path / 'my.npz'}"))


def test_a_kind_stands_before_a_name():
    for name in ("numpy:my.npz", "numpy", "tfds:mnist", "tfds:imagenet2012:5.1.0"):
        assert is_known(DataConfig(name=name)), name
    for name in ("numpy:", "tfds:", "tfds:Not A Name"):
        assert not is_known(DataConfig(name=name)), name


def test_tfds_is_asked_by_its_own_name(tmp_path):
    says = []
    for name in ("tfds:mnist", "mnist"):
        with pytest.raises(BadInput) as caught:
            open_data(DataConfig(name=name, dir=str(tmp_path)))
        says.append(str(caught.value))
    assert says[0] == says[1]
