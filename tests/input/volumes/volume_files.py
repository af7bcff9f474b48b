"""Small volumes with masks, written in every format that is read."""

import h5py
import nibabel
import numpy as np
import tensorstore

SHAPE = 8, 6, 4, 1
COUNTS = {"train": 5, "test": 3}


def volumes(shape=SHAPE, counts=COUNTS):
    """Return image [N, D, H, W, C] and mask [N, D, H, W] of each split."""
    draw = np.random.default_rng(0)
    return {
        split: {
            "image": draw.random((n, *shape)).astype(np.float32),
            "mask": draw.integers(0, 3, (n, *shape[:-1]), np.uint8),
        }
        for split, n in counts.items()
    }


def write_zarr(path, array, chunks=None, version=3):
    meta = (
        {
            "shape": list(array.shape),
            "data_type": array.dtype.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": chunks or list(array.shape)},
            },
        }
        if version == 3
        else {
            "shape": list(array.shape),
            "dtype": array.dtype.str,
            "chunks": chunks or list(array.shape),
            "compressor": {"id": "zlib", "level": 1},
        }
    )
    store = tensorstore.open(
        {
            "driver": "zarr3" if version == 3 else "zarr",
            "kvstore": {"driver": "file", "path": f"{path}/"},
            "metadata": meta,
            "create": True,
        }
    ).result()
    store.write(array).result()


def write_hdf5(path, found):
    with h5py.File(path, "w") as file:
        for split, arrays in found.items():
            for key, array in arrays.items():
                file.create_dataset(
                    f"{split}/{key}",
                    data=array,
                    chunks=(1, 2, *array.shape[2:])[: array.ndim],
                )
    return f"hdf5:{path}"


def write_hdf5_files(path, found):
    for split, arrays in found.items():
        (path / split).mkdir(parents=True)
        for i in range(len(arrays["image"])):
            with h5py.File(path / split / f"case{i}.h5", "w") as file:
                for key, array in arrays.items():
                    file[key] = array[i]
    return f"hdf5:{path}"


def write_zarr_group(path, found, version=3):
    for split, arrays in found.items():
        for key, array in arrays.items():
            chunks = [1, 2, *array.shape[2:]][: array.ndim]
            write_zarr(path / split / key, array, chunks, version)
    return f"zarr:{path}"


def write_zarr_samples(path, found):
    for split, arrays in found.items():
        for key, array in arrays.items():
            for i, one in enumerate(array):
                write_zarr(path / split / f"case{i}.zarr" / key, one)
    return f"zarr:{path}"


def write_nifti(path, found, suffix=".nii"):
    for split, arrays in found.items():
        for key, array in arrays.items():
            (path / split / key).mkdir(parents=True)
            for i, one in enumerate(array):
                # nibabel's arrays are [X, Y, Z].
                voxels = one[..., 0] if key == "image" else one
                image = nibabel.Nifti1Image(voxels.T, np.eye(4))
                nibabel.save(image, path / split / key / f"case{i}{suffix}")
    return f"nifti:{path}"


def write_npy_files(path, found):
    for split, arrays in found.items():
        for key, array in arrays.items():
            (path / split / key).mkdir(parents=True)
            for i, one in enumerate(array):
                np.save(path / split / key / f"case{i}.npy", one)
    return f"numpy:{path}"


def write_npy_arrays(path, found):
    for split, arrays in found.items():
        (path / split).mkdir(parents=True)
        for key, array in arrays.items():
            np.save(path / split / f"{key}.npy", array)
    return f"numpy:{path}"


WRITERS = {
    "hdf5 file": lambda path, found: write_hdf5(path / "v.h5", found),
    "hdf5 files": write_hdf5_files,
    "zarr group": write_zarr_group,
    "zarr 2": lambda path, found: write_zarr_group(path, found, version=2),
    "zarr samples": write_zarr_samples,
    "nifti": write_nifti,
    "nifti gz": lambda path, found: write_nifti(path, found, ".nii.gz"),
    "npy files": write_npy_files,
    "npy arrays": write_npy_arrays,
}
