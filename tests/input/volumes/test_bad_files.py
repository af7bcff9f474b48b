"""Files that are no volumes are refused by name, before anything is read of the rest."""

import gzip
import shutil
import sys

import h5py
import nibabel
import numpy as np
import pytest
from volume_files import (
    volumes,
    write_hdf5,
    write_hdf5_files,
    write_nifti,
    write_npy_files,
    write_zarr,
    write_zarr_group,
    write_zarr_samples,
)

from jaxdist.core.errors import BadInput, SourceFailedError
from jaxdist.input.batch_assembly import TrainBatchAssembler
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import Feature
from jaxdist.input.order import SourceOrder
from jaxdist.input.registry import open_data
from jaxdist.input.sample_validation import SampleSpec

FEATURES = {
    "image": Feature(shape=(16, 16, 16, 1)),
    "mask": Feature(shape=(16, 16, 16), upper_bound=3),
}


def refused(name, match, features=FEATURES, **settings):
    with pytest.raises(BadInput, match=match) as caught:
        open_data(DataConfig(name=name, **settings), features)
    assert caught.value.rule
    assert caught.value.values
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "nifti"])
def test_a_path_without_volumes_says_how_they_lie(kind, tmp_path):
    for path in (tmp_path / "none", tmp_path):
        error = refused(f"{kind}:{path}", "no volumes in")
        assert "train/" in error.rule
        assert error.remedy[0].startswith(f"data.name={kind}:")
    assert refused(kind, "no volumes in data.path").values == "data.path is empty"


def test_files_of_another_format_are_named(tmp_path):
    write_nifti(tmp_path / "n", volumes())
    for kind in ("hdf5", "zarr", "numpy"):
        error = refused(f"{kind}:{tmp_path / 'n'}", "no volumes in")
        assert "there is test, train" in error.values
        assert error.remedy == (f"data.name=nifti:{tmp_path / 'n'}, as its files are",)
    (tmp_path / "scans").mkdir()
    error = refused(f"nifti:{tmp_path / 'scan'}", "no volumes in")
    assert error.remedy == (f"did you mean nifti:{tmp_path / 'scans'}?",)
    for slip, meant in (("nifty", "nifti"), ("npy", "numpy"), ("hdf", "hdf5")):
        with pytest.raises(BadInput) as caught:
            open_data(DataConfig(name=f"{slip}:scans"))
        assert caught.value.remedy == (f"did you mean data.name={meant}:scans?",)


def test_a_split_that_is_missing_is_named(tmp_path):
    name = write_zarr_group(tmp_path, {"train": volumes()["train"]})
    assert "none in test" in refused(name, "no volumes").values


def test_a_key_that_is_missing_is_named_with_those_there_are(tmp_path):
    found = volumes()
    for arrays in found.values():
        arrays["masks"] = arrays.pop("mask")
    error = refused(write_hdf5(tmp_path / "v.h5", found), "train has no mask")
    assert error.values == "arrays of train are image, masks"
    assert error.remedy == ("did you mean masks? data.keys=mask=masks",)
    config = DataConfig(name=f"hdf5:{tmp_path / 'v.h5'}", keys=("mask=masks",))
    train, _ = open_data(config, FEATURES)
    assert set(train.get(np.array([0]))) == {"image", "mask"}
    refused(config.name, "train has no segs", keys=("mask=segs",))
    error = refused(config.name, "maks, which the network", keys=("maks=masks",))
    assert error.remedy == ("did you mean mask? data.keys=mask=masks",)
    error = refused(config.name, "depth, which the network", keys=("depth=masks",))
    assert error.remedy == ("leave depth out of data.keys",)
    with pytest.raises(BadInput, match="names no array"):
        DataConfig(name=config.name, keys=("mask",))
    refused("digits", "has its own names", keys=("mask=masks",))


def test_one_file_without_a_key_is_named(tmp_path):
    name = write_hdf5_files(tmp_path / "h", volumes())
    with h5py.File(tmp_path / "h" / "train" / "case3.h5", "r+") as file:
        file.move("mask", "msk")
    error = refused(name, "case3.h5 has no mask")
    assert "image, msk" in error.values
    name = write_zarr_samples(tmp_path / "z", volumes())
    shutil.rmtree(tmp_path / "z" / "train" / "case2.zarr" / "mask")
    refused(name, "case2.zarr has no mask")
    name = write_nifti(tmp_path / "n", volumes())
    (tmp_path / "n" / "train" / "mask" / "case1.nii").unlink()
    error = refused(name, "train/mask has no case1")
    assert "5 files of image, 4 of mask" in error.values


