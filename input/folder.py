"""A folder of images: one folder a split, in it one a class, in it the files.

FOLDER/train/cat/1.jpg    FOLDER/test/cat/7.jpg (or validation, or val)
"""

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.files import write_atomic
from jaxdist.core.text_encoding import printable_path
from jaxdist.core.validation import json_text, parse_json
from jaxdist.input.feature_spec import FeatureSpec, image_shape
from jaxdist.input.image_files import (
    DecodedImages,
    UndecodableImageError,
    decode_image,
)

_SUFFIXES: Final = (".jpg", ".jpeg", ".png")
_EVAL_SPLITS: Final = ("validation", "val", "test")
"""Folders that a run is scored on, the first that is there."""
_MAX_FINGERPRINT_FILES: Final = 256
"""Files of a split whose content is in its fingerprint, evenly among all."""
_DECODE_THREADS: Final = 4


class FolderImages:
    """Image files with a label each; is `Encoded`.

    Args:
        files: path and label, in the order of the ids.
        classes: labels are 0 ... classes - 1.
    """

    remedy = "data.corrupt_images=skip, or put the file right"

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
            # One file after the other: grain reads several batches at once.
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
            # The size of every file, and the content of some: reading all of ImageNet
            # would take longer than many runs. Times differ between copies.
            for path, label in self._files:
                name, size = f"{path.parent.name}/{path.name}", path.stat().st_size
                digest.update(_encode_name(f"{name} {label} {size}\n"))
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
            f"{printable_path(str(error.filename))} cannot be read",
            rule="every image that is listed is a file that may be read",
            values=error.strerror or str(error),
            remedy=("put the file right, or remove it", "or data.corrupt_images=skip"),
        ) from error


@dataclass(frozen=True, kw_only=True)
class ImageFolderListing:
    """What a folder of images holds."""

    classes: tuple[str, ...]
    """Names of the classes, in the order of the labels."""
    splits: Mapping[str, list[tuple[Path, int]]]
    """Image files and their labels: `train`, and the split that is held out."""
    passed_over: str = ""
    """What of the folder is no image of a class, counted and named; else empty."""

    def warn(self) -> None:
        """Tell what was passed over, in one line."""
        if self.passed_over:
            warnings.warn(self.passed_over, JaxdistWarning, stacklevel=3)


def open_image_folder(
    path: str, features: FeatureSpec, corrupt_cache: Path | None = None
) -> tuple[DecodedImages, DecodedImages]:
    """Open a folder of images.

    Args:
        path: the folder (`data.path`).
        features: what the network reads.
        corrupt_cache: folder for the list of damaged images, which are left out; none:
            no image is looked at, and one that cannot be decoded ends the run.

    Returns:
        Images to train on and those held out; classes in the order of their names.

    Raises:
        BadInput: no such folder, a split without images, or a class that only the
            held-out images have.
    """
    shape, found = image_shape(features, "folder"), list_image_folder(path)
    found.warn()
    splits = []
    for files in found.splits.values():
        bad: frozenset[Path] = frozenset()
        if corrupt_cache is not None:
            bad = find_corrupt_images([path for path, _ in files], corrupt_cache)
        if bad:
            first = printable_path(", ".join(map(str, sorted(bad)[:5])))
            more = ", ..." if len(bad) > 5 else ""
            warnings.warn(
                f"{len(bad):,} of {len(files):,} images cannot be decoded and are left "
                f"out: {first}{more}",
                JaxdistWarning,
                stacklevel=2,
            )
        if len(bad) == len(files):
            raise _no_images_error(str(Path(path)), "every one is damaged")
        whole = [(path, label) for path, label in files if path not in bad]
        encoded = FolderImages(whole, len(found.classes))
        splits.append(DecodedImages(encoded, shape, found.classes))
    train, test = splits
    return train, test


def find_corrupt_images(files: Sequence[Path], cache_folder: Path) -> frozenset[Path]:
    """Return which image files cannot be decoded, each of them read once.

    Args:
        files: the images.
        cache_folder: folder in which the result is kept, for these names, sizes and
            times of change; files that changed are read again.
    """
    # What can be decoded depends on the rules of this version, too.
    digest = hashlib.sha256(b"decode_image\n")
    for path in files:
        try:
            seen = path.stat()
            version = f"{seen.st_size} {seen.st_mtime_ns}"
        except OSError as error:  # a link to nothing
            version = f"unreadable, {error.errno}"
        digest.update(_encode_name(f"{path} {version}\n"))
    index = cache_folder / f"images-{digest.hexdigest()[:16]}.json"
    # An index that is damaged, or not there, is made again.
    with suppress(OSError, ValueError, TypeError):
        return frozenset(map(Path, parse_json(index.read_text(encoding="utf-8"))))

    # Pillow releases the interpreter's lock while it decodes: threads are enough.
    with ThreadPoolExecutor(_DECODE_THREADS) as pool:
        whole = pool.map(_is_decodable, files)
        found = [path for path, good in zip(files, whole, strict=True) if not good]

    # Written aside and renamed: other processes of a run may look at the same time.
    cache_folder.mkdir(parents=True, exist_ok=True)
    write_atomic(index, json_text([str(path) for path in found]))
    return frozenset(found)


