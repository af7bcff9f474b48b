"""Checkpoints of a run: written in the background, verified when read, never lost.

steps of a folder      400   420   440   460
restore_newest         460 is read: a leaf differs from its fingerprint
                       440 is read: verified, so this is where the run goes on
                       460 becomes damaged-460, and step 460 can be saved again
"""

import contextlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import errors, orbax_store, reader
from jaxdist.train.checkpoint.checksum import local_fingerprint, sum_over_hosts
from jaxdist.train.checkpoint.manifest import (
    CheckpointManifest,
    CorruptCheckpointError,
    LeafMetadata,
    encode_manifest,
    is_prng_key,
    leaf_metadata,
)
from jaxdist.train.checkpoint.reader import SkippedCheckpoint
from jaxdist.train.checkpoint.restore import RestoredState, restore_checkpoint
from jaxdist.train.state import TrainState, named_leaves


class Checkpoints:
    """The checkpoints of one run, which alone may write in their folder.

    Making one removes what an interrupted save has left. Orbax is imported at the first
    save or restore.

    Args:
        directory: folder of the checkpoints; made at the first save.
        max_to_keep: how many of the newest are kept.
    """

    def __init__(self, directory: Path | str, *, max_to_keep: int = 3) -> None:
        if max_to_keep < 1:
            raise BadInput(
                "no checkpoint would be kept",
                rule="keep is at least 1",
                values=f"keep={max_to_keep}",
                remedy="keep=3",
            )
        self.directory, self.max_to_keep = Path(directory), max_to_keep
        self._writer: orbax_store.OrbaxWriter | None = None
        self._pending_manifest: CheckpointManifest | None = None
        self._remove_incomplete()

    def steps(self) -> tuple[int, ...]:
        """List the steps whose checkpoints are wholly written, oldest first."""
        return reader.list_steps(self.directory)

    def save(
        self, state: TrainState, metadata: Mapping[str, Any] | None = None
    ) -> bool:
        """Begin to save a state; its arrays may be donated when this returns.

        Waits for the save before, whose errors surface here. Every host calls it.

        Args:
            state: arrays in any layout.
            metadata: JSON values to keep beside it.

        Returns:
            False if this very state is saved already.

        Raises:
            DiskFull: the save before or this one met a full disk.
            BadInput: a folder that cannot be written, or another state is saved under
                this step.
        """
        self.wait()
        arrays = {
            name: _storable_array(leaf) for name, leaf in named_leaves(state).items()
        }
        step = int(state.step)
        old = self._existing_manifest(step)
        notes = CheckpointManifest(
            step=step, leaves=_fingerprint_leaves(state, arrays), about=metadata or {}
        )
        if isinstance(old, CheckpointManifest):
            errors.check_same_state(self.directory / str(step), old, notes)
            return False
        if old is not None:
            self._quarantine([old])
        self._start_write(notes, arrays)
        return True

    def wait(self) -> None:
        """Wait for the save in progress, then drop the oldest beyond `max_to_keep`.

        Raises:
            DiskFull: the disk is full; the earlier checkpoints are as they were, and
                the unfinished one is removed.
            BadInput: the folder cannot be written.
        """
        if self._pending_manifest is None or self._writer is None:
            return
        try:
            self._writer.wait()
        except Exception as error:
            self._abort_write(error)
        self._pending_manifest = None
        self._delete_oldest()

    def close(self) -> None:
        """Wait for the save in progress and let go of threads."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    def restore_newest(self, state_shapes: TrainState) -> RestoredState | None:
        """Restore the newest verified checkpoint, walking back past damaged ones.

        Every host calls it.

        Args:
            state_shapes: a `jax.ShapeDtypeStruct` with a sharding for each array; a
            field
                that is None (`opt` for evaluation) is not read.

        Returns:
            None where nothing was ever saved.

        Raises:
            BadInput: the checkpoint is of another model or precision, or not one of
                them can be used.
        """
        self.wait()
        skipped: list[SkippedCheckpoint] = []
        for step in reversed(self.steps()):
            try:
                restored = restore_checkpoint(self.directory / str(step), state_shapes)
            except CorruptCheckpointError as damage:
                skipped.append(SkippedCheckpoint(step=step, reason=str(damage)))
            else:
                self._quarantine(skipped)
                return replace(restored, skipped_checkpoints=tuple(skipped))
        if skipped:
            raise errors.no_checkpoint_error(self.directory, skipped)
        return None

    def restore(self, step: int | None, state_shapes: TrainState) -> RestoredState:
        """Restore one checkpoint, the newest if `step` is None, or refuse.

        Raises:
            BadInput: there is none, it is damaged, or it is of another model.
        """
        self.wait()
        folder = reader.checkpoint_folder(self.directory, step)
        try:
            return restore_checkpoint(folder, state_shapes)
        except CorruptCheckpointError as damage:
            raise errors.corrupt_error(folder, str(damage)) from damage

    def verify(self, step: int | None = None) -> str | None:
        """Read a checkpoint on the host and say what is damaged, or None."""
        self.wait()
        return reader.find_corruption(reader.checkpoint_folder(self.directory, step))

    def _existing_manifest(
        self, step: int
    ) -> CheckpointManifest | SkippedCheckpoint | None:
        """Read the notes of a step that is there already."""
        if step not in self.steps():
            return None
        try:
            return reader.read_manifest(self.directory / str(step))
        except CorruptCheckpointError as damage:
            return SkippedCheckpoint(step=step, reason=str(damage))

    def _start_write(
        self, manifest: CheckpointManifest, arrays: Mapping[str, jax.Array]
    ) -> None:
        self._pending_manifest = manifest
        self._remove_incomplete()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._writer = self._writer or orbax_store.OrbaxWriter()
            folder = self.directory / str(manifest.step)
            self._writer.start(folder, arrays, encode_manifest(manifest))
        except Exception as error:
            self._abort_write(error)

    def _abort_write(self, error: Exception) -> NoReturn:
        """Remove the unfinished save and raise what a person can act on."""
        notes, writer = self._pending_manifest, self._writer
        self._pending_manifest = self._writer = None
        if writer is not None:
            # Its other writes fail for the same reason; the first one says it.
            with contextlib.suppress(Exception):
                writer.close()
        self._remove_incomplete()
        if notes is not None and (
            refusal := errors.write_error(self.directory, notes, error)
        ):
            raise refusal from error
        raise error

    def _remove_incomplete(self) -> None:
        """Remove what interrupted saves and deletions have left."""
        for path in self.directory.glob(f"*{orbax_store.INCOMPLETE_SUFFIX}*"):
            if jax.process_index() == 0:
                _remove_folder(path)

    def _delete_oldest(self) -> None:
        """Drop the oldest: first the name, so that no half is ever a checkpoint."""
        if jax.process_index() == 0:
            for step in self.steps()[: -self.max_to_keep]:
                gone = self.directory / f"{step}{orbax_store.INCOMPLETE_SUFFIX}-retired"
                (self.directory / str(step)).rename(gone)
                shutil.rmtree(gone, ignore_errors=True)

    def _quarantine(self, damaged: list[SkippedCheckpoint]) -> None:
        if jax.process_index() == 0:
            for skip in damaged:
                aside = reader.quarantine_path(self.directory, skip.step)
                (self.directory / str(skip.step)).rename(aside)
        _barrier()


def _remove_folder(path: Path) -> None:
    """Remove a folder, also while threads of a failed write still put files into it."""
    for _ in range(50):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.1)


def _storable_array(leaf: Any) -> jax.Array:
    """Give what is stored of a leaf: the numbers, or the data of a PRNG key."""
    return jax.random.key_data(leaf) if is_prng_key(leaf) else leaf


def _fingerprint_leaves(
    state: TrainState, arrays: Mapping[str, jax.Array]
) -> dict[str, LeafMetadata]:
    sums = sum_over_hosts(
        np.array([local_fingerprint(a) for a in arrays.values()], np.uint32)
    )
    return {
        name: replace(leaf_metadata(leaf), fingerprint=f"{total:08x}")
        for (name, leaf), total in zip(named_leaves(state).items(), sums, strict=True)
    }


def _barrier() -> None:
    sum_over_hosts(np.zeros(1, np.uint32))
