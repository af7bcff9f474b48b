"""Room: a host's store, as large as its disk allows.

A disk that is full when a store is made takes nothing from training: what has no place
is read where the data set is. Samples of one size take all their room at once, so that
a disk which others fill up later is no matter; others are written one by one.
"""

import os
import warnings
from pathlib import Path
from typing import Final

import numpy as np

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.text.formatting import format_count
from jaxdist.input.local_shuffle.byte_store import DISK_FULL_ERRNOS, ByteStore
from jaxdist.input.local_shuffle.store import ArrayStore
from jaxdist.input.sources import Arrays, Source

_USABLE_FRACTION: Final = 0.9
"""Part of what is free that a smaller store takes: blocks are not filled to the end."""
_INDEX_ENTRY_BYTES: Final = 16


def make_store(
    source: Source, capacity: int, folder: Path | None
) -> ArrayStore | ByteStore:
    """Make a store for some samples of a source, or for as many as there is room for.

    Args:
        source: all samples.
        capacity: most samples at once.
        folder: where they lie on disk; none: in memory.

    Raises:
        BadInput: the folder cannot be written.
    """
    like = source.get(np.zeros(1, np.int64))
    if any(array.dtype.hasobject for array in like.values()):
        return _make_byte_store(like, capacity, folder, source.fingerprint)
    if folder is None:
        return ArrayStore(like, capacity)
    try:
        return ArrayStore(like, capacity, folder, source.fingerprint)
    except OSError as refused:
        if refused.errno not in DISK_FULL_ERRNOS:
            raise _not_writable_error(folder, refused) from refused
    try:
        fewer = min(_max_samples(folder, like), capacity - 1)
        store = ArrayStore(like, fewer, folder, source.fingerprint)
    except (OSError, ValueError):  # there is room for none, or others were faster
        fewer, store = 0, ArrayStore(like, 1)
    warnings.warn(
        JaxdistWarning(
            f"{folder} has room for {format_count(fewer)} of {format_count(capacity)} "
            "samples; the "
            "others are read where the data set is"
        ),
        stacklevel=2,
    )
    return store


def _make_byte_store(
    like: Arrays, places: int, folder: Path | None, of: str
) -> ByteStore:
    try:
        return ByteStore(like, places, folder, of)
    except OSError as refused:
        assert folder is not None
        raise _not_writable_error(folder, refused) from refused


def _max_samples(folder: Path, like: Arrays) -> int:
    """Return how many samples the free room of a disk holds."""
    for path in folder.glob("*.bin"):
        path.unlink()
    disk = os.statvfs(folder)
    each = _INDEX_ENTRY_BYTES + sum(array.nbytes for array in like.values())
    return int(_USABLE_FRACTION * disk.f_bavail * disk.f_frsize) // each


def _not_writable_error(folder: Path, refused: OSError) -> BadInput:
    return BadInput(
        f"samples cannot be kept in {folder}",
        rule="data.store_dir is a folder of this host's own that can be written",
        values=f"{refused.strerror or refused}",
        remedy=("data.store_dir=FOLDER", "or data.store=memory"),
    )
