"""Volumes are read from a folder of files, in the order of their names."""

import numpy as np
import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.registry import open_data


@pytest.fixture
def folder(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        (tmp_path / part).mkdir()
        for i in range(count):
            image = np.full((4, 4, 4, 1), i, np.float32)
            target = np.array([i, -i], np.float32)
            np.savez(tmp_path / part / f"{i}.npz", image=image, target=target)
    return tmp_path


def opened(path):
    return open_data(DataConfig(name="volumes", path=str(path)))


def test_a_folder_of_volumes_is_a_data_set(folder):
    train, test = opened(folder)
    assert (len(train), len(test)) == (3, 2)
    batch = train.get(np.array([2, 0]))
    assert batch["image"].shape == (2, 4, 4, 4, 1)
    assert batch["target"].tolist() == [[2, -2], [0, 0]]
    assert train.fingerprint != test.fingerprint


def test_folders_and_files_that_cannot_be_used(folder, tmp_path):
    with pytest.raises(BadInput, match=r"data.path is empty"):
        opened("")
    with pytest.raises(BadInput, match="0 in train, 0 in test"):
        opened(tmp_path / "none")
    train, _ = opened(folder)
    (folder / "train" / "0.npz").write_bytes(b"no archive")
    with pytest.raises(BadInput, match=r"0.npz is no volume"):
        train.get(np.array([0]))
    np.savez(folder / "train" / "1.npz", image=np.zeros(3))
    with pytest.raises(BadInput, match=r"np.savez"):
        train.get(np.array([1]))
