"""Layout of volumes in files: splits, keys, and one array of all or one file a sample.

hdf5:FILE.h5      train/KEY [N, ...], test/KEY; or train_KEY and test_KEY
hdf5:FOLDER       train.h5 and test.h5 of arrays KEY [N, ...]; or train/*.h5 and
                  test/*.h5, a sample each, of arrays KEY [...]
zarr:STORE        train/KEY [N, ...]; or train/SAMPLE/KEY [...], a group a sample
nifti:FOLDER      train/KEY/SAMPLE.nii or .nii.gz, or train/KEY.npy [N, ...]
numpy:FOLDER      train/KEY/SAMPLE.npy, or train/KEY.npy [N, ...]

Held-out samples are in `validation`, `val` or `test`, the first that is there.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from jaxdist.core.errors import BadInput, did_you_mean, nearest_path
from jaxdist.input.feature_spec import FeatureSpec
from jaxdist.input.volumes.hdf5 import numeric_datasets
from jaxdist.input.volumes.nifti import SUFFIXES as NIFTI_SUFFIXES
from jaxdist.input.volumes.nifti import open_nifti
from jaxdist.input.volumes.npy import open_npy
from jaxdist.input.volumes.source import ChannelForm, Column, VolumeSource
from jaxdist.input.volumes.stored_array import StoredArray
from jaxdist.input.volumes.zarr import ZarrStore

FORMATS: Final = ("hdf5", "zarr", "nifti", "numpy")
HELD_OUT: Final = ("validation", "val", "test")
"""Splits that a run is scored on, the first that is there."""
_HDF5_SUFFIXES: Final = (".h5", ".hdf5", ".hdf", ".he5")
_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "hdf5": _HDF5_SUFFIXES,
        "zarr": ("zarr.json", ".zarray"),
        "nifti": NIFTI_SUFFIXES,
        "numpy": (".npy", ".npz"),
    }
)
"""Ends of the names of a format's files."""
_OPEN_THREADS: Final = 8
_USUAL_KEYS: Final = ("image", "mask", "label", "target")
"""Looked for in a store that cannot be listed, where the network says nothing."""

Columns = dict[str, Column]
Split = tuple[str, Columns]
"""Its name, and its arrays by key."""


def open_volume_files(
    kind: str, path: str, splits: Mapping[str, Columns]
) -> tuple[VolumeSource, VolumeSource]:
    """Return the train and the held-out samples of arrays in files; none is read.

    Args:
        kind: one of `FORMATS`.
        path: the file, the folder, or the address of a store.
        splits: their arrays, as of `open_columns`.

    Raises:
        BadInput: arrays whose sizes do not go together; with the file.
    """
    train, test = splits.values()
    check_sizes(train, train, f"{kind}:{path}")
    check_sizes(test, train, f"{kind}:{path}")
    sources = VolumeSource(train, kind), VolumeSource(test, kind)
    _count_classes(sources)
    return sources


def open_columns(
    kind: str,
    path: str,
    features: FeatureSpec,
    *,
    renames: Mapping[str, str],
    channel_dim: Literal["last", "first"] = "last",
) -> dict[str, Columns]:
    """Open the arrays of both splits, whatever their sizes.

    Args:
        kind: one of `FORMATS`.
        path: the file, the folder, or the address of a store.
        features: what the network reads; empty: all arrays are samples.
        renames: name in the files of a key of the network (`image`: `raw`).
        channel_dim: where a stored `image` has its channels.

    Returns:
        The arrays by key of `train`, and of the held-out split under its name.

    Raises:
        BadInput: no such files, a package that is missing, or a key that is missing.
    """
    if not path:
        raise no_volumes_error(kind, path, "data.path is empty")
    readers: Mapping[str, Callable[[], list[Split]]] = {
        "hdf5": lambda: _hdf5_splits(Path(path)),
        "zarr": lambda: _zarr_splits(path, features, renames),
        "nifti": lambda: _key_folders(kind, Path(path), NIFTI_SUFFIXES, open_nifti),
        "numpy": lambda: _key_folders(kind, Path(path), (".npy",), open_npy),
    }
    found = dict(readers[kind]())
    # Where none of them is there, the refusal speaks of the last.
    held_out = next((name for name in HELD_OUT if found.get(name)), HELD_OUT[-1])
    splits = {}
    for name in ("train", held_out):
        columns = found.get(name, {})
        if not columns:
            there = ", ".join(each for each, arrays in found.items() if arrays)
            shown = f"arrays in {there}, none in {name}" if there else "no arrays"
            raise no_volumes_error(kind, path, shown)
        columns = _pick_keys(columns, features, renames, name)
        _check_lengths(path, name, columns)
        splits[name] = {
            key: replace(
                column,
                channels=_channel_form(kind, key, column, features, channel_dim),
            )
            for key, column in columns.items()
        }
    train, test = splits.values()
    if set(train) != set(test):
        raise BadInput(
            "held-out samples have other arrays than those to train on",
            rule="every split has the same keys",
            values=f"train has {', '.join(train)}; {held_out} has {', '.join(test)}",
            remedy=f"the same keys in {held_out} as in train",
        )
    return splits


