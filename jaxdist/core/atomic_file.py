"""Text files that appear whole, on disk, under a name that nobody else writes."""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput

_NO_HARD_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def write_atomic(
    path: Path, text: str, *, overwrite: bool = True, durable: bool = True
) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part.

    A link at `path` is replaced, and what it points to stays.

    Args:
        path: file to write, in a folder that exists.
        text: its content.
        overwrite: whether a file that is there is replaced.
        durable: whether the text is on disk when this returns; without it a crash of
            the machine may bring the old text back, or none.

    Raises:
        FileExistsError: the file is there and stays.
        OSError: the file cannot be written; nothing is left of it.
    """
    # Renaming within a folder is atomic on POSIX, so the part lies beside the file. It
    # is a new file of a name that cannot be known before: no link is followed.
    part = path.with_name(f".jaxdist-{secrets.token_hex(8)}.part")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if overwrite:
            part.replace(path)
        else:
            rename_new(part, path)
    finally:
        part.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def write_output(path: Path, text: str, *, force: bool) -> None:
    """Write a file that was asked for by name, such as that of `-o`.

    A device or a pipe, such as /dev/stdout, is written to and not replaced.

    Args:
        path: file to write, in a folder that exists.
        text: its content.
        force: whether a file that is there is replaced.

    Raises:
        BadInput: the file is there and stays.
        OSError: the file cannot be written.
    """
    if _is_stream(path):
        path.write_text(text, encoding="utf-8")
        return
    try:
        write_atomic(path, text, overwrite=force)
    except FileExistsError:
        # It came meanwhile: `check_output` found none.
        check_output(path, force=force)
        raise


def check_output(path: Path, *, force: bool, option: str = "-o") -> None:
    """Refuse a file to be written that is there, or whose folder is not.

    Args:
        path: the file.
        force: whether it may be overwritten.
        option: the option that names it.

    Raises:
        BadInput: the file is there and `force` is not given, or it is a folder.
    """
    if not path.parent.is_dir():
        raise BadInput(
            f"no folder {path.parent}",
            rule="a file is written into a folder that exists",
            values=f"{option} {path}",
            remedy=f"{option} {path.name}",
        )
    if path.is_dir():
        raise BadInput(
            f"{path} is a folder",
            rule=f"{option} names a file",
            values=f"{option} {path}",
            remedy=f"{option} {path / 'FILE'}",
        )
    if (path.is_symlink() or path.exists()) and not (force or _is_stream(path)):
        raise BadInput(
            f"{path} is there already",
            rule="a file is not overwritten unless that is asked for",
            values=f"{option} {path}",
            remedy=("--force overwrites it", f"or another {option} FILE"),
        )


def _is_stream(path: Path) -> bool:
    """Tell whether a path is that of a device, a pipe or a socket."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk, where the file system can."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def rename_new(part: Path, path: Path) -> None:
    """Give a file a name that no other has; `part` may stay, as a second name.

    Raises:
        FileExistsError: the name is taken.
    """
    try:
        # A link fails where the name is taken; a rename would replace it.
        os.link(part, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if path.is_symlink() or path.exists():
            raise FileExistsError(errno.EEXIST, "exists", str(path)) from None
        part.rename(path)
