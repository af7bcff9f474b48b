"""Volumes: 3-D maps with numbers to estimate, one `.npz` file a sample.

FOLDER/train/*.npz    FOLDER/test/*.npz    each: image [D, H, W, C], target [n]
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.sources import Arrays, SampleIds


class Volumes:
    """Volumes in files, in the order of their names; a `Source`."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to `image` [n, D, H, W, C] and `target` [n, m]."""
        samples: list[dict[str, NDArray[Any]]] = []
        # A file is read whole each time: volumes are too large to hold.
        for path in (self._files[i] for i in ids):
            try:
                with np.load(path) as file:
                    samples.append({key: file[key] for key in ("image", "target")})
            except (OSError, KeyError, ValueError, BadZipFile) as error:
                raise BadInput(
                    f"{path} is no volume",
                    rule="a volume is an .npz file with image [D, H, W, C] and "
                    "target [n]",
                    values=str(error),
                    remedy=f"np.savez('{path}', image=..., target=...)",
                ) from error
        return {key: np.stack([s[key] for s in samples]) for key in ("image", "target")}

    @property
    def fingerprint(self) -> str:
        """Digest of names and sizes; no file is read."""
        # Names and sizes: reading terabytes to name them would take as long as
        # training.
        text = "\n".join(f"{f.name} {f.stat().st_size}" for f in self._files)
        return hashlib.sha256(text.encode()).hexdigest()


def open_volumes(path: str) -> tuple[Volumes, Volumes]:
    """Open a folder of volumes.

    Args:
        path: the folder (`data.path`).

    Raises:
        BadInput: no such folder, or no volume in one of its parts.
    """
    # Sorted: file systems list in any order, and ids are places in this list.
    found = [sorted(Path(path, part).glob("*.npz")) for part in ("train", "test")]
    if not path or not all(found):
        counts = f"{len(found[0])} in train, {len(found[1])} in test"
        raise BadInput(
            f"no volumes in {path or 'data.path'}",
            rule="volumes are FOLDER/train/*.npz and FOLDER/test/*.npz, "
            "each with image [D, H, W, C] and target [n]",
            values=counts if path else "data.path is empty",
            remedy=["data.path=FOLDER", "data.name=synthetic, random volumes"],
        )
    return Volumes(found[0]), Volumes(found[1])
