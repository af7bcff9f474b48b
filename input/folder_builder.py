"""The TFDS builder of a folder of images; imported only while one is prepared."""

import io
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import new_class
from typing import Any, ClassVar, Final

import tensorflow_datasets as tfds

from jaxdist.core.errors import BadInput
from jaxdist.core.text_encoding import printable_path
from jaxdist.input.folder import ImageFolderListing, list_image_folder
from jaxdist.input.prepare import prepare
from jaxdist.input.registry import check_dataset_name

_SPLITS: Final[Mapping[str, str]] = {"val": "validation"}
"""Names of splits that TFDS writes in another way."""


# Not in the global registry: it is opened by its folder.
with tfds.core.registered.skip_registration():

    class LabelledFolder(tfds.core.GeneratorBasedBuilder):
        """A folder of images, one folder a class: files are kept as they are."""

        VERSION = tfds.core.Version("1.0.0")
        # Nothing is downloaded: see the builder of the digits.
        url_infos: ClassVar[dict[str, Any]] = {}

        def __init__(self, listing: ImageFolderListing, **how: Any) -> None:
            self._listing = listing
            super().__init__(**how)

        def _info(self) -> tfds.core.DatasetInfo:
            features = {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(names=list(self._listing.classes)),
            }
            return tfds.core.DatasetInfo(
                builder=self,
                description="Images of a folder, one folder a class.",
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", "label"),
            )

        def _split_generators(self, _: Any) -> dict[str, Iterator[Any]]:
            return {
                _SPLITS.get(split, split): self._generate_examples(split)
                for split in self._listing.splits
            }

        def _generate_examples(
            self, split: str
        ) -> Iterator[tuple[int, dict[str, Any]]]:
            for i, (path, label) in enumerate(self._listing.splits[split]):
                yield i, {"image": io.BytesIO(path.read_bytes()), "label": label}


def prepare_folder(path: str, name: str, directory: Path) -> ImageFolderListing:
    """Write a folder of images as a TFDS data set of ArrayRecord files.

    The data set appears in `directory/name` whole or not at all.

    Args:
        path: the folder.
        name: of the data set, as `data.name` takes it.
        directory: folder of all data sets (`data.dir`).

    Returns:
        What was written.

    Raises:
        BadInput: no images, a name that cannot be used, or one that is taken.
    """
    check_dataset_name(name)
    # Listed first: a folder that is no data set leaves nothing behind.
    listing = list_image_folder(path)
    listing.warn()
    for each in listing.classes:
        if each != printable_path(each):
            raise BadInput(
                "a class has a name that is no text",
                rule="names of the classes of a prepared data set are UTF-8",
                values=printable_path(each),
                remedy="mv the folder to another name",
            )
    prepare(directory / name, partial(_write, listing, name))
    return listing


def _write(listing: ImageFolderListing, name: str, directory: Path) -> None:
    """Write a data set into `directory/name`."""
    title = "".join(part.capitalize() for part in name.split("_"))
    # TFDS names a data set after its class.
    kind: Any = new_class(title, (LabelledFolder,), {"skip_registration": True})
    kind.name = name
    tfds.disable_progress_bar()
    builder = kind(listing, data_dir=directory, file_format="array_record")
    with redirect_stdout(io.StringIO()):  # it speaks of downloads
        builder.download_and_prepare()
