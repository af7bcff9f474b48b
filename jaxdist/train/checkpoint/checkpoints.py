"""Checkpoints of a run: written in the background, verified when read, never lost.

steps of a folder      400   420   440   460
restore_newest         460 is read: a leaf differs from its fingerprint
                       440 is read: verified, so the run resumes from it
                       460 becomes damaged-460, and step 460 can be saved again
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import jax
import numpy as np

from jaxdist.core.errors import BadInput, DiskFullError, StoreFailedError
from jaxdist.core.files import (
    MARKER_SUFFIX,
    FolderMarker,
    delete_folder,
    sync_folder,
)
from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.core.text.formatting import format_size
from jaxdist.train.checkpoint import orbax_store, reader
from jaxdist.train.checkpoint.best import CheckpointStep, read_best, write_best
from jaxdist.train.checkpoint.checksum import (
    has_nonfinite,
    local_fingerprint,
    sum_over_hosts,
)
from jaxdist.train.checkpoint.manifest import (
    CheckpointManifest,
    CorruptCheckpointError,
    encode_manifest,
    is_prng_key,
    leaf_metadata,
)
from jaxdist.train.checkpoint.reader import SkippedCheckpoint
from jaxdist.train.checkpoint.remote_copies import RemoteCopies
from jaxdist.train.checkpoint.restore import RestoredState, restore_checkpoint
from jaxdist.train.state import TrainState, named_leaves

_UNOWNED_PREFIX: Final = "unowned-"
"""Start of the name of an unfinished checkpoint without a marker, moved aside."""
_DISK_LIMITS: Final = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))


class Checkpoints:
    """The checkpoints of one run, which alone may write to their folder.

    What an interrupted save has left is removed at the first save, and before
    `restore_newest`, if the process that saved is dead. Orbax is imported at the first
    save or restore.

    Args:
        directory: folder of the checkpoints; created at the first save.
        max_to_keep: number of the newest checkpoints that are kept.
        read_only: whether nothing in the folder is ever changed, as beside a run that
            is saving.
        exclusive: whether the caller holds the lock of the run, so that whoever saved
            on another host is dead.
        copies: where each checkpoint is copied to; process 0 copies.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        max_to_keep: int = 3,
        read_only: bool = False,
        exclusive: bool = False,
        copies: RemoteCopies | None = None,
    ) -> None:
        if max_to_keep < 1:
            raise BadInput(
                "no checkpoint would be kept",
                rule="keep is at least 1",
                values=f"keep={max_to_keep}",
                remedy="keep=3",
            )
        # The writer is made at the first save: importing Orbax takes half a second.
        self.directory, self.max_to_keep = Path(directory), max_to_keep
        self._writer: orbax_store.OrbaxWriter | None = None
        self._pending_manifest: CheckpointManifest | None = None
        self._best: BestCheckpoint | None = None
        self._pending_best: BestCheckpoint | None = None
        self.read_only, self._exclusive = read_only, exclusive
        self._marker: FolderMarker | None = None
        self._has_copies = copies is not None
        self._copies = copies if jax.process_index() == 0 else None

    def steps(self) -> tuple[int, ...]:
        """Return the steps of complete checkpoints, oldest first."""
        return reader.list_steps(self.directory)

    def best(self) -> BestCheckpoint | None:
        """Return the best checkpoint, which stays; None where none is known to be."""
        # Read once: hosts decide alike, however late a file is seen on one of them.
        self._best = self._best or read_best(self.directory)
        return self._pending_best or self._best

    def save(
        self,
        state: TrainState,
        metadata: Mapping[str, Any] | None = None,
        best: BestCheckpoint | None = None,
    ) -> bool:
        """Begin to save a state; its arrays may be donated when this returns.

        Waits for the save before, whose errors are raised here. Every host calls it.

        Args:
            state: arrays in any layout.
            metadata: JSON values to store with it.
            best: what makes it the best so far, if it is; that of before may go.

        Returns:
            False if this very state is saved already.

        Raises:
            DiskFullError: the save before or this one met a full disk.
            BadInput: a folder that cannot be written, another state is saved under
                this step, or another process is saving it.
        """
        if self.read_only:
            raise ValueError(f"checkpoints of {self.directory} were opened read-only")
        self.wait()
        # PRNG keys are stored as their numbers.
        leaves = named_leaves(state)
        arrays = {
            name: jax.random.key_data(leaf) if is_prng_key(leaf) else leaf
            for name, leaf in leaves.items()
        }
        # Before the write begins: what is read later is held against what was in
        # memory.
        shares = [local_fingerprint(array) for array in arrays.values()]
        bad = [has_nonfinite(name, array) for name, array in arrays.items()]
        # Fingerprints are sums of hosts' shares modulo 2**32, so one call does for all.
        totals = sum_over_hosts(np.array([*shares, *bad], np.uint32))
        step = int(state.step)
        manifest = CheckpointManifest(
            step=step,
            leaves={
                name: replace(leaf_metadata(leaf), fingerprint=f"{total:08x}")
                for (name, leaf), total in zip(
                    leaves.items(), totals[: len(leaves)], strict=True
                )
            },
            about=metadata or {},
            finite=not totals[len(leaves) :].any(),
        )

        # A run that resumed from an earlier checkpoint comes by this step again.
        folder = self.directory / str(step)
        if step in self.steps():
            try:
                old = reader.read_manifest(folder)
            except CorruptCheckpointError:
                self._quarantine([step])
            else:
                new = manifest.leaves
                changed = [name for name in new if new[name] != old.leaves.get(name)]
                if changed or len(old.leaves) != len(new):
                    raise BadInput(
                        f"checkpoint {folder.name} in {folder.parent} is there already",
                        rule="a checkpoint is never overwritten",
                        values=f"{len(changed)} of {len(new)} leaves differ",
                        remedy=f"mv {folder} {folder}-before",
                    )
                self._note_best(best)
                self._begin_copy(step)
                return False

        self._pending_manifest, self._pending_best = manifest, best
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_incomplete()
            # Before anything is written: what a kill leaves behind has an owner.
            self._marker = self._mark(step)
            self._writer = self._writer or orbax_store.OrbaxWriter()
            self._writer.start(folder, arrays, encode_manifest(manifest))
        except Exception as error:
            self._abort_write(error)
        self._begin_copy(step)
        return True

    def wait(self) -> None:
        """Wait for the save in progress, then delete the oldest beyond `max_to_keep`.

        The best one stays. A copy to a store that is under way is waited for, too.

        Raises:
            DiskFullError: the disk is full; the earlier checkpoints are intact, and the
                unfinished one is removed.
            StoreFailedError: the copy failed; the checkpoint on the disk is intact.
            BadInput: the folder cannot be written.
        """
        self._finish_write()
        if self._copies is not None:
            self._copies.wait()

    def _finish_write(self) -> None:
        if self._pending_manifest is None or self._writer is None:
            return
        try:
            self._writer.wait()
        except Exception as error:
            self._abort_write(error)
        self._pending_manifest = None
        # The folder has its name now: there is nothing to clean up.
        self._release()
        # Only now: while it was written, the best was another one.
        self._note_best(self._pending_best)
        if jax.process_index() == 0:
            best = self.best()
            for step in self.steps()[: -self.max_to_keep]:
                if best is not None and step == best.step:
                    continue
                marker = self._mark(step)
                # Process 0 gets one, or an error.
                assert marker is not None
                # The name goes first, so that no half is ever taken for a checkpoint.
                gone = self.directory / f"{step}{orbax_store.INCOMPLETE_SUFFIX}-retired"
                (self.directory / str(step)).rename(gone)
                if delete_folder(gone, marker):
                    marker.release()

    def close(self) -> None:
        """Wait for the save in progress and stop the writer's threads."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.close()
            self._writer = None
            if self._copies is not None:
                self._copies.close()

    def fetch_newest(self) -> tuple[SkippedCheckpoint, ...]:
        """Download the newest copy, and the best, where they are not on the disk.

        Process 0 alone calls it, before the run looks for its checkpoints. A checkpoint
        on the disk whose copy is missing begins to be copied.

        Returns:
            Copies that were skipped, since they were damaged.

        Raises:
            StoreFailedError: the store fails.
            DiskFullError: a copy does not fit on the disk.
        """
        if self._copies is None:
            return ()
        here, copied = self.steps(), self._copies.steps()
        newest, skipped = max(here, default=-1), list[SkippedCheckpoint]()
        if newest not in copied and newest > max(copied, default=-1):
            self._begin_copy(newest)
        later = [step for step in copied if step > newest]
        while later and (damage := self._download(later[-1])) is not None:
            skipped.append(SkippedCheckpoint(step=later.pop(), reason=damage))
        best = self._copies.best() if later else None
        if (
            best is not None
            and best.step in copied
            and self.best() is None
            and (best.step in self.steps() or self._download(best.step) is None)
        ):
            write_best(self.directory, best)
        return tuple(skipped)

    def restore_newest(self, state_shapes: TrainState) -> RestoredState | None:
        """Restore the newest verified checkpoint, going back past damaged ones.

        Every host calls it. Damaged checkpoints are moved aside, and replaced by their
        copies where there are any.

        Args:
            state_shapes: a `jax.ShapeDtypeStruct` with a sharding for each array; a
                field that is None (`opt` for evaluation) is not read.

        Returns:
            None where nothing was ever saved.

        Raises:
            BadInput: the checkpoint is of another model or precision, or none of them
                can be used.
            StoreFailedError: a copy is needed, and the store fails.
        """
        self._finish_write()
        if not self.read_only:
            self._remove_incomplete()
        found: dict[int, str] = {}
        damaged, fetched = set[int](), set[int]()
        while True:
            left = [step for step in self.steps() if step not in damaged]
            # A damaged one is replaced by its copy. That may be damaged as well, if it
            # was before it was copied: then an older one.
            if damaged and self._has_copies:
                copy = self._replace_damaged(max(left, default=-1), fetched)
                if copy is not None:
                    fetched.add(copy)
                    damaged.discard(copy)
                    left.append(copy)
            if not left:
                break
            step = left[-1]
            try:
                restored = restore_checkpoint(self.directory / str(step), state_shapes)
            except CorruptCheckpointError as damage:
                found.setdefault(step, str(damage))
                damaged.add(step)
                continue
            self._quarantine(damaged)
            if step in found:
                found[step] += "; its copy is used instead"
            skipped = (SkippedCheckpoint(step=n, reason=x) for n, x in found.items())
            return replace(restored, skipped_checkpoints=tuple(skipped))
        if not found:
            return None
        raise BadInput(
            f"no checkpoint in {self.directory} can be used",
            rule="a run resumes from a verified checkpoint",
            values="; ".join(f"{step}: {reason}" for step, reason in found.items()),
            remedy=(
                "run.name=another-name starts from the beginning",
                f"mv {self.directory} {self.directory}-damaged starts from the "
                "beginning here",
            ),
        )

    def _replace_damaged(self, newest: int, fetched: set[int]) -> int | None:
        """Download the newest copy after a step; None where there is none.

        Every host calls it, and all return alike: process 0 downloads.

        Args:
            newest: step of the newest checkpoint that may be whole.
            fetched: steps whose copies were downloaded before.
        """
        failure: BadInput | None = None
        left: list[int] = []
        if self._copies is not None:
            try:
                copied = self._copies.steps()
                left = [n for n in copied if n > newest and n not in fetched]
                while left and self._download(left[-1]) is not None:
                    left.pop()
            except BadInput as error:
                failure = error
        # The others learn what process 0 has come to.
        told = np.array([left[-1] + 1 if left else 0, failure is not None], np.uint32)
        after, failed = (int(value) for value in sum_over_hosts(told))
        if failure is not None:
            raise failure
        if failed:
            raise StoreFailedError(
                "process 0 could not download a checkpoint",
                rule="a damaged checkpoint is replaced by its copy",
                values="what process 0 says",
                remedy="repeat the command once the store answers: the run resumes",
            )
        return after - 1 if after else None

    def restore(self, step: CheckpointStep, state_shapes: TrainState) -> RestoredState:
        """Restore one checkpoint, by default the newest.

        Raises:
            BadInput: there is none, it is damaged, or it is of another model.
        """
        self._finish_write()
        folder = reader.checkpoint_folder(self.directory, step)
        try:
            return restore_checkpoint(folder, state_shapes)
        except CorruptCheckpointError as damage:
            # A run that is resumed has deleted it, as the oldest of its checkpoints.
            if not folder.exists():
                return self.restore(step, state_shapes)
            others = [str(n) for n in self.steps() if str(n) != folder.name]
            raise BadInput(
                f"checkpoint {folder.name} in {folder.parent} is damaged",
                rule="every leaf is what was saved",
                values=str(damage),
                remedy=f"--checkpoint {others[-1]}"
                if others
                else "train again: run.name=...",
            ) from damage

    def verify(self, step: CheckpointStep = None) -> str | None:
        """Read a checkpoint on the host, and return the damage, or None."""
        self._finish_write()
        return reader.find_corruption(reader.checkpoint_folder(self.directory, step))

    def _begin_copy(self, step: int) -> None:
        if self._copies is not None:
            self._copies.begin_upload(
                self.directory / str(step), keep=self.max_to_keep, best=self.best()
            )

    def _download(self, step: int) -> str | None:
        """Write a copy to disk; return the damage where it is not what was saved."""
        assert self._copies is not None
        self.directory.mkdir(parents=True, exist_ok=True)
        self._remove_incomplete()
        marker = self._mark(step)
        # Process 0 gets one, or an error.
        assert marker is not None
        part = self.directory / f"{step}{orbax_store.INCOMPLETE_SUFFIX}-copy"
        try:
            self._copies.download(step, part)
            # It has its name only once every byte is known to be what was copied.
            if (self.directory / str(step)).exists():
                self._set_aside(step)
            part.rename(self.directory / str(step))
            sync_folder(self.directory)
        except CorruptCheckpointError as damage:
            return str(damage)
        except OSError as error:
            raise DiskFullError(
                f"checkpoint {step} of {self._copies.address} cannot be written",
                rule="the newest copy is downloaded before a run resumes from it",
                values=f"{self.directory}: {error.strerror}",
                remedy="make room, then repeat the command",
            ) from error
        finally:
            if self._delete_incomplete(step, marker):
                marker.release()
        return None

    def _note_best(self, best: BestCheckpoint | None) -> None:
        self._pending_best = None
        if best is None:
            return
        self._best = best
        if jax.process_index() == 0:
            write_best(self.directory, best)

    def _abort_write(self, error: Exception) -> NoReturn:
        """Remove the unfinished save, and raise an error that names a remedy."""
        manifest, writer = self._pending_manifest, self._writer
        # A writer is not used again: Orbax closes its event loop at the first error.
        self._pending_manifest = self._writer = self._pending_best = None
        if writer is not None:
            # Its other writes fail for the same reason; the first one says it.
            with contextlib.suppress(Exception):
                writer.close()
        if self._copies is not None:
            self._copies.cancel()
        if manifest is not None and self._marker is not None:
            self._delete_incomplete(manifest.step, self._marker)
            # TensorStore's threads may still create files, and folders for them: with
            # the marker, the next save or start knows whose they are.
            self._marker.abandon()
            self._marker = None
        if manifest is None:
            raise error

        # Orbax and TensorStore wrap the error of the system, and keep only its words.
        limit, cause = "", cast(BaseException | None, error)
        while cause is not None and not limit:
            words = str(cause)
            limit = next((limit for limit in _DISK_LIMITS if limit in words), "")
            cause = cause.__cause__
        if limit:
            free = format_size(shutil.disk_usage(self.directory).free)
            raise DiskFullError(
                f"checkpoint {manifest.step} does not fit on the disk",
                rule="a checkpoint is written whole or not at all; earlier ones are "
                "intact",
                values=f"{format_size(manifest.nbytes)} needed, {free} free in "
                f"{self.directory} ({limit})",
                remedy=(
                    "make room, then repeat the command: it resumes",
                    "run.dir=<a folder on a larger disk> starts a run there",
                ),
            ) from error
        if isinstance(error, PermissionError | NotADirectoryError | FileExistsError):
            raise BadInput(
                f"checkpoint {manifest.step} cannot be written",
                rule="the checkpoint folder is a folder that this user may write in",
                values=f"{self.directory}: {error.strerror}",
                remedy=f"chmod u+rwx {self.directory}",
            ) from error
        raise error

    def _mark(self, step: int) -> FolderMarker | None:
        """Mark what is written or deleted under a step as this process's; None where
        another process of the run does.

        Raises:
            BadInput: another process has marked it.
        """
        if jax.process_index() != 0:
            return None
        path = self.directory / f".{step}{MARKER_SUFFIX}"
        try:
            marker = FolderMarker.create(path)
        except FileExistsError as error:
            raise BadInput(
                f"another process is at work on checkpoint {step} in {self.directory}",
                rule="one process saves and deletes the checkpoints of a folder",
                values=path.read_text(errors="replace")[:200],
                remedy=(
                    "run.name=another-name",
                    f"rm {path}, if that process is dead",
                ),
            ) from error
        # Left by nobody that is known, and in the way: Orbax would delete it.
        foreign = self.directory / f"{step}{orbax_store.INCOMPLETE_SUFFIX}"
        if foreign.exists() or foreign.is_symlink():
            self._move_aside(foreign, f"{_UNOWNED_PREFIX}{foreign.name}")
        return marker

    def _release(self) -> None:
        if self._marker is not None:
            self._marker.release()
        self._marker = None

    def _remove_incomplete(self) -> None:
        """Remove what interrupted saves and deletions of dead processes have left."""
        if jax.process_index() != 0:
            return
        for path in self.directory.glob(f".*{MARKER_SUFFIX}"):
            step = path.name.removeprefix(".").removesuffix(MARKER_SUFFIX)
            if not step.isdecimal():
                continue
            marker = FolderMarker.take(path, any_host=self._exclusive)
            if marker is not None and self._delete_incomplete(int(step), marker):
                marker.release()

    def _delete_incomplete(self, step: int, marker: FolderMarker) -> bool:
        """Delete what a marker is of; tell whether nothing is left."""
        suffix = re.escape(orbax_store.INCOMPLETE_SUFFIX)
        # `wait` deletes an old one as `-retired`; `-copy` is one that is downloaded.
        names = rf"{step}{suffix}(-\d+|-retired|-copy)?"
        gone = True
        for path in list(self.directory.iterdir()):
            if re.fullmatch(names, path.name):
                gone &= delete_folder(path, marker)
        return gone

    def _move_aside(self, path: Path, name: str) -> None:
        aside, again = self.directory / name, 1
        while aside.exists() or aside.is_symlink():
            again += 1
            aside = self.directory / f"{name}-{again}"
        path.rename(aside)

    def _set_aside(self, step: int) -> None:
        name = f"{reader.QUARANTINE_PREFIX}{step}"
        self._move_aside(self.directory / str(step), name)

    def _quarantine(self, damaged: Collection[int]) -> None:
        if self.read_only:
            return
        if self._best is not None and self._best.step in damaged:
            self._best = None
        if jax.process_index() == 0:
            for step in damaged:
                self._set_aside(step)
        # A barrier: no host may save under the name before it is free.
        sum_over_hosts(np.zeros(1, np.uint32))
