"""A claim: one process at a time works in a run folder."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jaxdist.core.errors import BadInput
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    check_writable,
    nearest_existing_folder,
    not_writable_error,
)


@contextmanager
def folder_lock(folder: RunFolder) -> Iterator[RunFolder]:
    """Make a run folder and hold it for this process.

    The operating system holds the lock, so it ends with the process, however that
    ends: nothing stale is left by a kill.

    Raises:
        BadInput: the folder cannot be written, or another process works in it. Then
            nothing was made.
    """
    check_writable(folder.path)
    file = _open(folder)
    try:
        _acquire(file, folder)
        os.ftruncate(file, 0)
        os.pwrite(file, _lock_owner(), 0)
        try:
            yield folder
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def _open(folder: RunFolder) -> int:
    place = nearest_existing_folder(folder.path)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        return os.open(folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as refused:
        raise not_writable_error(folder.path, place) from refused


def _lock_owner() -> bytes:
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()


def _acquire(file: int, folder: RunFolder) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as busy:
        raise BadInput(
            f"another process is at work in {folder.path}",
            rule="one process at a time works in a run folder",
            values=_holder(file),
            remedy=f"run.name={folder.name}-2, or wait for it to end",
        ) from busy


def _holder(file: int) -> str:
    with suppress(ValueError, KeyError):
        holder = json.loads(os.pread(file, 4096, 0))
        return f"process {holder['pid']} on {holder['host']}"
    return "a process that does not say its name"