def no_volumes_error(kind: str, path: str, values: str) -> BadInput:
    """Say that there are no volumes, and how they lie in files of a kind."""
    lies = {
        "hdf5": "FILE.h5 has arrays train/KEY and test/KEY [N, ...]; a folder has "
        "train.h5 and test.h5 of arrays KEY [N, ...], or train/*.h5 and test/*.h5, "
        "each with arrays KEY of one sample",
        "zarr": "a store has arrays train/KEY and test/KEY [N, ...], or groups "
        "train/SAMPLE and test/SAMPLE of arrays KEY; one that cannot be listed has "
        "consolidated metadata, or usual keys",
        "nifti": "a folder has train/KEY/SAMPLE.nii.gz and test/KEY/SAMPLE.nii.gz (or "
        ".nii), by the same names for each KEY",
        "numpy": "a folder has train/KEY/SAMPLE.npy and test/KEY/SAMPLE.npy, by the "
        "same names for each KEY, or train/KEY.npy [N, ...]",
    }
    shown = {"hdf5": "FILE.h5", "zarr": "scans.zarr"}.get(kind, "FOLDER")
    remedy = f"data.name={kind}:{shown}"
    if path and "://" not in path and not Path(path).exists():
        near = nearest_path(Path(path))
        remedy = f"did you mean {kind}:{near}?" if near else remedy
    if path and "://" not in path and Path(path).exists():
        held = [path] if Path(path).is_file() else sorted(os.listdir(path))
        values += f"; there is {', '.join(held[:5]) or 'nothing'}"
        # Files of another format: the path is right, and the word before it is not.
        other = next((k for k, ends in _SUFFIXES.items() if _has_file(path, ends)), "")
        if other and other != kind:
            remedy = f"data.name={other}:{path}, as its files are"
    return BadInput(
        f"no volumes in {path or 'data.path'}",
        rule=lies[kind] + "; KEY is what the network reads: image and mask",
        values=values,
        remedy=remedy,
    )


def _has_file(path: str, suffixes: tuple[str, ...]) -> bool:
    """Tell whether a path is, or has below it, a file of a format."""
    home = Path(path)
    files = [home] if home.is_file() else home.rglob("*")
    return any(file.name.endswith(suffixes) for file in files)


def _hdf5_splits(path: Path) -> list[Split]:
    """Find the splits of an HDF5 file, or of a folder of such files."""
    if not path.exists():
        raise no_volumes_error("hdf5", str(path), f"there is no {path}")
    if path.is_file():
        return _batched_splits(numeric_datasets(path, keep_open=True))
    splits: list[Split] = []
    for name in ("train", *HELD_OUT):
        whole = [p for s in _HDF5_SUFFIXES if (p := path / f"{name}{s}").is_file()]
        if whole:
            arrays = numeric_datasets(whole[0], keep_open=True)
            splits.append((name, _batched(arrays)))
            continue
        files = _list_files(path / name, _HDF5_SUFFIXES)
        # One file after the other: h5py lets one thread at a time into the library.
        every = [numeric_datasets(file, keep_open=False) for file in files]
        named = dict(zip(map(str, files), every, strict=True))
        splits.append((name, _columns_of_samples(named)))
    return splits


def _columns_of_samples(every: Mapping[str, Mapping[str, StoredArray]]) -> Columns:
    """Turn the arrays of each sample, by the name of its file, into columns.

    Raises:
        BadInput: a sample lacks an array that most others have.
    """
    counts = Counter(key for arrays in every.values() for key in arrays)
    # What few files have besides is theirs, and no array of the data set.
    keys = [key for key, count in counts.items() if 2 * count >= len(every)]
    for name, arrays in every.items():
        if missing := [key for key in keys if key not in arrays]:
            others = ", ".join(key for key in arrays if key not in keys)
            raise BadInput(
                f"{name} has no {missing[0]}",
                rule="every sample of a split has the same arrays",
                values=f"it has {', '.join(arrays) or 'no array'}; others have "
                f"{', '.join(keys)}",
                remedy=(f"{others} renamed to {missing[0]}, or " if others else "")
                + "move the sample away",
            )
    return {
        key: Column(arrays=[arrays[key] for arrays in every.values()], is_batched=False)
        for key in keys
    }


