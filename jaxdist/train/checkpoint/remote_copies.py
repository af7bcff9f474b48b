"""Copies of a run's checkpoints in an object store, for when its disk is lost.

s3://bucket/runs/digits/config.lock.json        files of the run
s3://bucket/runs/digits/checkpoints/460/...     files of a checkpoint
s3://bucket/runs/digits/checkpoints/460.json    their sizes and hashes: written last

A copy without this list is no copy, so one that is half there is never taken for one;
the list of one that is deleted goes first.
"""

import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from jaxdist.core.errors import BadInput, StoreFailedError
from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.core.object_store import (
    CREDENTIALS_REMEDY,
    is_access_denied,
    kvstore_spec,
    open_kvstore,
    shown_error,
)
from jaxdist.core.validation import json_text
from jaxdist.train.checkpoint.best import best_note, parse_best
from jaxdist.train.checkpoint.manifest import CorruptCheckpointError

_PREFIX: Final = "checkpoints/"
_BEST: Final = f"{_PREFIX}best.json"
_LIST: Final = re.compile(rf"{_PREFIX}(\d+)\.json")
# Bytes that are in memory at a time; a larger file goes alone.
_BATCH_BYTES: Final = 256_000_000
_POLL_S: Final = 0.2


@dataclass(frozen=True)
class _CopiedFile:
    """What a file was when it was copied."""

    nbytes: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Self:
        return cls(len(content), hashlib.sha256(content).hexdigest())