def test_a_mask_of_another_size_and_volumes_of_unlike_sizes(tmp_path):
    name = write_npy_files(tmp_path / "n", volumes())
    mask = tmp_path / "n" / "train" / "mask" / "case3.npy"
    np.save(mask, np.zeros((8, 6, 5), np.uint8))
    error = refused(name, "mask of sample 3 has another size than its image")
    assert "case3.npy is [8, 6, 4, 1]" in error.values
    assert f"{mask} is [8, 6, 5]" in error.values
    name = write_nifti(tmp_path / "i", volumes())
    for key in ("image", "mask"):
        file = tmp_path / "i" / "test" / key / "case2.nii"
        nibabel.save(nibabel.Nifti1Image(np.zeros((4, 6, 9), "f4"), np.eye(4)), file)
    error = refused(name, "image is of unlike sizes")
    assert "case2.nii is [9, 6, 4, 1]" in error.values
    assert "--size 8,6,4" in error.remedy[0]


def test_lengths_that_differ(tmp_path):
    found = volumes()
    found["train"]["mask"] = found["train"]["mask"][:-1]
    error = refused(write_zarr_group(tmp_path, found), "do not go together")
    assert error.values == "image: 5, mask: 4"


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".h5", ".npy"])
def test_files_that_are_cut_short(suffix, tmp_path):
    write = {".h5": write_hdf5_files, ".npy": write_npy_files}.get(suffix)
    found = volumes()
    name = write(tmp_path, found) if write else write_nifti(tmp_path, found, suffix)
    file = next((tmp_path / "train").rglob(f"case4{suffix}"))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 3])
    if suffix != ".nii.gz":
        refused(name, "case4")
    file.write_bytes(b"nothing of the kind")
    refused(name, "case4")


def test_arrays_of_no_numbers_are_refused(tmp_path):
    name = write_npy_files(tmp_path / "n", volumes())
    np.save(tmp_path / "n" / "train" / "image" / "case1.npy", np.array(["a", "b"]))
    error = refused(name, "case1.npy is no whole .npy file")
    assert "dtype is <U1" in error.values


def test_colours_in_nifti_are_refused(tmp_path):
    name = write_nifti(tmp_path / "n", volumes())
    path = next((tmp_path / "n" / "train" / "image").iterdir())
    colours = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    nibabel.Nifti1Image(np.zeros((4, 4, 4), colours), np.eye(4)).to_filename(path)
    assert "dtype is" in refused(name, f"{path.name} is no whole NIfTI").values


