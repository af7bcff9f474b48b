"""Preparation: a data set appears in its folder whole or not at all, and is checked.

The files are made in a hidden folder beside the target and moved there by one rename.
A process killed half-way leaves only the hidden folder, which the next one removes; of
two that start at once, one rename wins and the other's work is dropped. `SHA256SUMS`
lists what was written, in the format of `sha256sum -c`.
"""

import hashlib
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.files import (
    MARKER_SUFFIX,
    FolderMarker,
    delete_folder,
    marker_path,
)

CHECKSUM_FILE: Final = "SHA256SUMS"


def ensure_prepared(folder: Path, make: Callable[[Path], None]) -> None:
    """Prepare a data set unless it is there, and check what is there.

    Args:
        folder: the data set's own folder; its name is the data set's.
        make: writes the data set into `folder.name` inside the folder it is given.

    Raises:
        BadInput: the folder cannot be written, or holds a damaged data set; a damaged
            data set is left as it is.
    """
    # Checked also where it was just made: reading back finds a disk that lies.
    try:
        if not folder.exists():
            _publish(folder, make)
        verify_checksums(folder)
    except OSError as error:
        raise _unavailable_error(folder, error) from error


def prepare(folder: Path, make: Callable[[Path], None]) -> None:
    """Prepare a data set that is not there; what was written is not read back.

    Args:
        folder: the data set's own folder; its name is the data set's.
        make: writes the data set into `folder.name` inside the folder it is given.

    Raises:
        BadInput: the folder is there, or cannot be written.
    """
    check_absent(folder)
    try:
        _publish(folder, make)
    except OSError as error:
        raise _unavailable_error(folder, error) from error


def check_absent(folder: Path) -> None:
    """Refuse to prepare a data set that is there, before any work is done.

    Raises:
        BadInput: it is there.
    """
    if folder.exists():
        raise BadInput(
            f"there is a data set {folder.name}",
            rule="a data set is prepared once, and never changed",
            values=str(folder),
            remedy=[f"--name {folder.name}_2", f"or: rm -r {folder}"],
        )


def verify_checksums(folder: Path) -> None:
    """Check a prepared data set against its list of checksums.

    Raises:
        BadInput: a file is missing or has other content than was written.
    """
    listed = folder / CHECKSUM_FILE
    damage = None
    if not listed.is_file():
        count = sum(path.is_file() for path in folder.rglob("*"))
        damage = f"{folder} holds {count} files, none named {CHECKSUM_FILE}"
    else:
        # An empty list is damaged too: it has no name.
        for line in listed.read_text().splitlines() or [""]:
            digest, _, name = line.partition("  ")
            path = folder / name
            if not name or not path.is_file():
                damage = f"{path} is missing"
            elif _digest(path) != digest:
                size = f"{path.stat().st_size:,} B"
                damage = f"{path} ({size}) is not what was written"
            if damage:
                break
    if damage:
        raise BadInput(
            f"the data set {folder.name} is damaged",
            rule=f"a prepared data set holds every file its {CHECKSUM_FILE} lists, "
            "unchanged",
            values=damage,
            remedy=(
                f"rm -r {folder}    # it is prepared again",
                "data.dir=<another folder>",
            ),
        )


def _publish(folder: Path, make: Callable[[Path], None]) -> None:
    """Make the data set out of sight, then move it into place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # What other preparations have left: the name tells this data set from one whose
    # name begins alike, the marker whether its process lives.
    own = rf"\.{re.escape(folder.name)}-[0-9a-f]{{16}}{MARKER_SUFFIX}"
    for path in list(folder.parent.iterdir()):
        left = FolderMarker.take(path) if re.fullmatch(own, path.name) else None
        if left and delete_folder(
            path.with_name(path.name.removesuffix(MARKER_SUFFIX)), left
        ):
            left.release()
    # Beside the target: a rename is atomic only within a file system.
    hidden = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    marker = FolderMarker.create(marker_path(hidden))
    try:
        hidden.mkdir(0o700)
        make(hidden)
        made = hidden / folder.name
        # Before the rename: a reader that sees the folder sees its list.
        files = sorted(path for path in made.rglob("*") if path.is_file())
        lines = [f"{_digest(x)}  {x.relative_to(made).as_posix()}" for x in files]
        (made / CHECKSUM_FILE).write_text("\n".join(lines) + "\n")
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was first: its work stands
                raise
    finally:
        if delete_folder(hidden, marker):
            marker.release()


def _digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unavailable_error(folder: Path, error: OSError) -> BadInput:
    return BadInput(
        f"the data set {folder.name} can be neither read nor prepared",
        rule="data.dir is a folder that can be written, with room for the data",
        values=f"data.dir = {folder.parent}: {error}",
        remedy="data.dir=<another folder>",
    )