def _zarr_splits(
    path: str, features: FeatureSpec, renames: Mapping[str, str]
) -> list[Split]:
    """Find the splits of a Zarr group, or of a folder of such groups."""
    store = ZarrStore(path)
    if not store.is_remote and not Path(path).is_dir():
        raise no_volumes_error("zarr", path, f"there is no folder {path}")
    # A store that cannot be listed, as over HTTP, is asked for names that are usual.
    usual = [renames.get(key, key) for key in features or _USUAL_KEYS]
    guesses = [
        f"{s}{by}{k}" for s in ("train", *HELD_OUT) for by in "/_" for k in usual
    ]
    names = store.arrays(guesses)
    # Opening an array reads its metadata, a round trip of a remote store: these wait
    # side by side.
    with ThreadPoolExecutor(_OPEN_THREADS) as pool:
        opened = dict(zip(names, pool.map(store.open, names), strict=True))
    # `train/KEY` and `train_KEY` have all samples; what lies deeper is of one.
    batched = {name: opened[name] for name in names if name.count("/") < 2}
    splits = dict(_batched_splits(batched))
    for split in ("train", *HELD_OUT):
        every: dict[str, dict[str, StoredArray]] = {}
        for name in names:
            # A group a sample, whose arrays may lie deeper in it.
            first, sample, key = (*name.split("/", 2), "", "")[:3]
            if first == split and key:
                every.setdefault(f"{path}/{split}/{sample}", {})[key] = opened[name]
        # An array of all samples wins over groups of single ones.
        if every and not splits.get(split):
            splits[split] = _columns_of_samples(every)
    return list(splits.items())


def _key_folders(
    kind: str,
    path: Path,
    suffixes: tuple[str, ...],
    open_file: Callable[[Path], StoredArray],
) -> list[Split]:
    """Find splits in which each key has a folder of files, or one `.npy` file."""
    if not path.is_dir():
        raise no_volumes_error(kind, str(path), f"there is no folder {path}")
    splits: list[Split] = []
    for name in ("train", *HELD_OUT):
        columns: Columns = {}
        cases: dict[str, list[str]] = {}
        below = sorted((path / name).iterdir()) if (path / name).is_dir() else []
        for each in (x for x in below if not x.name.startswith(".")):
            if each.suffix == ".npy" and each.is_file():
                columns |= _batched({each.stem: open_npy(each)})
            elif each.is_dir() and (files := _list_files(each, suffixes)):
                with ThreadPoolExecutor(_OPEN_THREADS) as pool:
                    arrays = list(pool.map(open_file, files))
                columns[each.name] = Column(arrays=arrays, is_batched=False)
                cases[each.name] = [_case_name(file, suffixes) for file in files]
        first, *others = cases or [""]
        for key in others:
            # By name, and not by place: one file that is missing would give every
            # later image the mask of another.
            if odd := sorted(set(cases[first]) ^ set(cases[key])):
                lacks = key if odd[0] in cases[first] else first
                raise BadInput(
                    f"{path / name / lacks} has no {odd[0]}",
                    rule="every sample has a file of its name for each key",
                    values=f"{len(cases[first]):,} files of {first}, "
                    f"{len(cases[key]):,} of {key}; in one alone: "
                    f"{', '.join(odd[:5])}",
                    remedy=f"add {odd[0]}{suffixes[-1]} to {path / name / lacks}, or "
                    "remove the other",
                )
        splits.append((name, columns))
    return splits


def _list_files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """List files by name; hidden ones, as of some copy programs, are left out."""
    if not folder.is_dir():
        return []
    return sorted(
        file
        for file in folder.iterdir()
        if file.name.endswith(suffixes) and not file.name.startswith(".")
    )


def _case_name(file: Path, suffixes: tuple[str, ...]) -> str:
    longest = max((s for s in suffixes if file.name.endswith(s)), key=len)
    return file.name.removesuffix(longest)


def _batched_splits(arrays: Mapping[str, StoredArray]) -> list[Split]:
    """Sort arrays of all samples by the split that their names begin with."""
    splits = []
    for name in ("train", *HELD_OUT):
        begins = (f"{name}/", f"{name}_")
        own = {k[len(name) + 1 :]: x for k, x in arrays.items() if k.startswith(begins)}
        splits.append((name, _batched(own)))
    return splits


def _batched(arrays: Mapping[str, StoredArray]) -> Columns:
    return {
        key: Column(arrays=[array], is_batched=True)
        for key, array in arrays.items()
        # A scalar beside the arrays holds no samples.
        if array.shape
    }