def _is_decodable(path: Path) -> bool:
    """Tell whether a file is an image that can be decoded to its end."""
    try:
        decode_image(path.read_bytes(), 3)
    except (OSError, UndecodableImageError):
        return False
    return True


def list_image_folder(path: str) -> ImageFolderListing:
    """List a folder of images, train first; no image is read.

    Raises:
        BadInput: as `open_image_folder` does.
    """
    root = Path(path)
    tested = next((s for s in _EVAL_SPLITS if (root / s).is_dir()), _EVAL_SPLITS[0])
    if not path or not (root / "train").is_dir() or not (root / tested).is_dir():
        raise _no_images_error(path, f"looked for {root / 'train'} and {root / tested}")

    # A label is a place in the sorted names of train, in both parts.
    passed = _PassedOver(root)
    held_by_split = {s: set(passed.classes(root / s)) for s in ("train", tested)}
    names = sorted(held_by_split["train"])
    splits = {}
    for split in (root / "train", root / tested):
        held = held_by_split[split.name]
        if others := sorted(held - set(names)):
            raise BadInput(
                f"{split} has classes that are not trained",
                rule="every class has a folder in train",
                values=printable_path(", ".join(others[:5])),
                remedy="mkdir "
                + printable_path(f"{split.parent / 'train' / others[0]}, with images"),
            )
        splits[split.name] = [
            (path, label)
            for label, name in enumerate(names)
            if name in held
            for path in passed.images(split / name)
        ]
        if not splits[split.name]:
            raise _no_images_error(str(split.parent), f"no image in {split}")
    return ImageFolderListing(
        classes=tuple(names), splits=splits, passed_over=passed.text()
    )


class _PassedOver:
    """Lists folders, and counts what in them is no class and no image."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._found: dict[str, list[Path]] = {}

    def classes(self, split: Path) -> list[str]:
        """Return the folders of a split that are classes."""
        found = []
        for path, is_folder in _list_folder(split):
            if path.name.startswith("."):
                self._add("hidden", path)
            elif not is_folder:
                self._add("beside the classes", path)
            else:
                found.append(path.name)
        return found

    def images(self, folder: Path) -> list[Path]:
        """Return the images of a class, in the order of their names."""
        found = []
        for path, is_folder in _list_folder(folder):
            if path.name.startswith("."):
                self._add("hidden", path)
            elif is_folder:
                self._add("folders inside a class", path)
            elif path.suffix.lower() not in _SUFFIXES:
                self._add(f"other than {', '.join(_SUFFIXES)}", path)
            else:
                found.append(path)
        if not found:
            self._add("classes without an image", folder)
        return found

    def text(self) -> str:
        """Say what was passed over in one line; empty where nothing was."""
        parts = []
        for kind, paths in self._found.items():
            shown = ", ".join(str(path.relative_to(self._root)) for path in paths[:3])
            more = ", ..." if len(paths) > 3 else ""
            parts.append(f"{kind}: {len(paths):,} ({shown}{more})")
        line = f"passed over in {self._root}: {'; '.join(parts)}"
        return printable_path(line) if parts else ""

    def _add(self, kind: str, path: Path) -> None:
        self._found.setdefault(kind, []).append(path)


def _list_folder(folder: Path) -> list[tuple[Path, bool]]:
    """List a folder by name: each path, and whether it is a folder itself."""
    try:
        # Of millions of files none is asked for what it is: the folder knows.
        with os.scandir(folder) as entries:
            return sorted((Path(entry.path), entry.is_dir()) for entry in entries)
    except OSError as error:
        raise BadInput(
            f"{printable_path(str(folder))} cannot be listed",
            rule="every folder of images may be read",
            values=error.strerror or str(error),
            remedy="chmod u+rx on the folder, or remove it",
        ) from error


def _encode_name(text: str) -> bytes:
    """Return the bytes of a name, which may be no text."""
    return text.encode("utf-8", "surrogateescape")


def _no_images_error(path: str, values: str) -> BadInput:
    return BadInput(
        f"no images in {printable_path(path) or 'data.path'}",
        rule="a folder of images is FOLDER/train/CLASS/*.jpg and "
        "FOLDER/test/CLASS/*.jpg (png too; validation or val for test)",
        values=printable_path(values),
        remedy="data.name=folder data.path=FOLDER",
    )
