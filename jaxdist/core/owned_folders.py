"""Temporary folders and their owners, and the one function that deletes a folder.

    data/.toy-3f9c1a20               made by a process, renamed or deleted by it
    data/.toy-3f9c1a20.owner.json    its marker: host, process, start time; locked

A marker lies beside its folder and is locked as long as its owner works. A process that
is killed leaves both, and whoever can take the lock, and finds the owner dead, deletes
them. A folder without a marker belongs to somebody else, whatever its name.
"""

import fcntl
import json
import os
import secrets
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TextIO

import psutil

from jaxdist.core.atomic_file import rename_new

MARKER_SUFFIX: Final = ".owner.json"
"""End of the name of a marker."""
_MAX_MARKER_BYTES: Final = 4096
_DELETE_ATTEMPTS: Final = 50
_CLOCK_TOLERANCE_S: Final = 2.0


@dataclass(frozen=True)
class FolderMarker:
    """A marker that this process has locked: it may delete what the marker is of.

    Made by `create` or `take`; `release` ends it.
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
            file.write(json.dumps(owner))
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
