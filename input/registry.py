"""Data sets by name."""

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.object_reference import (
    call_user_function,
    is_object_reference,
    resolve_object,
)
from jaxdist.input.augmentation import Augmentation
from jaxdist.input.config import DataConfig
from jaxdist.input.feature_spec import FeatureSpec

if TYPE_CHECKING:
    from jaxdist.input.sources import Source


COMMON_TFDS_NAMES: Final = (
    *("imagenet2012", "imagenet2012_subset"),
    *("cifar10", "cifar100", "mnist", "fashion_mnist", "emnist", "svhn_cropped"),
    *("food101", "places365_small", "oxford_flowers102", "tf_flowers", "stl10"),
)
"""Data sets of TFDS that are meant when a name is near; it has hundreds."""
NO_FEATURES: Final[FeatureSpec] = MappingProxyType({})
_VOLUME_KINDS: Final = ("hdf5", "nifti", "zarr")
"""Formats of volumes that are read by slab."""
_NAMES: Final = (
    *("arrays", "balls", "clips", "digits", "folder", "hdf5", "moving_digits"),
    *("nifti", "numpy", "synthetic", "text", "tokens", "vessels", "volumes", "zarr"),
)
_FIXED_SIZE: Final = (
    *("clips", "digits", "moving_digits", "numpy", "text", "tokens", "volumes"),
    *_VOLUME_KINDS,
)
_OWN_KINDS: Final = (
    *("arrays", "clips", "folder", "numpy", "text", "tokens", "volumes"),
    *_VOLUME_KINDS,
)
"""Data sets that are files of the user's."""
_PREFIXES: Final = ("tfds", "numpy", "tokens", *_VOLUME_KINDS)
"""What may stand before a name or path: `tfds:mnist`, `numpy:my.npz`."""
_TFDS_NAME: Final = r"[a-z][a-z0-9_]*(/[\w.-]+)?(:[\d.*]+)?"


def dataset_names() -> tuple[str, ...]:
    """Name every data set that can be opened; imports nothing heavy."""
    return _NAMES


def is_known(config: DataConfig) -> bool:
    """Tell whether a name can be a data set; opening it may still find none.

    A name that is near to one of `dataset_names()` is taken for a slip, unless TFDS
    has it.
    """
    kind, _, rest = config.name.partition(":")
    if kind in _PREFIXES and config.name != kind:
        return bool(rest) and (kind != "tfds" or bool(re.fullmatch(_TFDS_NAME, rest)))
    name = config.name
    # `nifty:scans` is a slip, unless there is a module of that name.
    if is_object_reference(name) and not kind.endswith(".py"):
        return did_you_mean(kind, _PREFIXES) is None or _has_module(kind)
    if is_object_reference(name) or name in (*dataset_names(), *COMMON_TFDS_NAMES):
        return True
    if not re.fullmatch(_TFDS_NAME, name):
        return False
    # TFDS has hundreds of data sets, whose list takes seconds to import: a name that is
    # near to none of ours may be one of them.
    prepared = Path(config.dir, re.split("[:/]", name)[0]).is_dir()
    return (
        prepared or did_you_mean(name, (*dataset_names(), *COMMON_TFDS_NAMES)) is None
    )


def _has_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # of a package that is not there
        return False


def is_own_data(config: DataConfig) -> bool:
    """Tell whether samples are the user's: read from a path, or made by a function.

    >>> is_own_data(DataConfig(name="numpy:my.npz")), is_own_data(DataConfig())
    (True, False)
    """
    kind = config.name.partition(":")[0]
    return kind in _OWN_KINDS or (
        kind not in _PREFIXES and is_object_reference(config.name)
    )


def is_packed(config: DataConfig) -> bool:
    """Tell whether samples are windows that several documents share."""
    return config.name.partition(":")[0] == "tokens"


def is_text(name: str) -> bool:
    """Tell whether samples of a data set are text, that a run on it can continue.

    >>> is_text("text"), is_text("tokens:books=0.7,code=0.3"), is_text("digits")
    (True, True, False)
    """
    return name.partition(":")[0] in ("text", "tokens")


def check_dataset_name(name: str) -> None:
    """Refuse a name for a prepared data set that another has, or that none can have.

    Raises:
        BadInput: it cannot be used.
    """
    known = *dataset_names(), *COMMON_TFDS_NAMES
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or name in known:
        raise BadInput(
            f"{name} cannot be the name of a data set",
            rule="a name has small letters, digits and _, and no data set has it",
            values=f"others are named {', '.join(dataset_names())}",
            remedy=f"--name my_{re.sub('[^a-z0-9_]+', '_', name.lower()).strip('_')}",
        )


