"""Text files that appear whole, on disk, under a name that nobody else writes.

Temporary folders and their owners, and the one function that deletes a folder.

    data/.toy-3f9c1a20               made by a process, renamed or deleted by it
    data/.toy-3f9c1a20.owner.json    its marker: host, process, start time; locked

A marker lies beside its folder and is locked as long as its owner works. A process that
is killed leaves both, and whoever can take the lock, and finds the owner dead, deletes
them. A folder without a marker belongs to somebody else, whatever its name.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TextIO

import psutil

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import json_text

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+:")
"""What the address of a store begins with: `s3:`, `gs:`."""
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


def check_no_store(path: Path, setting: str) -> None:
    """Refuse the address of an object store as a folder to be written.

    Args:
        path: the folder, which need not be there yet.
        setting: what names it.

    Raises:
        BadInput: it begins like an address, and no folder is called so.
    """
    # `Path` has made one / of two.
    store = path.parts[0] if path.parts else ""
    if _SCHEME.fullmatch(store) and not Path(store).exists():
        raise BadInput(
            f"{path} is no folder",
            rule="what is written lies on file systems of this machine; stores such as "
            "s3:// and gs:// are for samples (data.name=zarr:) and for copies of "
            "checkpoints (checkpoint.store=)",
            values=f"{setting} begins with {store}//",
            remedy=(
                f"mount the bucket (mountpoint-s3, gcsfuse): {setting}=FOLDER",
                f"{setting}=FOLDER, and copy the folder there afterwards",
            ),
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


MARKER_SUFFIX: Final = ".owner.json"
"""End of the name of a marker."""
_MAX_MARKER_BYTES: Final = 4096
_DELETE_ATTEMPTS: Final = 50
_CLOCK_TOLERANCE_S: Final = 2.0


@dataclass(frozen=True)
class FolderMarker:
    """A marker that this process has locked: it may delete what the marker is of.

    Made by `create` or `take`; `release` or `abandon` ends it.
    """

    path: Path
    """The marker's file."""
    file: TextIO
    """The open file, which holds the lock."""

    @classmethod
    def create(cls, path: Path) -> Self:
        """Write a marker of this process, before the folder is made.

        Args:
            path: file that is not there.

        Raises:
            FileExistsError: a marker is there already.
            OSError: the file cannot be written.
        """
        # Locked before it has its name, so that nobody finds it unlocked.
        part = path.with_name(f".jaxdist-{secrets.token_hex(8)}.part")
        file = part.open("x", encoding="utf-8")
        try:
            this = psutil.Process()
            owner = {
                "host": socket.gethostname(),
                "pid": this.pid,
                "start_time": this.create_time(),
            }
            file.write(json_text(owner))
            file.flush()
            _lock(file)
            rename_new(part, path)
        except BaseException:
            file.close()
            raise
        finally:
            part.unlink(missing_ok=True)
        return cls(path, file)

    @classmethod
    def take(cls, path: Path, *, any_host: bool = False) -> Self | None:
        """Take the marker of a dead process over.

        Args:
            path: file of the marker.
            any_host: whether the caller knows that no process of another host is at
                work; processes of other hosts count as alive otherwise.

        Returns:
            None where the owner is alive, nobody can tell, or the file is no marker.
        """
        try:
            # A link that was planted is not followed.
            opened = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        file = os.fdopen(opened, "r+", encoding="utf-8", errors="replace")
        if _lock(file) and _is_abandoned(file, any_host) and _is_same(file, path):
            return cls(path, file)
        file.close()
        return None

    def release(self) -> None:
        """Remove the marker, whose folder is gone or has its final name."""
        with suppress(OSError):
            if _is_same(self.file, self.path):
                self.path.unlink()
        self.file.close()

    def abandon(self) -> None:
        """Unlock the marker and leave it: who takes it deletes what may still come."""
        self.file.close()


def marker_path(folder: Path) -> Path:
    """Return where the marker of a folder lies.

    >>> marker_path(Path("data/.toy-3f9c1a20")).name
    '.toy-3f9c1a20.owner.json'
    """
    return folder.with_name(folder.name + MARKER_SUFFIX)


def delete_folder(folder: Path, marker: FolderMarker) -> bool:
    """Delete a folder and all that is in it; the only function that does.

    Args:
        folder: the folder; a link to one is left as it is.
        marker: a marker of it, which lies beside or directly inside it.

    Returns:
        Whether nothing is left.

    Raises:
        ValueError: the marker is of another place, or was released.
    """
    if marker.path.parent not in (folder, folder.parent) or marker.file.closed:
        raise ValueError(f"{marker.path} is no marker of {folder}")
    # Threads of a failed write may still create files in the folder.
    for attempt in range(_DELETE_ATTEMPTS):
        if folder.is_symlink() or not folder.is_dir():
            break
        if attempt:
            time.sleep(0.1)
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _lock(file: TextIO) -> bool:
    """Lock a file for this process; False where another one has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: the process that is named decides.
        return True
    return True


def _is_same(file: TextIO, path: Path) -> bool:
    """Tell whether a path is still that of an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except OSError:
        return False


def _is_abandoned(file: TextIO, any_host: bool) -> bool:
    """Tell whether the process that a locked marker names works no more."""
    try:
        text = file.read(_MAX_MARKER_BYTES)
        owner = json.loads(text) if text else {}
        host, pid = owner.get("host"), owner.get("pid")
    except (ValueError, AttributeError, OSError, RecursionError):
        return False
    if not owner:
        return any_host
    if not isinstance(host, str) or not isinstance(pid, int) or pid < 1:
        return False
    if host != socket.gethostname():
        return any_host
    # The number of a process is given again, so another start time is another process.
    # Clocks are corrected now and then, by less than it takes to start so many.
    try:
        start = psutil.Process(pid).create_time()
    except (psutil.Error, OverflowError) as error:
        return not isinstance(error, psutil.AccessDenied)
    said = owner.get("start_time")
    known = isinstance(said, int | float)
    is_other = known and abs(said - start) > _CLOCK_TOLERANCE_S
    # Its own, with the lock free: the object that held it is gone.
    return is_other or (pid == os.getpid() and known)
