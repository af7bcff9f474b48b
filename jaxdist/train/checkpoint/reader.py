"""Reading a checkpoint on the host, without the model, its mesh or its devices.

Nothing here writes, so it is safe beside a run that is saving.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import orbax_store
from jaxdist.train.checkpoint.best import CheckpointStep, read_best
from jaxdist.train.checkpoint.checksum import fingerprint, has_nonfinite
from jaxdist.train.checkpoint.manifest import (
    CheckpointManifest,
    CorruptCheckpointError,
    LeafMetadata,
    decode_manifest,
)

# Bytes read at a time, so that a checkpoint may be larger than this host's memory.
_READ_BATCH_BYTES: Final = 256_000_000
QUARANTINE_PREFIX: Final = "damaged-"
"""Start of the name of a damaged checkpoint that was moved aside."""


@dataclass(frozen=True, kw_only=True)
class SkippedCheckpoint:
    """A damaged checkpoint that was skipped."""

    step: int
    """Step it was saved at."""
    reason: str
    """The damage: the leaf, and what was found there."""

    def text(self) -> str:
        """Return a line about it.

        >>> SkippedCheckpoint(step=460, reason="notes, cannot be read").text()
        'checkpoint 460 skipped: notes, cannot be read'
        """
        return f"checkpoint {self.step} skipped: {self.reason}"


def list_steps(directory: Path) -> tuple[int, ...]:
    """Return the steps of complete checkpoints, oldest first."""
    if not directory.is_dir():
        return ()
    # Incomplete and damaged checkpoints have other names than a number.
    names = (path.name for path in directory.iterdir() if path.is_dir())
    return tuple(sorted(int(name) for name in names if name.isdecimal()))


def list_quarantined(directory: Path) -> tuple[Path, ...]:
    """Return the folders of damaged checkpoints that were moved aside."""
    return tuple(sorted(directory.glob(f"{QUARANTINE_PREFIX}*")))


def checkpoint_folder(directory: Path, step: CheckpointStep) -> Path:
    """Return the folder of a checkpoint, by default of the newest.

    Raises:
        BadInput: there is no such checkpoint.
    """
    there = list_steps(directory)
    if step == "best":
        if (best := read_best(directory)) is not None:
            return directory / str(best.step)
        raise BadInput(
            f"no checkpoint in {directory} is known to be the best",
            rule="a run keeps its best checkpoint if checkpoint.best names a metric",
            remedy=[f"--checkpoint {there[-1]}"] * bool(there)
            + ["train with checkpoint.best=accuracy"],
        )
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
    """Read the manifest of a checkpoint.

    Raises:
        CorruptCheckpointError: it is missing, changed, or of another step.
    """
    try:
        notes = decode_manifest(orbax_store.read_manifest(folder))
    except Exception as error:
        reraise_unless_corrupt(error)
        raise CorruptCheckpointError("notes, cannot be read") from error
    # A renamed or copied folder would resume a run at another step than its arrays are
    # of.
    if folder.name.isdecimal() and notes.step != int(folder.name):
        raise CorruptCheckpointError(f"notes, of step {notes.step}")
    return notes


def find_manifest(directory: Path, step: CheckpointStep) -> CheckpointManifest:
    """Read the manifest of a step, by default of the newest, beside a run that saves.

    Raises:
        BadInput: there is no such checkpoint.
        CorruptCheckpointError: it is missing, changed, or of another step.
    """
    folder = checkpoint_folder(directory, step)
    try:
        return read_manifest(folder)
    except CorruptCheckpointError:
        # A run that is resumed deletes its oldest: what is gone is not damaged.
        if folder.exists():
            raise
    return find_manifest(directory, step)


def read_leaves(
    folder: Path, manifest: CheckpointManifest, *, prefix: str = ""
) -> Iterator[tuple[str, np.ndarray]]:
    """Read leaves on the host in the order of their names, each one verified.

    Args:
        folder: folder of the checkpoint.
        manifest: its manifest.
        prefix: only leaves whose names start with it are read.

    Raises:
        CorruptCheckpointError: a leaf cannot be read or is not what was saved.
    """
    wanted = {
        name: leaf for name, leaf in manifest.leaves.items() if name.startswith(prefix)
    }
    batches: list[list[str]] = []
    nbytes = 0
    # A leaf larger than a batch is one by itself.
    for name in sorted(wanted):
        if not batches or nbytes + wanted[name].nbytes > _READ_BATCH_BYTES:
            batches.append([])
            nbytes = 0
        batches[-1].append(name)
        nbytes += wanted[name].nbytes

    for batch in batches:
        # Orbax stores no empty arrays.
        full = tuple(name for name in batch if wanted[name].nbytes)
        arrays: dict[str, np.ndarray] = {}
        try:
            arrays = orbax_store.read_on_host(folder, full)
        except Exception as error:
            reraise_unless_corrupt(error)
        for name in batch:
            leaf = wanted[name]
            if not leaf.nbytes:
                array = np.zeros(leaf.shape, leaf.dtype)
            elif name in arrays:
                array = arrays.pop(name)
            else:
                # The batch failed: its leaves one by one, to find the damaged one.
                try:
                    array = orbax_store.read_on_host(folder, (name,))[name]
                except Exception as error:
                    reraise_unless_corrupt(error)
                    raise CorruptCheckpointError(f"{name}, cannot be read") from error
            check_fingerprint(name, leaf, fingerprint(array))
            yield name, array


def find_corruption(folder: Path) -> str | None:
    """Read every byte of a checkpoint, and return the damage, or None.

    A number that is not finite is damage: nothing can be done with such a state.
    """
    try:
        for name, array in read_leaves(folder, read_manifest(folder)):
            check_finite(name, has_nonfinite(name, array))
    except CorruptCheckpointError as damage:
        return str(damage)
    return None


def check_fingerprint(name: str, metadata: LeafMetadata, fingerprint: int) -> None:
    """Compare a fingerprint with the one that was saved.

    Raises:
        CorruptCheckpointError: they differ.
    """
    if (hexadecimal := f"{fingerprint:08x}") != metadata.fingerprint:
        raise CorruptCheckpointError(
            f"{name}, checksum {hexadecimal} instead of {metadata.fingerprint}"
        )


def check_finite(name: str, has_bad: bool) -> None:
    """Refuse a leaf that holds numbers that are not finite.

    Raises:
        CorruptCheckpointError: it does.
    """
    if has_bad:
        raise CorruptCheckpointError(f"{name}, numbers that are not finite")


def reraise_unless_corrupt(error: Exception) -> None:
    """Raise an error again that is not due to damage: no memory, no permission."""
    # TensorStore raises ValueError with a status in its text.
    ours = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "Too many open files")
    if isinstance(error, CorruptCheckpointError | MemoryError | PermissionError):
        raise error
    if any(word in str(error) for word in ours):
        raise error
