"""Volumes of any format become one Zarr group, whole or not at all."""

import json
import subprocess

import nibabel
import numpy as np
import pytest
from volume_files import volumes, write_hdf5, write_nifti, write_npy_files

from jaxdist.core.errors import BadInput
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.registry import is_known, open_data
from jaxdist.input.volume_builder import prepare_volumes
from jaxdist.launch.cli.main import main

FEATURES = {
    "image": Feature(shape=(16, 16, 16, 1)),
    "mask": Feature(shape=(16, 16, 16), upper_bound=3),
}


def prepared(source, folder, **how):
    return prepare_volumes(source, "scans", folder, renames={}, **how)


@pytest.mark.parametrize("write", [write_hdf5, write_nifti, write_npy_files])
def test_what_is_prepared_is_what_was_there(write, tmp_path):
    found = volumes()
    name = write(tmp_path / "v.h5", found)
    assert prepared(name, tmp_path / "data") == {"train": 5, "test": 3}
    for config in (
        DataConfig(name="scans", dir=str(tmp_path / "data")),
        DataConfig(name=f"zarr:{tmp_path / 'data' / 'scans'}"),
    ):
        assert is_known(config)
        for source, arrays in zip(open_data(config, FEATURES), found.values()):
            got = source.get(np.arange(len(source)))
            for key, array in arrays.items():
                assert got[key].dtype == array.dtype
                np.testing.assert_array_equal(got[key], array)
    words = ["sha256sum", "--quiet", "-c", "SHA256SUMS"]
    subprocess.run(words, cwd=tmp_path / "data" / "scans", check=True)
    listed = json.loads((tmp_path / "data" / "scans" / "zarr.json").read_text())
    assert "train/image" in listed["consolidated_metadata"]["metadata"]
    # One file for each array of a sample.
    files = [p for p in (tmp_path / "data/scans/train/mask").rglob("*") if p.is_file()]
    assert len(files) == 5 + 1
    with pytest.raises(BadInput, match="there is a data set scans"):
        prepared(name, tmp_path / "data")


def test_volumes_of_unlike_sizes_are_cut_and_filled(tmp_path):
    name = write_nifti(tmp_path / "n", volumes())
    odd = np.arange(4 * 8 * 5, dtype=np.float32).reshape(4, 8, 5) + 1  # [X, Y, Z]
    for key, array in (("image", odd), ("mask", np.ones((4, 8, 5), np.uint8))):
        file = tmp_path / "n" / "train" / key / "case1.nii"
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), file)
    with pytest.raises(BadInput, match="unlike sizes") as caught:
        prepared(name, tmp_path / "data")
    assert "--size 8,6,4" in caught.value.remedy[0]
    assert not (tmp_path / "data").exists()
    prepared(name, tmp_path / "data", size=(8, 6, 4))
    config = DataConfig(name="scans", dir=str(tmp_path / "data"))
    got = open_data(config, FEATURES)[0].get(np.array([1]))
    # 5 slices of 8 x 4: 3 more around them, and a row less on both sides.
    np.testing.assert_array_equal(got["image"][0, 1:6, ..., 0], odd.T[:, 1:7])
    assert (got["image"][0, [0, 6, 7]] == 1).all()
    assert got["mask"][0].sum(axis=(1, 2)).tolist() == [0, 24, 24, 24, 24, 24, 0, 0]


def test_what_cannot_be_prepared_leaves_nothing(tmp_path):
    found = volumes()
    found["test"]["image"][1, 2, 3, 1] = np.inf
    name = write_npy_files(tmp_path / "n", found)
    with pytest.raises(
        BadInput, match="image of sample 1 cannot be prepared"
    ) as caught:
        prepared(name, tmp_path / "data")
    assert "case1.npy: inf at [2, 3, 1, 0]" in caught.value.values
    assert list((tmp_path / "data").iterdir()) == []
    mask = tmp_path / "n" / "train" / "mask" / "case2.npy"
    np.save(mask, np.zeros((8, 6, 5), np.uint8))
    for how in ({}, {"size": (8, 6, 4)}):
        with pytest.raises(BadInput, match="another size than its image"):
            prepared(name, tmp_path / "data", **how)
    for name in ("nifti:", "images:here", "here"):
        with pytest.raises(BadInput, match="names no volumes"):
            prepared(name, tmp_path / "data")


def test_the_command_says_what_it_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = volumes()
    for arrays in found.values():
        arrays["seg"] = arrays.pop("mask")
    name = write_hdf5(tmp_path / "v.h5", found)
    words = ["prepare", name, "--name", "scans", "--keys", "mask=seg"]
    assert main([*words, "--chunk", "2,6,4", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["train"], said["test"]) == (5, 3)
    inner = json.loads((tmp_path / "data/scans/train/mask/zarr.json").read_text())
    chunks = inner["codecs"][0]["configuration"]["chunk_shape"]
    assert chunks == [1, 2, 6, 4]
    for wrong in (("--size", "8,6"), ("--size", "8,a,4"), ("--chunk", "0,1,1")):
        assert main([*words[:2], "--name", "more", *wrong]) == 2
    assert main(["prepare", "photos", "--name", "more", "--size", "8,8,8"]) == 2
    assert main(["prepare", name, "--name", "Bad Name"]) == 2
    assert "--name my_bad_name" in capsys.readouterr().err