def unknown_dataset_error(name: str, values: str = "") -> BadInput:
    """Say that there is no data set of this name, and which one was meant."""
    kind, _, rest = name.partition(":")
    near = did_you_mean(name, (*dataset_names(), *COMMON_TFDS_NAMES))
    if rest and (prefix := did_you_mean(kind, _PREFIXES)):
        near = f"{prefix}:{rest}"
    return BadInput(
        f"no data set named {name}",
        values=values,
        remedy=f"did you mean data.name={near}?"
        if near
        else f"data.name=<one of {', '.join(dataset_names())}>",
    )


def sized_features(config: DataConfig, features: FeatureSpec) -> FeatureSpec:
    """Return what is read from a data set, whose images have the size that is set.

    Without a setting they have the network's own size. Data sets whose images cannot be
    cut have theirs.

    Args:
        config: which data set.
        features: what the network reads.
    """
    image, kind = features.get("image"), config.name.partition(":")[0]
    is_own = kind not in _PREFIXES and is_object_reference(config.name)
    if config.size is None or image is None or is_own or kind in _FIXED_SIZE:
        return features
    sides = (config.size,) * (len(image.shape) - 1)
    sized = {**features, "image": replace(image, shape=(*sides, image.shape[-1]))}
    if mask := features.get("mask"):
        sized["mask"] = replace(mask, shape=sides)
    target = features.get("target")
    if target and len(target.shape) == len(image.shape):  # numbers for each pixel
        sized["target"] = replace(target, shape=(*sides, target.shape[-1]))
    return sized


def check_size(config: DataConfig) -> None:
    """Refuse a size of images for samples that are read as they are.

    Of what is typed: runs that were stored with one are read as they were.

    Raises:
        BadInput: `data.size` would be ignored.
    """
    if config.size is not None and config.name.partition(":")[0] in _FIXED_SIZE:
        raise BadInput(
            f"data.size is set, and the samples of {config.name} have a size of their "
            "own",
            rule="data.size is for images that are drawn, decoded or pooled: the data "
            "sets synthetic, vessels, folder, arrays and those of TFDS",
            values=f"data.name = {config.name}, data.size = {config.size}",
            remedy=(
                "data.size=None",
                f"or, of images, data.augment=crop:{config.size}",
            ),
        )


def augmentation_of(config: DataConfig, source: "Source") -> Augmentation:
    """Return how samples of a source are varied, as the settings say.

    A source of photographs crops and flips by itself: `data.shift`, which most
    experiments set for data of their own, does not move them. `data.augment` does.
    """
    from jaxdist.input.sources import EpochVaryingSource

    varies = isinstance(source, EpochVaryingSource)
    return Augmentation.parse(config.augment, 0 if varies else config.shift)


def open_data(
    config: DataConfig, features: FeatureSpec = NO_FEATURES
) -> "tuple[Source, Source]":
    """Open a data set, preparing it on the first use; any thread may call this.

    Args:
        config: which one.
        features: what the network reads; images of files and synthetic data follow it.

    Returns:
        The train and the test samples.

    Raises:
        BadInput: no such data set, or its folder is damaged or cannot be written.
    """
    from jaxdist.input.sample_validation import check_source
    from jaxdist.input.sources import sort_by_label

    if not is_known(config):
        raise unknown_dataset_error(config.name)
    # `numpy:my.npz` has its path in its name.
    kind, _, rest = config.name.partition(":")
    if kind in _PREFIXES and kind != "tfds" and rest:
        config = replace(config, name=kind, path=rest)
    elif Path(config.dir, config.name, "zarr.json").is_file():
        # Volumes that `jaxdist prepare` has written.
        kind, home = "zarr", str(Path(config.dir, config.name))
        config = replace(config, name=kind, path=home)
    # Of arrays in files, one file a sample has a folder for each split.
    in_files = kind in _VOLUME_KINDS or (
        kind == "numpy" and Path(config.path, "train").is_dir()
    )
    if config.keys and not in_files:
        raise BadInput(
            f"data.keys is set, and {config.name} has its own names",
            rule="data.keys is for " + ", ".join(f"{k}:PATH" for k in _VOLUME_KINDS),
            values=f"data.keys = {','.join(config.keys)}",
            remedy="data.keys=",
        )

    # What is only known to be there says nothing of how it is read.
    is_classified = "label" in features
    features = {key: each for key, each in features.items() if not each.is_open}
    features = sized_features(config, features)
    opened: tuple[Source, Source]
    if kind == "tfds" and rest:
        # Said to be TFDS's, also where a data set of ours has the name.
        from jaxdist.input.tfds_images import open_tfds

        opened = open_tfds(rest, Path(config.dir), features)
    elif in_files:
        from jaxdist.input.volumes.layout import open_columns, open_volume_files

        columns = open_columns(
            kind,
            config.path,
            features,
            renames=config.stored_names,
            channel_dim=config.channel_dim,
        )
        opened = open_volume_files(kind, config.path, columns)
    elif is_object_reference(config.name):
        opened = _open_user_data(config.name)
    else:
        opened = _open_named(config, features)
    # One's own are wrapped, and held against what was asked of them.
    train, test = map(check_source, opened)
    if config.channel_dim == "first" and not in_files:
        if kind != "numpy" and not is_object_reference(config.name):
            raise BadInput(
                f"{config.name} has its channels where they are",
                rule="data.channel_dim=first is for data.name=numpy, for volumes in "
                "files, and for arrays of one's own",
                values=f"data.name = {config.name}, data.channel_dim = first",
                remedy="data.channel_dim=last",
            )
        from jaxdist.input.sample_forms import channels_last

        train, test = channels_last((train, test))
    if is_classified:
        from jaxdist.input.sample_forms import class_labels

        train, test = class_labels(train, test)
    return (sort_by_label(train) if config.order == "label" else train), test


