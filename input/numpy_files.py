"""NumPy files: arrays of samples under names of one's own, for any network.

FILE.npz                    of arrays train_KEY and test_KEY
FOLDER/train_KEY.npy        and test_KEY.npy: mapped into memory, and read as needed

KEY is what the network reads: image and label, image and target, tokens and target.
"""

from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np

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
    root = Path(path)
    try:
        if path and root.is_dir():
            files = sorted(root.glob("*.npy"))
            # Mapped: a folder may hold more than the machine's memory.
            found = {file.stem: np.load(file, mmap_mode="r") for file in files}
        else:
            with np.load(root) as file:
                found = dict(file)
    except (OSError, ValueError, EOFError, TypeError, BadZipFile) as error:
        raise _no_arrays_error(
            path, f"{path or 'data.path is empty'}: {error}"
        ) from error
    train, test = (
        {
            name.removeprefix(f"{part}_"): array
            for name, array in found.items()
            if name.startswith(f"{part}_")
        }
        for part in _SPLITS
    )
    if not train or set(train) != set(test):
        raise _no_arrays_error(path, f"{path} holds {', '.join(found) or 'no array'}")

    labels = [part["label"] for part in (train, test) if "label" in part]
    whole = all(np.issubdtype(x.dtype, np.integer) and x.ndim == 1 for x in labels)
    if not labels or not whole:
        return ArraySource(train), ArraySource(test)
    if min(int(x.min(initial=0)) for x in labels) < 0:
        raise _no_arrays_error(path, "there are labels below 0")
    # Counted over both parts, so that each has all classes.
    classes = 1 + max(int(x.max(initial=0)) for x in labels)
    return LabelledArrays(train, classes), LabelledArrays(test, classes)


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