def test_a_chunk_that_cannot_be_decoded_names_file_and_sample(tmp_path):
    found = volumes()
    # HDF5: the chunk's own bytes, found by h5py; Zarr: a file a chunk; gzip: its middle.
    with h5py.File(tmp_path / "v.h5", "w") as file:
        for split, arrays in found.items():
            for key, array in arrays.items():
                chunks = (1, *array.shape[1:])
                file.create_dataset(
                    f"{split}/{key}", data=array, chunks=chunks, compression="gzip"
                )
        at = file["train/image"].id.get_chunk_info(3).byte_offset
    with (tmp_path / "v.h5").open("r+b") as file:
        file.seek(at)
        file.write(bytes(100))
    zarr = write_zarr_group(tmp_path / "z", found, version=2)
    (tmp_path / "z" / "train" / "image" / "3.0.0.0.0").write_bytes(b"abc")
    nifti = write_nifti(tmp_path / "n", found, ".nii.gz")
    packed = tmp_path / "n" / "train" / "image" / "case3.nii.gz"
    content = bytearray(packed.read_bytes())
    content[len(content) // 2] ^= 0xFF
    packed.write_bytes(content)
    for name, shown in (
        (f"hdf5:{tmp_path / 'v.h5'}", "v.h5:train/image[3]"),
        (zarr, "z/train/image[3]"),
        (nifti, "case3.nii.gz"),
    ):
        train, _ = open_data(DataConfig(name=name), FEATURES)
        train.get(np.array([0, 1]))
        with pytest.raises(SourceFailedError, match="image of sample 3") as caught:
            train.get(np.array([1, 3]))
        assert shown in caught.value.values


@pytest.mark.parametrize("write", [write_npy_files, write_nifti, write_hdf5_files])
def test_a_file_that_is_cut_short_later_is_named(write, tmp_path):
    train, _ = open_data(DataConfig(name=write(tmp_path, volumes())), FEATURES)
    file = next((tmp_path / "train").rglob("case2.*"))
    file.write_bytes(file.read_bytes()[:400])
    with pytest.raises(BadInput) as caught:
        train.get(np.array([2]))
    assert "case2" in str(caught.value)


def test_a_bad_number_names_its_file(tmp_path):
    found = volumes()
    found["train"]["image"][2, 1, 1, 1] = np.nan
    found["train"]["mask"][4, 1, 1, 1] = 7
    train, _ = open_data(DataConfig(name=write_npy_files(tmp_path, found)), FEATURES)
    spec = SampleSpec(
        dtypes={"image": "float32", "mask": "int32"},
        floats="all",
        upper_bounds={"mask": 3},
    ).of(train)
    order = SourceOrder(num_samples=5, batch=5)
    make = TrainBatchAssembler(
        source=train, order=order, dtypes=spec.dtypes, checks=spec
    )
    with pytest.raises(BadInput, match="sample 2 is not finite") as caught:
        make(0, np.array([2]))
    assert "image of sample 2, " in caught.value.values
    assert "case2.npy holds nan" in caught.value.values
    with pytest.raises(BadInput, match="mask of sample 4 is out of range") as caught:
        make(0, np.array([4]))
    assert "case4.npy" in caught.value.values
    assert "mask = 7" in caught.value.values


@pytest.mark.parametrize(("kind", "package"), [("hdf5", "h5py"), ("nifti", "nibabel")])
def test_a_package_that_is_missing(kind, package, tmp_path, monkeypatch):
    name = {"hdf5": write_hdf5_files, "nifti": write_nifti}[kind](tmp_path, volumes())
    monkeypatch.setitem(sys.modules, package, None)
    error = refused(name, f"{package} is not installed")
    assert error.remedy == ('pip install "jaxdist[volumes]"',)


def test_channels_are_found_where_they_are(tmp_path):
    found = volumes((8, 6, 4, 2))
    images = {
        s: {**x, "image": np.moveaxis(x["image"], -1, 1)} for s, x in found.items()
    }
    two = {**FEATURES, "image": Feature(shape=(16, 16, 16, 2))}
    for write, path in ((write_zarr_group, "z"), (write_hdf5, "v.h5")):
        config = DataConfig(name=write(tmp_path / path, images), channel_dim="first")
        train, _ = open_data(config, two)
        part = (slice(1, 4), slice(0, 6), slice(2, 4), slice(0, 2))
        got = train.slab({"image": part}).get(np.array([3]))["image"]
        np.testing.assert_array_equal(got[0], found["train"]["image"][3][part])
    one = volumes()
    grey = {
        s: {"image": x["image"][..., 0], "mask": x["mask"][..., None]}
        for s, x in one.items()
    }
    train, _ = open_data(
        DataConfig(name=write_zarr_group(tmp_path / "g", grey)), FEATURES
    )
    got = train.get(np.array([1]))
    np.testing.assert_array_equal(got["image"], one["train"]["image"][[1]])
    np.testing.assert_array_equal(got["mask"], one["train"]["mask"][[1]])


def test_labels_are_counted_and_numbers_are_scaled(tmp_path):
    found = {
        split: {"image": x["image"], "label": np.arange(len(x["image"])) % 2 + 1}
        for split, x in volumes().items()
    }
    for write, path in ((write_zarr_group, "z"), (write_hdf5, "v.h5")):
        train, test = open_data(DataConfig(name=write(tmp_path / path, found)))
        assert train.classes == test.classes == 3
    found["train"]["label"][3] = -1
    error = refused(
        write_hdf5(tmp_path / "w.h5", found), "sample 3 is out", features={}
    )
    assert "w.h5:train/label[3] = -1" in error.values
    for split in ("train", "test"):
        (tmp_path / "n" / split / "image").mkdir(parents=True)
        for suffix in (".nii", ".nii.gz"):
            image = nibabel.Nifti1Image(np.full((4, 6, 8), 5, np.int16), np.eye(4))
            image.header.set_slope_inter(2, -1)
            nibabel.save(
                image, tmp_path / "n" / split / "image" / f"a{suffix[-2:]}{suffix}"
            )
    train, _ = open_data(DataConfig(name=f"nifti:{tmp_path / 'n'}"))
    got = train.get(np.array([0, 1]))["image"]
    want = np.asanyarray(nibabel.load(tmp_path / "n/train/image/agz.nii.gz").dataobj)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, float(want[0, 0, 0]))


def test_gzip_is_told_apart_by_its_checksum(tmp_path):
    name = write_nifti(tmp_path, volumes(), ".nii.gz")
    before = open_data(DataConfig(name=name), FEATURES)[0].fingerprint
    file = tmp_path / "train" / "image" / "case0.nii.gz"
    content = bytearray(gzip.decompress(file.read_bytes()))
    content[-1] ^= 1
    file.write_bytes(gzip.compress(bytes(content)))
    assert open_data(DataConfig(name=name), FEATURES)[0].fingerprint != before


def test_zarr_metadata_that_is_damaged(tmp_path):
    name = write_zarr_group(tmp_path, volumes())
    (tmp_path / "train" / "image" / "zarr.json").write_text("{")
    assert "zarr.json" in str(refused(name, "cannot be read as Zarr"))
    write_zarr(tmp_path / "b" / "train" / "image", np.zeros((2, 3), "f4"))
    (tmp_path / "b" / "train" / "image" / "zarr.json").write_text(
        '{"node_type":"array"}'
    )
    refused(f"zarr:{tmp_path / 'b'}", "cannot be read as Zarr")
