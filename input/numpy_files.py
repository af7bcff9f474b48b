"""NumPy files: arrays of samples under names of one's own, for any network.

FILE.npz                    of arrays train_KEY and test_KEY
FOLDER/train_KEY.npy        and test_KEY.npy: mapped into memory, and read as needed

KEY is what the network reads: image and label, image and target, tokens and target.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.sources import Arrays, ArraySource

_SPLITS: Final = ("train", "test")


class LabelledArrays(ArraySource):
    """Arrays of samples that have a label each.

    Args:
        arrays: one array a key, [N, ...]; `label` has whole numbers [N], from 0.
        classes: labels are 0 ... classes - 1.
    """

    def __init__(self, arrays: Arrays, classes: int) -> None:
        super().__init__(arrays)
        self.classes = classes


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
    found = _read(path)
    parts = [_split_arrays(part, found) for part in _SPLITS]
    if not parts[0] or set(parts[0]) != set(parts[1]):
        raise _no_arrays_error(path, f"{path} holds {', '.join(found) or 'no array'}")
    train, test = _make_sources(path, *parts)
    return train, test


def _split_arrays(part: str, found: Arrays) -> Arrays:
    begin = f"{part}_"
    own = {name: x for name, x in found.items() if name.startswith(begin)}
    return {name.removeprefix(begin): array for name, array in own.items()}


def _make_sources(path: str, *parts: Arrays) -> list[ArraySource]:
    """Make sources; labels are counted over both, so that each has all classes."""
    labels = [part["label"] for part in parts if "label" in part]
    whole = all(np.issubdtype(x.dtype, np.integer) and x.ndim == 1 for x in labels)
    if not labels or not whole:
        return [ArraySource(part) for part in parts]
    if min(int(x.min(initial=0)) for x in labels) < 0:
        raise _no_arrays_error(path, "there are labels below 0")
    classes = 1 + max(int(x.max(initial=0)) for x in labels)
    return [LabelledArrays(part, classes) for part in parts]


def _read(path: str) -> Mapping[str, NDArray[Any]]:
    """Read the arrays of a file, or map those of a folder."""
    root = Path(path)
    try:
        if path and root.is_dir():
            files = sorted(root.glob("*.npy"))
            return {file.stem: np.load(file, mmap_mode="r") for file in files}
        with np.load(root) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, TypeError, BadZipFile) as error:
        raise _no_arrays_error(
            path, f"{path or 'data.path is empty'}: {error}"
        ) from error


def _no_arrays_error(path: str, values: str) -> BadInput:
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