def _pick_keys(
    columns: Columns, features: FeatureSpec, renames: Mapping[str, str], split: str
) -> Columns:
    """Return the arrays that the network reads, under its names for them."""
    for key, stored in renames.items():
        if features and key not in features:
            near = did_you_mean(key, features)
            raise BadInput(
                f"data.keys has {key}, which the network does not read",
                rule=f"the network reads {', '.join(features)}",
                values=f"data.keys = {key}={stored}",
                remedy=f"did you mean {near}? data.keys={near}={stored}"
                if near
                else f"leave {key} out of data.keys",
            )
    named = {stored: key for key, stored in renames.items()}
    wanted = [renames.get(key, key) for key in features] + list(named)
    for stored in dict.fromkeys(wanted):
        if stored not in columns:
            key = named.get(stored, stored)
            raise BadInput(
                f"{split} has no {stored}",
                rule=f"the network reads {', '.join(features) or ', '.join(renames)}",
                values=f"arrays of {split} are {', '.join(columns)}",
                remedy=_spelling(stored, columns)
                or f"data.keys={key}=NAME, where NAME is one of these",
            )
    # What goes by another name is that key, and no array of the key's own name.
    found = {
        named.get(k, k): x for k, x in columns.items() if k not in renames or k in named
    }
    return {k: x for k, x in found.items() if not features or k in features}


def _spelling(key: str, known: Iterable[str]) -> str:
    near = did_you_mean(key, known)
    return f"did you mean {near}? data.keys={key}={near}" if near else ""


def _channel_form(
    kind: str,
    key: str,
    column: Column,
    features: FeatureSpec,
    channel_dim: Literal["last", "first"],
) -> ChannelForm:
    """Find where a stored array has its channels, by the dims that are read of it."""
    stored = column.stored_shape()
    # An image of two dims has no channels that could be first.
    if key == "image" and channel_dim == "first" and len(stored) > 2:
        return "first"
    if key not in features:
        # Without a network to ask, three dims of a NIfTI scan are those of space.
        is_scan = kind == "nifti" and key == "image" and len(stored) == 3
        return "none" if is_scan else "last"
    dims = len(features[key].shape)
    if key == "image" and len(stored) == dims - 1:
        return "none"
    # A dim of one channel that the network does not read, as of a mask [D, H, W, 1].
    if len(stored) == dims + 1 and stored[-1] == 1:
        return "single"
    return "last"


def _check_lengths(path: str, split: str, columns: Columns) -> None:
    """Refuse keys that have different numbers of samples, or none."""
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise BadInput(
            f"the arrays of {split} in {path} do not go together",
            rule="every array has one entry a sample, and there is a sample",
            values=", ".join(f"{key}: {count}" for key, count in lengths.items()),
            remedy="as many entries in each",
        )


def check_sizes(columns: Columns, like: Columns | None, source: str) -> None:
    """Refuse volumes of unlike sizes, and masks of another size than their image.

    Args:
        columns: the arrays of a split.
        like: those of the split to train on, which have the size of all; None: sizes
            may differ.
        source: format and path.

    Raises:
        BadInput: with the file.
    """
    for sample in range(len(next(iter(columns.values())))):
        image, mask = columns.get("image"), columns.get("mask")
        if image and mask and mask.shape(sample) != image.shape(sample)[:-1]:
            raise BadInput(
                f"the mask of sample {sample} has another size than its image",
                rule="a mask has a class for each pixel of its image, and no channels",
                values=f"{image.name(sample)} is {list(image.shape(sample))}, "
                f"{mask.name(sample)} is {list(mask.shape(sample))}",
                remedy="put the mask right, or leave the sample out",
            )
        for key, column in columns.items():
            if like is None:
                break
            usual = like.get(key, column)
            if column.shape(sample) != usual.shape():
                raise BadInput(
                    f"{key} is of unlike sizes",
                    rule="all samples of a run have one size",
                    values=f"{column.name(sample)} is {list(column.shape(sample))}, "
                    f"{usual.name(0)} is {list(usual.shape())}",
                    remedy=f"jaxdist prepare {source} --name my_scans --size "
                    + ",".join(map(str, usual.shape()[: len(_sides(usual))]))
                    + " cuts and fills them",
                )
        if all(column.is_batched for column in columns.values()):
            return  # arrays of all samples have one size


def _count_classes(sources: tuple[VolumeSource, VolumeSource]) -> None:
    """Count the classes of samples that have a label each, over both splits."""
    found = [source.labels for source in sources]
    labels = [each for each in found if each is not None]
    if len(labels) < len(found):
        return
    for source, each in zip(sources, labels, strict=True):
        if each.min() < 0:
            row = int(each.argmin())
            raise BadInput(
                f"the label of sample {row} is out of range",
                rule="labels are whole numbers from 0",
                values=f"{source.columns['label'].name(row)} = {each[row]}",
                remedy="mend the sample, or leave it out",
            )
        source.classes = 1 + max(int(x.max()) for x in labels)


def _sides(column: Column) -> Sequence[int]:
    """Return the dims of an image that are no channels."""
    return column.shape()[:-1] if len(column.shape()) > 2 else column.shape()