def _open_named(config: DataConfig, features: FeatureSpec) -> "tuple[Source, Source]":
    """Open a data set by its name; imports only what this one needs."""
    directory = Path(config.dir)
    opened: tuple[Source, Source]
    match config.name:
        case "arrays":
            from jaxdist.input.arrays import open_arrays

            opened = open_arrays(config.path, config.size)
        case "balls":
            from jaxdist.input.balls import open_balls

            opened = open_balls(features, config.samples)
        case "clips":
            from jaxdist.input.clips import open_clips

            opened = open_clips(config.path)
        case "digits":
            from jaxdist.input.digits import open_digits

            opened = open_digits(directory)
        case "folder":
            from jaxdist.input.folder import open_image_folder

            skip = directory if config.corrupt_images == "skip" else None
            opened = open_image_folder(config.path, features, skip)
        case "moving_digits":
            from jaxdist.input.synthetic import open_moving_digits

            opened = open_moving_digits(directory)
        case "numpy":
            from jaxdist.input.arrays import open_numpy

            opened = open_numpy(config.path)
        case "synthetic":
            from jaxdist.input.synthetic import open_synthetic

            opened = open_synthetic(features, config.samples)
        case "text" | "tokens":
            opened = _open_windows(config)
        case "vessels":
            from jaxdist.input.vessels import open_vessels

            opened = open_vessels(features, config.samples)
        case "volumes":
            from jaxdist.input.synthetic import open_volumes

            opened = open_volumes(config.path)
        case name:
            from jaxdist.input.tfds_images import open_tfds

            opened = open_tfds(name, directory, features)
    return opened


def _open_windows(config: DataConfig) -> "tuple[Source, Source]":
    """Open a text as windows of characters, or of the tokens of its documents."""
    if is_packed(config):
        from jaxdist.input.tokens import open_tokens

        return open_tokens(config.path, config.context)
    from jaxdist.input.text import open_text

    return open_text(config.path, context=config.context, stride=config.stride)


def _open_user_data(name: str) -> "tuple[Source, Source]":
    """Call the function of one's own that a name refers to.

    It takes nothing and returns the training and the held-out samples: sources, or
    dicts of arrays, [N, ...] each, which become sources.
    """
    import numpy as np

    from jaxdist.input.sources import ArraySource

    made = call_user_function(name, resolve_object(name))
    if not isinstance(made, tuple) or len(made) != 2:
        size = f" of {len(made)}" if isinstance(made, (tuple, list)) else ""
        raise _no_samples_error(name, f"it returned {type(made).__name__}{size}")
    sources: list[Source] = []
    for part in made:
        if isinstance(part, Mapping):
            arrays = {key: np.asarray(array) for key, array in part.items()}
            sources.append(ArraySource(arrays))
        elif all(hasattr(part, member) for member in ("get", "__len__")):
            sources.append(part)
        else:
            size = f" of {len(part)}" if isinstance(part, (tuple, list)) else ""
            found = f"one of the two is {type(part).__name__}{size}"
            raise _no_samples_error(name, found)
    train, test = sources
    return train, test


def _no_samples_error(name: str, values: str) -> BadInput:
    return BadInput(
        f"{name} gives no samples",
        rule="a data function takes nothing and returns (train, test): sources, or "
        "arrays",
        values=values,
        remedy='return {"image": ..., "label": ...}, {"image": ..., "label": ...}',
    )
