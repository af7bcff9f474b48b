"""Refusals: what a person is told when a checkpoint cannot be written or used."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput, DiskFullError
from jaxdist.core.text.formatting import format_size
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.manifest import CheckpointManifest
from jaxdist.train.checkpoint.reader import SkippedCheckpoint

_DISK_LIMITS: Final = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))


def check_same_state(
    folder: Path, old: CheckpointManifest, new: CheckpointManifest
) -> None:
    """Refuse to save another state under a step that is taken."""
    changed = [name for name in new.leaves if new.leaves[name] != old.leaves.get(name)]
    if changed or len(old.leaves) != len(new.leaves):
        raise BadInput(
            f"checkpoint {folder.name} in {folder.parent} is there already",
            rule="a checkpoint is never overwritten",
            values=f"{len(changed)} of {len(new.leaves)} leaves differ",
            remedy=f"mv {folder} {folder}-before",
        )


def write_error(
    directory: Path, manifest: CheckpointManifest, error: Exception
) -> BadInput | None:
    """Tell what a person can do about a save that failed, if anything."""
    if full := _disk_limit_reached(error):
        free = format_size(shutil.disk_usage(directory).free)
        return DiskFullError(
            f"checkpoint {manifest.step} does not fit on the disk",
            rule="a checkpoint is written whole or not at all; earlier ones are intact",
            values=f"{format_size(manifest.nbytes)} needed, {free} free in {directory} "
            f"({full})",
            remedy=(
                "make room, then repeat the command: it resumes",
                "run.dir=<a folder on a larger disk> starts a run there",
            ),
        )
    if isinstance(error, PermissionError | NotADirectoryError | FileExistsError):
        return BadInput(
            f"checkpoint {manifest.step} cannot be written",
            rule="the checkpoint folder is a folder that this user may write in",
            values=f"{directory}: {error.strerror}",
            remedy=f"chmod u+rwx {directory}",
        )
    return None


def _disk_limit_reached(error: BaseException | None) -> str:
    """Name the limit a write met, or nothing if it failed for another reason.

    Orbax and TensorStore wrap the error of the system and keep its words only.
    """
    if error is None:
        return ""
    words = str(error)
    limit = next((limit for limit in _DISK_LIMITS if limit in words), "")
    return limit or _disk_limit_reached(error.__cause__)


def no_checkpoint_error(
    directory: Path, skipped_checkpoints: Sequence[SkippedCheckpoint]
) -> BadInput:
    """Tell what is wrong with every checkpoint there is."""
    return BadInput(
        f"no checkpoint in {directory} can be used",
        rule="a run goes on from a verified checkpoint",
        values="; ".join(f"{skip.step}: {skip.reason}" for skip in skipped_checkpoints),
        remedy=(
            "run.name=another-name starts from the beginning",
            f"mv {directory} {directory}-damaged starts from the beginning here",
        ),
    )


def corrupt_error(folder: Path, reason: str) -> BadInput:
    """Tell what is wrong with the one checkpoint that was asked for."""
    others = [str(step) for step in reader.list_steps(folder.parent)]
    others = [step for step in others if step != folder.name]
    return BadInput(
        f"checkpoint {folder.name} in {folder.parent} is damaged",
        rule="every leaf is what was saved",
        values=reason,
        remedy=f"--checkpoint {others[-1]}" if others else "train again: run.name=...",
    )
