"""A folder of images: one folder a split, in it one a class, in it the files.

FOLDER/train/cat/1.jpg    FOLDER/test/cat/7.jpg (or validation, or val)
"""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.input.corrupt_images import find_corrupt_images
from jaxdist.input.feature_spec import FeatureSpec, image_shape
from jaxdist.input.image_files import DecodedImages

_SUFFIXES: Final = (".jpg", ".jpeg", ".png")
LabelledPaths = list[tuple[Path, int]]
"""Files and their labels."""
_EVAL_SPLITS: Final = ("validation", "val", "test")
"""Folders that a run is scored on, the first that is there."""
_MAX_FINGERPRINT_FILES: Final = 256
"""Files of a split whose content is in its fingerprint, evenly among all."""


class FolderImages:
    """Image files with a label each; is `Encoded`.

    Args:
        files: path and label, in the order of the ids.
        classes: labels are 0 ... classes - 1.
    """

    remedy = "data.damaged=skip, or put the file right"

    def __init__(self, files: Sequence[tuple[Path, int]], classes: int) -> None:
        self._files, self.classes = files, classes

    def __len__(self) -> int:
        return len(self._files)

    def read(self, ids: Iterable[int]) -> Sequence[tuple[bytes, int]]:
        """Read the files and their labels.

        Raises:
            BadInput: a file that is no longer there, or may not be read.
        """
        with _unreadable_file_errors():
            return [(self._files[i][0].read_bytes(), self._files[i][1]) for i in ids]

    def name(self, sample: int) -> str:
        """Name one image: its path."""
        return str(self._files[sample][0])

    @cached_property
    def fingerprint(self) -> str:
        """Digest of names, labels, sizes, and what is in up to 256 of the files.

        Raises:
            BadInput: a file that is no longer there, or may not be read.
        """
        digest, every = hashlib.sha256(), -(-len(self._files) // _MAX_FINGERPRINT_FILES)
        with _unreadable_file_errors():
            for path, label in self._files:
                name, size = f"{path.parent.name}/{path.name}", path.stat().st_size
                digest.update(f"{name} {label} {size}\n".encode())
            for path, _ in self._files[::every]:
                digest.update(path.read_bytes())
        return digest.hexdigest()


@contextmanager
def _unreadable_file_errors() -> Iterator[None]:
    """Name a file that cannot be read."""
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{error.filename} cannot be read",
            rule="every image that is listed is a file that may be read",
            values=error.strerror or str(error),
            remedy=("put the file right, or remove it", "or data.damaged=skip"),
        ) from error


@dataclass(frozen=True, kw_only=True)
class ImageFolderListing:
    """What a folder of images holds."""

    classes: tuple[str, ...]
    """Names of the classes, in the order of the labels."""
    splits: Mapping[str, list[tuple[Path, int]]]
    """Image files and their labels: `train`, and the split that is held out."""


def open_image_folder(
    path: str, features: FeatureSpec, corrupt_cache: Path | None = None
) -> tuple[DecodedImages, DecodedImages]:
    """Open a folder of images.

    Args:
        path: the folder (`data.path`).
        features: what the network reads.
        corrupt_cache: folder for notes of damaged images, which are left out; none: no
        image is
            looked at, and one that cannot be decoded ends the run.

    Returns:
        Images to train on and those held out; classes in the order of their names.

    Raises:
        BadInput: no such folder, a split without images, or a class that only the
            held-out images have.
    """
    shape, found = image_shape(features, "folder"), list_image_folder(path)
    splits = [*found.splits.values()]
    if corrupt_cache is not None:
        splits = [_drop_corrupt(files, corrupt_cache) for files in splits]
    train, test = (
        DecodedImages(FolderImages(files, len(found.classes)), shape)
        for files in splits
    )
    return train, test


def _drop_corrupt(files: LabelledPaths, notes: Path) -> LabelledPaths:
    """Leave out what cannot be decoded, and say what.

    Raises:
        BadInput: nothing is left.
    """
    bad = find_corrupt_images([path for path, _ in files], notes)
    if bad:
        first = ", ".join(str(path) for path in sorted(bad)[:5])
        more = ", ..." if len(bad) > 5 else ""
        warnings.warn(
            f"{len(bad):,} of {len(files):,} images cannot be decoded and are left "
            f"out: {first}{more}",
            JaxdistWarning,
            stacklevel=2,
        )
    if len(bad) == len(files):
        raise _no_images_error(
            str(files[0][0].parent.parent.parent), "every one is damaged"
        )
    return [(path, label) for path, label in files if path not in bad]


def list_image_folder(path: str) -> ImageFolderListing:
    """List a folder of images, train first; no image is read.

    Raises:
        BadInput: as `open_image_folder` does.
    """
    root = Path(path)
    tested = next((s for s in _EVAL_SPLITS if (root / s).is_dir()), _EVAL_SPLITS[0])
    if not path or not (root / "train").is_dir() or not (root / tested).is_dir():
        raise _no_images_error(path, f"looked for {root / 'train'} and {root / tested}")
    names = sorted(each.name for each in (root / "train").iterdir() if each.is_dir())
    splits = {split: _list_split(root / split, names) for split in ("train", tested)}
    return ImageFolderListing(classes=tuple(names), splits=splits)


def _list_split(split: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """List a split's images, by class and name."""
    if others := sorted({e.name for e in split.iterdir() if e.is_dir()} - set(names)):
        raise BadInput(
            f"{split} has classes that are not trained",
            rule="every class has a folder in train",
            values=", ".join(others[:5]),
            remedy=f"mkdir {split.parent / 'train' / others[0]}, with images",
        )
    files = [
        (path, label)
        for label, name in enumerate(names)
        for path in sorted((split / name).glob("*"))
        if path.suffix.lower() in _SUFFIXES
    ]
    if not files:
        raise _no_images_error(str(split.parent), f"no image in {split}")
    return files


def _no_images_error(path: str, values: str) -> BadInput:
    return BadInput(
        f"no images in {path or 'data.path'}",
        rule="a folder of images is FOLDER/train/CLASS/*.jpg and "
        "FOLDER/test/CLASS/*.jpg (png too; validation or val for test)",
        values=values,
        remedy="data.name=folder data.path=FOLDER",
    )
