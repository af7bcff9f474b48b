"""TFDS data sets of labelled images, prepared in ArrayRecord, read where they lie."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.input.feature_spec import FeatureSpec, image_shape
from jaxdist.input.image_files import DecodedImages
from jaxdist.input.sources import split_fingerprint

_EVAL_SPLITS: Final = ("validation", "test")
"""Splits that a run is scored on, the first that is there."""


class TfdsImages:
    """A split of a TFDS data set, images still compressed; is `Encoded`.

    Args:
        split: what `as_data_source` returned, images not decoded.
        keys: the features that are the image and its label.
        classes: labels are 0 ... classes - 1.
    """

    remedy = "prepare the data set again, or data.name=synthetic"

    def __init__(self, split: Any, keys: tuple[str, str], classes: int) -> None:
        self._split, self._keys, self.classes = split, keys, classes

    def __len__(self) -> int:
        return len(self._split)

    def read(self, ids: Iterable[int]) -> Sequence[tuple[bytes, int]]:
        """Read JPEG or PNG files and their labels."""
        image, label = self._keys
        # One call reads the records of a batch together.
        rows = self._split.__getitems__(list(ids))
        return [(row[image], int(row[label])) for row in rows]

    def name(self, sample: int) -> str:
        """Name one image."""
        info = self._split.dataset_info
        return f"image {sample} of {info.full_name}"

    @property
    def fingerprint(self) -> str:
        """Digest of name, version, split and shards; no record is read."""
        return split_fingerprint(self._split)


def open_tfds(
    name: str, directory: Path, features: FeatureSpec
) -> tuple[DecodedImages, DecodedImages]:
    """Open a data set that TFDS has prepared; TensorFlow has no part in it.

    Args:
        name: as TFDS has it: `name`, `name/config`, `name:1.0.0`.
        directory: folder of all data sets (`data.dir`); TFDS's own is looked in next.
        features: what the network reads.

    Returns:
        The train split, and `validation` or else `test`.

    Raises:
        BadInput: it is not there, in another format, or no labelled images.
    """
    import tensorflow_datasets as tfds

    builder = _open_builder(name, directory)
    shape, info = image_shape(features, name), builder.info
    keys = info.supervised_keys or ("image", "label")
    kinds = (tfds.features.Image, tfds.features.ClassLabel)
    found: list[Any] = [dict(info.features).get(str(key)) for key in keys]
    if len(found) != 2 or not all(map(isinstance, found, kinds)):
        raise _not_labelled_images_error(name, f"it has {', '.join(info.features)}")
    held_out = [split for split in _EVAL_SPLITS if split in info.splits]
    if "train" not in info.splits or not held_out:
        raise _not_labelled_images_error(
            name, f"its splits are {', '.join(info.splits)}"
        )

    # Images stay compressed: they are decoded by Pillow, and cut before they are
    # scaled. TFDS would decode with TensorFlow.
    skip = {keys[0]: tfds.decode.SkipDecoding()}
    try:
        splits = [
            builder.as_data_source(split, decoders=skip)
            for split in ("train", held_out[0])
        ]
    except NotImplementedError as error:
        # TFDS itself raises this of every format without random access; it is told
        # here with the command that prepares the data set in another one.
        form = info.file_format
        raise BadInput(
            f"{name} is prepared in a format without random access",
            rule="samples are read by number, from ArrayRecord files",
            values=f"{builder.data_dir} holds {form.value if form else 'others'}",
            remedy=_prepare_command(name, Path(builder.data_dir).parent.parent)
            + " --overwrite",
        ) from error
    classes = int(found[1].num_classes)
    train, test = (
        DecodedImages(
            TfdsImages(split, (keys[0], keys[1]), classes), shape, found[1].names
        )
        for split in splits
    )
    return train, test


def _open_builder(name: str, directory: Path) -> Any:
    """Open the newest version that is on this machine."""
    from tensorflow_datasets.core.read_only_builder import builder_from_files
    from tensorflow_datasets.core.registered import DatasetNotFoundError
    from tensorflow_datasets.core.utils.file_utils import list_data_dirs

    # TFDS's own folders come after ours: ~/tensorflow_datasets and what is registered.
    homes = dict.fromkeys([directory, *map(Path, list_data_dirs())])
    for home in homes:
        try:
            return builder_from_files(name, data_dir=home)
        except (DatasetNotFoundError, ValueError, OSError):
            continue
    raise BadInput(
        f"no data set {name} is prepared here",
        rule="a data set of TFDS is prepared once, in ArrayRecord, before it is used",
        values=f"looked for {name} in {', '.join(map(str, homes))}",
        remedy=[
            f"pip install tensorflow && {_prepare_command(name, directory)}",
            "data.dir=FOLDER, where it is prepared in another place",
            "data.name=synthetic, random data of the same shape",
            "data.name=folder data.path=FOLDER, images of your own",
        ],
    )


def _prepare_command(name: str, directory: Path) -> str:
    """Return the command that prepares a data set."""
    by_hand = " --manual_dir=FOLDER_OF_ITS_TAR_FILES" * name.startswith("imagenet2012")
    options = f"--file_format=array_record --data_dir={directory}{by_hand}"
    return f"tfds build {name} {options}"


def _not_labelled_images_error(name: str, values: str) -> BadInput:
    return BadInput(
        f"{name} is no data set of labelled images",
        rule="images are trained on with one label each, and scored on "
        "a split named validation or test",
        values=values,
        remedy="another data.name, or data.name=my.py:FUNCTION (docs/your_model.md)",
    )
