"""Samples in whole arrays: IDX files of MNIST, `.npz` and `.npy` files.

FOLDER/train-images-idx3-ubyte    FOLDER/train-labels-idx1-ubyte    (or .gz)
FOLDER/t10k-images-idx3-ubyte     FOLDER/t10k-labels-idx1-ubyte     (or .gz)

FILE.npz, or the one in FOLDER: train_x, train_y, test_x, test_y

An IDX file holds one array of bytes (Y. LeCun, C. Cortes and C. Burges, "The MNIST
database", section on its files):

    0 0 8 n    8: unsigned bytes; n: number of dims
    n x 4 B    sizes, big-endian
    the rest   numbers, the last dim fastest

NumPy files: arrays of samples under names of one's own, for any network.

FILE.npz                    of arrays train_KEY and test_KEY
FOLDER/train_KEY.npy        and test_KEY.npy: mapped into memory, and read as needed

KEY is what the network reads: image and label, image and target, tokens and target.
"""

import gzip
import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput, decoder_errors, nearest_path
from jaxdist.input.sources import Arrays, ArraySource, SampleIds

_IDX_FILES: Final = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}
_UINT8_MAGIC: Final = b"\x00\x00\x08"


class LabelledImages:
    """Images of whole numbers in memory, read as real numbers; a `Source`.

    Args:
        images: uint8 [N, H, W, C].
        labels: whole numbers [N], from 0.
        classes: labels are 0 ... classes - 1.
    """

    def __init__(
        self, images: NDArray[np.uint8], labels: NDArray[Any], classes: int
    ) -> None:
        self._images, self._labels = images, labels.astype(np.int32)
        self.classes = classes

    def __len__(self) -> int:
        return len(self._labels)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to `image` [n, H, W, C] in [0, 1] and `label` [n]."""
        # Bytes are held, a quarter of the memory of float32, and scaled batch by batch.
        return {
            "image": self._images[ids] / np.float32(255),
            "label": self._labels[ids],
        }

    @cached_property
    def fingerprint(self) -> str:
        """Digest of shape and every pixel and label."""
        digest = hashlib.sha256(f"{self._images.shape} {self.classes}".encode())
        digest.update(np.ascontiguousarray(self._images).data)
        digest.update(np.ascontiguousarray(self._labels).data)
        return digest.hexdigest()


def open_arrays(
    path: str, size: int | None = None
) -> tuple[LabelledImages, LabelledImages]:
    """Open labelled images that are in whole arrays.

    Args:
        path: a folder of IDX files or with one `.npz` file, or that file (`data.path`).
        size: rows and columns of an image, each the mean of whole squares; None: those
            that it has.

    Returns:
        The train and the test samples.

    Raises:
        BadInput: files or arrays are missing, damaged, or no images with a label each,
            or such squares do not tile them.
    """
    found = _read(path)
    parts = [(found[f"{part}_x"], found[f"{part}_y"]) for part in ("train", "test")]
    # Labels [N, 1], as Keras has them.
    parts = [(x, y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y) for x, y in parts]
    sources = []
    classes = 0
    # Over both parts: a class that only one of them has is a class of the network.
    for _, labels in parts:
        if np.issubdtype(labels.dtype, np.integer):
            classes = max(classes, 1 + int(labels.max(initial=0)))
    for images, labels in parts:
        pixels = images[..., None] if images.ndim == 3 else images  # grey: 1 channel
        whole = images.dtype == np.uint8 and np.issubdtype(labels.dtype, np.integer)
        same = labels.ndim == 1 and pixels.ndim == 4 and len(pixels) == len(labels)
        if not (whole and same and len(labels) and labels.min() >= 0):
            shown = (f"{x.dtype} {list(x.shape)}" for x in (images, labels))
            raise _no_arrays_error(path, f"images {next(shown)}, labels {next(shown)}")

        count, high, wide, channels = pixels.shape
        if size is not None and not size == high == wide:
            if high != wide or high % size:
                raise BadInput(
                    f"images of {high} x {wide} are not cut to {size} x {size}",
                    rule="data.size divides the rows of square images, for "
                    "data.name=arrays",
                    values=f"data.size = {size}",
                    remedy="data.size=None, or half of the rows",
                )
            # Average pooling, rounded back to the bytes that are held in memory.
            side = high // size
            # [N, size, side, size, side, C]
            squares = pixels.reshape(count, size, side, size, side, channels)
            pixels = np.rint(squares.mean((2, 4))).astype(np.uint8)
        sources.append(LabelledImages(pixels, labels, classes))
    train, test = sources
    return train, test


def _read(path: str) -> Mapping[str, NDArray[Any]]:
    """Read the four arrays, of IDX files where there are any."""
    root = Path(path)
    idx = {
        key: [p for p in (root / name, root / f"{name}.gz") if p.is_file()]
        for key, name in _IDX_FILES.items()
    }
    if path and any(idx.values()):
        for key, name in _IDX_FILES.items():
            if not idx[key]:
                raise _no_arrays_error(
                    str(root), f"no {name} and no {name}.gz in {root}"
                )
        return {key: _read_idx(files[0]) for key, files in idx.items()}

    # Without IDX files: one .npz file, named or alone in its folder.
    packed = [root] if root.suffix == ".npz" else sorted(root.glob("*.npz"))
    if not path or len(packed) != 1 or not packed[0].is_file():
        known = sorted(each.name for each in root.glob("*"))[:5] if path else []
        listed = f"{path} holds {', '.join(known) or 'nothing'}"
        raise _no_arrays_error(path, listed if path else "data.path is empty")
    # Arrays of objects are refused: they are pickles, which run code when loaded.
    with (
        decoder_errors(lambda said: _no_arrays_error(path, f"{packed[0]}: {said}")),
        np.load(packed[0]) as file,
    ):
        return {key: file[key] for key in _IDX_FILES}


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a file of unsigned bytes, unpacked with gzip where its name ends in `.gz`.

    Raises:
        BadInput: it cannot be read, is no such file, or is cut short.
    """

    def refuse(said: str) -> BadInput:
        return BadInput(
            f"{path.name} is no whole IDX file",
            rule="an IDX file of images or labels begins with 00 00 08 and its sizes, "
            "and holds as many bytes as they say",
            values=f"{path}: {said}",
            remedy=f"rm {path}    # and download it again",
        )

    with decoder_errors(refuse):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        if content[:3] != _UINT8_MAGIC or len(content) < 4 + 4 * content[3]:
            raise ValueError(f"it begins with {content[:4].hex(' ') or 'nothing'}")
        start = 4 + 4 * content[3]
        shape = np.frombuffer(content[4:start], ">u4").tolist()
        numbers = np.frombuffer(content, np.uint8, offset=start)
        if len(numbers) != math.prod(shape):
            raise ValueError(f"shape {shape}, {len(numbers):,} numbers")
        return numbers.reshape(shape)


