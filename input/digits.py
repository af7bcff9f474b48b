"""The digits data set: 1,797 handwritten digits, bundled (`digits.npz`).

1,437 train, 360 (a stratified fifth) test. On disk 8x8 with values 0 to 16, as a TFDS
data set of ArrayRecord files; read as 16x16x1 in [0, 1], each pixel doubled.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np

from jaxdist.input.prepare import ensure_prepared
from jaxdist.input.sources import Arrays, Source, TfdsSource, load_into_memory

NAME: Final = "digits"
VERSION: Final = "1.0.0"


def open_digits(directory: Path) -> tuple[Source, Source]:
    """Open the digits, preparing them when they are not there yet.

    Args:
        directory: folder of all data sets (`data.dir`).

    Returns:
        The train and the test samples: `image` float32 [16, 16, 1], `label` int32.

    Raises:
        BadInput: the folder cannot be written, or what is there is damaged.
    """
    folder = directory / NAME
    ensure_prepared(folder, build)
    # After the check: no reader ever sees a file that is not whole.
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder / VERSION)
    train, test = builder.as_data_source(["train", "test"])
    return load_into_memory(TfdsSource(train, decode)), load_into_memory(
        TfdsSource(test, decode)
    )


def decode(features: Arrays) -> Arrays:
    """Turn stored features into a batch: uint8 [n, 8, 8] to float32 [n, 16, 16, 1]."""
    # Doubled to 16 x 16: networks halve images several times.
    images = (features["image"] / np.float32(16)).repeat(2, axis=1).repeat(2, axis=2)
    return {"image": images[..., None], "label": features["label"].astype(np.int32)}


def build(directory: Path) -> None:
    """Write the data set into `directory/digits`, in a process of its own.

    TFDS's printing stays out of this process, which may be compiling meanwhile.

    Raises:
        RuntimeError: that process failed, with what it said.
    """
    # The same module path: the package may not be installed, only found from here.
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from jaxdist.input.digits_builder import write\n"
        f"write({str(directory)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the digits could not be prepared:\n{done.stderr}")
