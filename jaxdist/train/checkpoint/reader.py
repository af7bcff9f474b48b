"""A stored checkpoint: read and checked without the model, its mesh or its devices.

Nothing here writes, so it is safe beside a run that is saving.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import orbax_store
from jaxdist.train.checkpoint.checksum import fingerprint
from jaxdist.train.checkpoint.manifest import (
    CheckpointManifest,
    CorruptCheckpointError,
    LeafMetadata,
    decode_manifest,
)

_READ_BATCH_BYTES: Final = 256_000_000
"""Bytes read at a time, so that a checkpoint may be larger than this host's memory."""

_QUARANTINE_PREFIX: Final = "damaged-"


@dataclass(frozen=True, kw_only=True)
class SkippedCheckpoint:
    """A checkpoint that could not be used."""

    step: int
    """Step it was saved at."""
    reason: str
    """What is wrong with it: the leaf, and what was found there."""

    def text(self) -> str:
        """Say so in one line.

        >>> SkippedCheckpoint(step=460, reason="notes, cannot be read").text()
        'checkpoint 460 skipped: notes, cannot be read'
        """
        return f"checkpoint {self.step} skipped: {self.reason}"


def list_steps(directory: Path) -> tuple[int, ...]:
    """List the steps whose checkpoints are wholly written, oldest first."""
    if not directory.is_dir():
        return ()
    names = (path.name for path in directory.iterdir() if path.is_dir())
    return tuple(sorted(int(name) for name in names if name.isdecimal()))


def list_quarantined(directory: Path) -> tuple[Path, ...]:
    """List the damaged checkpoints that a restart has moved aside."""
    return tuple(sorted(directory.glob(f"{_QUARANTINE_PREFIX}*")))


def quarantine_path(directory: Path, step: int) -> Path:
    """Give the free name under which a damaged checkpoint is kept."""
    path, again = directory / f"{_QUARANTINE_PREFIX}{step}", 1
    while path.exists():
        again += 1
        path = directory / f"{_QUARANTINE_PREFIX}{step}-{again}"
    return path


def checkpoint_folder(directory: Path, step: int | None) -> Path:
    """Find the folder of a step, the newest if none is named.

    Raises:
        BadInput: there is no such checkpoint.
    """
    there = list_steps(directory)
    if there and (step is None or step in there):
        return directory / str(there[-1] if step is None else step)
    listed = ", ".join(map(str, there)) or "none"
    raise BadInput(
        f"no checkpoint{'' if step is None else f' {step}'} in {directory}",
        rule="a checkpoint is named by the step it was saved at",
        values=f"checkpoints: {listed}",
        remedy=f"--checkpoint {there[-1]}" if there else "train first: jaxdist train",
    )


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read what a checkpoint says about itself.

    Raises:
        Damaged: the notes are missing, changed, or of another step.
    """
    try:
        notes = decode_manifest(orbax_store.read_manifest(folder))
    except Exception as error:
        reraise_unless_corrupt(error)
        raise CorruptCheckpointError("notes, cannot be read") from error
    if folder.name.isdecimal() and notes.step != int(folder.name):
        raise CorruptCheckpointError(f"notes, of step {notes.step}")
    return notes


def read_leaves(
    folder: Path, manifest: CheckpointManifest, *, prefix: str = ""
) -> Iterator[tuple[str, np.ndarray]]:
    """Read leaves on the host in the order of their names, each one verified.

    Args:
        folder: a stored checkpoint.
        manifest: its notes.
        prefix: only leaves whose name begins so.

    Raises:
        Damaged: a leaf cannot be read or is not what was saved.
    """
    wanted = {
        name: note for name, note in manifest.leaves.items() if name.startswith(prefix)
    }
    for batch in _read_batches(wanted):
        arrays = _read_batch(folder, batch)
        for name in batch:
            check_fingerprint(name, wanted[name], fingerprint(arrays[name]))
            yield name, arrays[name]


def find_corruption(folder: Path) -> str | None:
    """Read every byte of a checkpoint and say what is damaged, or None."""
    try:
        for _ in read_leaves(folder, read_manifest(folder)):
            pass
    except CorruptCheckpointError as damage:
        return str(damage)
    return None


def check_fingerprint(name: str, metadata: LeafMetadata, fingerprint: int) -> None:
    """Hold a fingerprint against the one that was saved.

    Raises:
        Damaged: they differ.
    """
    if (hexadecimal := f"{fingerprint:08x}") != metadata.fingerprint:
        raise CorruptCheckpointError(
            f"{name}, checksum {hexadecimal} instead of {metadata.fingerprint}"
        )


def reraise_unless_corrupt(error: Exception) -> None:
    """Raise again what is no fault of the checkpoint: no memory, no permission."""
    ours = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "Too many open files")
    if isinstance(error, CorruptCheckpointError | MemoryError | PermissionError):
        raise error
    if any(word in str(error) for word in ours):
        raise error


def _read_batches(leaves: dict[str, LeafMetadata]) -> Iterator[dict[str, LeafMetadata]]:
    batch: dict[str, LeafMetadata] = {}
    for name in sorted(leaves):
        if (
            batch
            and sum(n.nbytes for n in batch.values()) + leaves[name].nbytes
            > _READ_BATCH_BYTES
        ):
            yield batch
            batch = {}
        batch[name] = leaves[name]
    if batch:
        yield batch


def _read_batch(folder: Path, batch: dict[str, LeafMetadata]) -> dict[str, Any]:
    full = tuple(name for name, note in batch.items() if note.nbytes)
    try:
        arrays = orbax_store.read_on_host(folder, full)
    except Exception as error:
        reraise_unless_corrupt(error)
        arrays = {name: _read_leaf(folder, name) for name in full}
    empty = {n: np.zeros(v.shape, v.dtype) for n, v in batch.items() if not v.nbytes}
    return {**arrays, **empty}


def _read_leaf(folder: Path, name: str) -> np.ndarray:
    try:
        return orbax_store.read_on_host(folder, (name,))[name]
    except Exception as error:
        reraise_unless_corrupt(error)
        raise CorruptCheckpointError(f"{name}, cannot be read") from error