def _no_arrays_error(path: str, values: str) -> BadInput:
    return BadInput(
        f"no arrays of labelled images in {path or 'data.path'}",
        rule=f"a folder has {', '.join(_IDX_FILES.values())} (or each with .gz), or "
        f"one .npz file of {', '.join(_IDX_FILES)}: images uint8 [N, H, W] or "
        "[N, H, W, C], labels [N] from 0",
        values=values,
        remedy=(
            "data.path=FOLDER, with files of github.com/zalandoresearch/fashion-mnist",
            "or data.name=fashion_mnist, as TFDS prepares it",
        ),
    )


_SPLITS: Final = ("train", "test")


class LabelledArrays(ArraySource):
    """Arrays of samples that have a label each.

    Args:
        arrays: one array a key, [N, ...]; `label` has whole numbers [N], from 0.
        classes: labels are 0 ... classes - 1.
        class_names: words of the labels, in their order; empty where there are none.
    """

    def __init__(
        self, arrays: Arrays, classes: int, class_names: tuple[str, ...] = ()
    ) -> None:
        super().__init__(arrays)
        self.classes, self.class_names = classes, class_names


def open_numpy(path: str) -> tuple[ArraySource, ArraySource]:
    """Open arrays of samples that are in NumPy's own files.

    Args:
        path: an `.npz` file, or a folder of `.npy` files.

    Returns:
        The train and the test samples.

    Raises:
        BadInput: there is no such file, it is damaged, an array is missing in one of
            the two, or they have different lengths.
    """
    root = Path(path)
    if path and root.is_dir():
        # Mapped: a folder may hold more than the machine's memory.
        found = {each.stem: _map_array(path, each) for each in root.glob("*.npy")}
        # A folder lists its files in any order.
        found = dict(sorted(found.items()))
    else:
        if path and not root.exists():
            near = nearest_path(root)
            raise BadInput(
                f"no file or folder {path}",
                rule="data.name=numpy:PATH reads an .npz file, or a folder of .npy "
                "files",
                values=f"looked in {root.parent.resolve()}",
                remedy=f"did you mean numpy:{near}?"
                if near
                else "data.name=numpy:PATH",
            )
        said_of = path or "data.path is empty"
        with (
            decoder_errors(lambda said: _no_samples_error(path, f"{said_of}: {said}")),
            np.load(root) as file,
        ):
            found = dict(file)
    train, test = (
        {
            name.removeprefix(f"{part}_"): array
            for name, array in found.items()
            if name.startswith(f"{part}_")
        }
        for part in _SPLITS
    )
    if not train or set(train) != set(test):
        raise _no_samples_error(path, f"{path} holds {', '.join(found) or 'no array'}")

    labels = [part["label"] for part in (train, test) if "label" in part]
    whole = all(np.issubdtype(x.dtype, np.integer) and x.ndim == 1 for x in labels)
    if not labels or not whole:
        return ArraySource(train), ArraySource(test)
    for name, part in (("train", train), ("test", test)):
        label = part["label"]
        if label.min(initial=0) < 0:
            row = int(np.argmax(label < 0))
            raise BadInput(
                f"{name}_label of {path} is out of range",
                rule="labels are whole numbers from 0",
                values=f"label = {label[row]} in sample {row}",
                remedy=f"mend the sample, or leave it out: {name}_label >= 0",
            )
    # Counted over both parts, so that each has all classes.
    classes = 1 + max(int(x.max(initial=0)) for x in labels)
    return LabelledArrays(train, classes), LabelledArrays(test, classes)


def _map_array(path: str, file: Path) -> NDArray[Any]:
    with decoder_errors(lambda said: _no_samples_error(path, f"{file}: {said}")):
        found: NDArray[Any] = np.load(file, mmap_mode="r")
        return found


def _no_samples_error(path: str, values: str) -> BadInput:
    return BadInput(
        f"no arrays of samples in {path or 'data.path'}",
        rule="an .npz file has arrays train_KEY and test_KEY, as many of one as of the "
        "other; a folder has them as train_KEY.npy and test_KEY.npy",
        values=values,
        remedy=(
            'np.savez("my.npz", train_image=..., train_label=..., test_image=..., '
            "test_label=...)",
            "data.name=numpy:my.npz",
        ),
    )