class RemoteCopies:
    """The copies of one run's checkpoints in a store; process 0 alone uses them.

    Args:
        address: of the run in the store: `s3://bucket/runs/digits`.
        run_files: files of the run that are copied beside its checkpoints.
    """

    def __init__(self, address: str, run_files: Sequence[Path] = ()) -> None:
        self.address, self._run_files = address.rstrip("/"), tuple(run_files)
        self._opened: Any = None
        self._pool = ThreadPoolExecutor(1, "checkpoint-copies")
        self._upload: Future[None] | None = None
        self._cancelled = threading.Event()

    def check(self, *, write: bool) -> None:
        """Make sure that the store can be read, and written if it is to be.

        Raises:
            BadInput: it cannot.
        """
        key = f".jaxdist-{secrets.token_hex(8)}"
        try:
            # Impatient: whoever has mistyped an address waits for seconds.
            store = open_kvstore(kvstore_spec(self.address), patient=False)
            store.read(_BEST).result()
            if write:
                store.write(key, b"jaxdist").result()
                store.delete_range(_keys_below(key)).result()
        except (ValueError, OSError) as error:
            said = shown_error(error)
            raise BadInput(
                f"{self.address} cannot be {'written' if write else 'read'}",
                rule="checkpoints are copied to a store that is there and lets one in",
                values=said[:300],
                remedy=CREDENTIALS_REMEDY
                if is_access_denied(said)
                else "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or file:///FOLDER",
            ) from error

    def steps(self) -> tuple[int, ...]:
        """Return the steps whose copies are whole, oldest first.

        Raises:
            StoreFailedError: the store fails.
        """
        keys = self._finish(_PREFIX, self._store.list(_keys_below(_PREFIX)))
        found = (_LIST.fullmatch(key.decode()) for key in keys)
        return tuple(sorted(int(match[1]) for match in found if match))

    def best(self) -> BestCheckpoint | None:
        """Return what the store has noted of the best checkpoint.

        Raises:
            StoreFailedError: the store fails.
        """
        return parse_best(self._read(_BEST))

    def begin_upload(
        self, folder: Path, *, keep: int, best: BestCheckpoint | None
    ) -> None:
        """Begin to copy a checkpoint, as soon as it has its name.

        Args:
            folder: the checkpoint, which may be in the midst of being written.
            keep: number of the newest copies that stay.
            best: the best checkpoint, whose copy stays too.
        """
        self._cancelled.clear()

        def upload() -> None:
            while not folder.is_dir():
                if self._cancelled.wait(_POLL_S):
                    return
            self._write_copy(folder)
            if best is not None:
                self._finish(_BEST, self._store.write(_BEST, best_note(best)))
            # Later ones are of no concern: this run will come by their steps again.
            copied = [step for step in self.steps() if step <= int(folder.name)]
            for step in copied[:-keep]:
                if best is None or step != best.step:
                    self._delete(step)

        self._upload = self._pool.submit(upload)

    def wait(self) -> None:
        """Wait for the copy that is under way.

        Raises:
            StoreFailedError: it has failed; the checkpoint on disk is intact.
        """
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.result()

    def cancel(self) -> None:
        """Copy nothing of a checkpoint that could not be written."""
        self._cancelled.set()
        # What has ended the write is said, and not what a copy met.
        with suppress(StoreFailedError):
            self.wait()

    def close(self) -> None:
        """Stop the thread."""
        self._pool.shutdown()

    def download(self, step: int, folder: Path) -> None:
        """Write a copy's files to disk; `folder` is made.

        Raises:
            CorruptCheckpointError: a file is not what was copied.
            StoreFailedError: the store fails.
        """
        files = self._list_files(step)
        if files is None:
            raise CorruptCheckpointError(f"{_PREFIX}{step}.json, cannot be read")
        for batch in _batches((name, one.nbytes) for name, one in files.items()):
            keys = [f"{_PREFIX}{step}/{name}" for name in batch]
            reads = [self._store.read(key) for key in keys]
            for name, key, read in zip(batch, keys, reads, strict=True):
                content = bytes(self._finish(key, read).value)
                if _CopiedFile.of(content) != files[name]:
                    raise CorruptCheckpointError(f"{key}, not what was copied")
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())

    def download_run_files(self, folder: Path) -> None:
        """Write the files of the run to disk that lie beside its checkpoints.

        Raises:
            StoreFailedError: the store fails.
        """
        keys = self._finish("", self._store.list(_keys_below("")))
        for name in (key.decode() for key in keys):
            if "/" not in name and not name.startswith("."):
                (folder / name).write_bytes(self._read(name))

    @property
    def _store(self) -> Any:
        if self._opened is None:
            try:
                self._opened = open_kvstore(kvstore_spec(self.address), patient=True)
            except (ValueError, OSError) as error:
                raise self._error("", shown_error(error)) from error
        return self._opened

    def _write_copy(self, folder: Path) -> None:
        step = int(folder.name)
        paths = {
            x.relative_to(folder).as_posix(): x
            for x in sorted(folder.rglob("*"))
            if x.is_file()
        }
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        # Names of data files are drawn at random: another state has other ones.
        copied = self._list_files(step) or {}
        if sizes == {name: one.nbytes for name, one in copied.items()}:
            return
        # What lies under the name is of an interrupted copy, or of a state that this
        # run, resumed from an earlier one, has left behind.
        self._delete(step)
        self._write("", {x.name: x for x in self._run_files if x.is_file()})
        written = self._write(f"{_PREFIX}{step}/", paths)
        files = {name: asdict(one) for name, one in written.items()}
        key, listing = f"{_PREFIX}{step}.json", json_text({"files": files})
        self._finish(key, self._store.write(key, listing))

    def _write(self, prefix: str, paths: Mapping[str, Path]) -> dict[str, _CopiedFile]:
        """Write files under their names, several at a time."""
        written: dict[str, _CopiedFile] = {}
        sizes = ((name, path.stat().st_size) for name, path in paths.items())
        for batch in _batches(sizes):
            writes = []
            for name in batch:
                content = paths[name].read_bytes()
                written[name] = _CopiedFile.of(content)
                writes.append(self._store.write(f"{prefix}{name}", content))
            for name, write in zip(batch, writes, strict=True):
                self._finish(f"{prefix}{name}", write)
        return written

    def _list_files(self, step: int) -> dict[str, _CopiedFile] | None:
        """Read the list of a copy's files; None where there is none."""
        try:
            found = json.loads(self._read(f"{_PREFIX}{step}.json"))["files"]
            return {name: _CopiedFile(**one) for name, one in found.items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if isinstance(error, StoreFailedError):
                raise
            return None

    def _delete(self, step: int) -> None:
        key, below = f"{_PREFIX}{step}.json", _keys_below(f"{_PREFIX}{step}/")
        # The list goes first, so that no half is ever taken for a copy.
        self._finish(key, self._store.delete_range(_keys_below(key)))
        self._finish(key, self._store.delete_range(below))

    def _read(self, key: str) -> bytes:
        return bytes(self._finish(key, self._store.read(key)).value)

    def _finish(self, key: str, begun: Any) -> Any:
        """Wait for what TensorStore has begun, and name what has failed."""
        try:
            return begun.result()
        except (ValueError, OSError) as error:
            raise self._error(key, shown_error(error)) from error

    def _error(self, key: str, said: str) -> StoreFailedError:
        return StoreFailedError(
            f"{self.address}/{key} failed",
            rule="a checkpoint is copied whole or not at all; what is on the disk is "
            "intact",
            values=said[:300],
            remedy=(
                *(CREDENTIALS_REMEDY if is_access_denied(said) else ()),
                "repeat the command once the store answers: the run resumes",
            ),
        )


def _keys_below(prefix: str) -> Any:
    """Return the range of the keys that begin with a prefix."""
    import tensorstore

    if not prefix:
        return tensorstore.KvStore.KeyRange()
    last = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return tensorstore.KvStore.KeyRange(prefix, last)


def _batches(sizes: Iterable[tuple[str, int]]) -> Iterable[list[str]]:
    """Cut names with their bytes into groups that fit in memory."""
    batch, total = list[str](), 0
    for name, size in sizes:
        if batch and total + size > _BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(name)
        total += size
    if batch:
        yield batch
