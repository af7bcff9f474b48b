"""Data sets by name."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.object_reference import (
    call_user_function,
    is_object_reference,
    resolve_object,
)
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
_PREFIXES: Final = ("tfds", "numpy")
"""What may stand before a name or path: `tfds:mnist`, `numpy:my.npz`."""
_TFDS_NAME: Final = r"[a-z][a-z0-9_]*(/[\w.-]+)?(:[\d.*]+)?"


def dataset_names() -> tuple[str, ...]:
    """Name every data set that can be opened; imports nothing heavy."""
    return tuple(_OPENERS)


def is_known(config: DataConfig) -> bool:
    """Tell whether a name can be a data set; opening it may still find none.

    A name that is near to one of `dataset_names()` is taken for a slip, unless TFDS
    has it.
    """
    kind, _, rest = config.name.partition(":")
    if kind in _PREFIXES and config.name != kind:
        return bool(rest) and (kind != "tfds" or bool(re.fullmatch(_TFDS_NAME, rest)))
    name = config.name
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


def unknown_dataset_error(name: str, values: str = "") -> BadInput:
    """Say that there is no data set of this name, and which one was meant."""
    near = did_you_mean(name, (*dataset_names(), *COMMON_TFDS_NAMES))
    return BadInput(
        f"no data set named {name}",
        values=values,
        remedy=f"did you mean data.name={near}?"
        if near
        else f"data.name=<one of {', '.join(dataset_names())}>",
    )


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
    from jaxdist.input.permuted_source import sort_by_label

    if not is_known(config):
        raise unknown_dataset_error(config.name)
    kind, _, rest = config.name.partition(":")
    other = _user_data if is_object_reference(config.name) else _tfds
    opener, asked = _OPENERS.get(config.name, other), config
    if kind == "tfds" and rest:
        opener, asked = _tfds, replace(config, name=rest)
    elif kind == "numpy" and rest:
        opener, asked = _numpy, replace(config, path=rest)

    image = features.get("image")
    if config.size is not None and image is not None:
        shape = (*[config.size] * (len(image.shape) - 1), image.shape[-1])
        features = {**features, "image": replace(image, shape=shape)}
    train, test = opener(asked, features)
    return (sort_by_label(train) if config.order == "label" else train), test


def _digits(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.digits import open_digits

    return open_digits(Path(config.dir))


def _text(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.text import open_text

    return open_text(config.path, context=config.context, stride=config.stride)


def _synthetic(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.synthetic import open_synthetic

    return open_synthetic(wanted, config.samples)


def _folder(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.folder import open_image_folder

    skip = Path(config.dir) if config.damaged == "skip" else None
    return open_image_folder(config.path, wanted, skip)


def _arrays(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.arrays import open_arrays

    return open_arrays(config.path, config.size)


def _numpy(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.numpy_files import open_numpy

    return open_numpy(config.path)


def _volumes(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.volumes import open_volumes

    return open_volumes(config.path)


def _clips(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.clips import open_clips

    return open_clips(config.path)


def _moving_digits(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.moving_digits import open_moving_digits

    return open_moving_digits(Path(config.dir))


def _tfds(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    from jaxdist.input.tfds_images import open_tfds

    return open_tfds(config.name, Path(config.dir), wanted)


def _user_data(config: DataConfig, wanted: FeatureSpec) -> "tuple[Source, Source]":
    """Call the function of one's own that the name refers to.

    It takes nothing and returns the training and the held-out samples: sources, or
    dicts of arrays, [N, ...] each, which become sources.
    """
    import numpy as np

    from jaxdist.input.sources import ArraySource

    made = call_user_function(config.name, resolve_object(config.name))
    if not isinstance(made, tuple) or len(made) != 2:
        size = f" of {len(made)}" if isinstance(made, (tuple, list)) else ""
        raise _no_samples_error(config.name, f"it returned {type(made).__name__}{size}")
    sources = []
    for part in made:
        if isinstance(part, Mapping):
            part = ArraySource({key: np.asarray(array) for key, array in part.items()})
        elif not all(hasattr(part, member) for member in ("get", "__len__")):
            size = f" of {len(part)}" if isinstance(part, (tuple, list)) else ""
            raise _no_samples_error(
                config.name, f"one of the two is {type(part).__name__}{size}"
            )
        sources.append(part)
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


DatasetOpener = Callable[[DataConfig, FeatureSpec], "tuple[Source, Source]"]
_OPENERS: Final[Mapping[str, DatasetOpener]] = MappingProxyType(
    {
        "arrays": _arrays,
        "clips": _clips,
        "digits": _digits,
        "folder": _folder,
        "moving_digits": _moving_digits,
        "numpy": _numpy,
        "synthetic": _synthetic,
        "text": _text,
        "volumes": _volumes,
    }
)
