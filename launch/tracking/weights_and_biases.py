"""Weights & Biases: a run of its server, or files in `wandb/` of the run folder."""

import os
import secrets
import shutil
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from jaxdist.core.validation import parse_json
from jaxdist.launch.tracking.tracker import TrackedEnd, TrackedRun

if TYPE_CHECKING:
    from wandb import Run as WandbRun

MODE_VAR: Final = "WANDB_MODE"
URL_VAR: Final = "WANDB_BASE_URL"
PROJECT_VAR: Final = "WANDB_PROJECT"
_DEFAULT_URL: Final = "https://api.wandb.ai"
_HEAD_BYTES: Final = 7
_BLOCK_BYTES: Final = 32768
_WHOLE: Final = 1
_LAST_PART: Final = 4
_CONNECT_S: Final = 5.0
_START_S: Final = 30.0
_FINISH_S: Final = 20.0


class WandbTracker:
    """Logs to the server where it can be reached, else to files for `wandb sync`."""

    def __init__(self) -> None:
        self._run: WandbRun | None = None

    def start(self, run: TrackedRun) -> int:
        """Begin under an id that a resumed run has again."""
        import wandb

        name = run.load_id("wandb") or secrets.token_hex(4)
        mode = choose_mode(os.environ)
        # Without a server there is nothing to resume: both parts have one id, which
        # `wandb sync` joins.
        how: dict[str, Any] = {"resume": "allow"} if mode == "online" else {}
        self._run = wandb.init(
            project=os.environ.get(PROJECT_VAR) or run.experiment,
            name=run.name,
            id=name,
            dir=str(run.folder),
            mode=mode,
            config=dict(run.config),
            # A program may have a run of its own beside this one.
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                init_timeout=_START_S,
                finish_timeout=_FINISH_S,
                x_disable_stats=True,
                disable_git=True,
                disable_code=True,
            ),
            **how,
        )
        run.save_id("wandb", name)
        # A server knows what it has. Without one it is what the files have: those of a
        # run that was killed lack its last rows.
        if mode == "online":
            # `step` is the one that is logged next.
            return max(self._run.step - 1, 0)
        rows = (read_steps(path) for path in offline_files(run.folder, name))
        return max((step for steps in rows for step, _ in steps), default=0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step; those of one step are one row."""
        if self._run is not None:
            self._run.log(dict(values), step=step)

    def end(self, summary: TrackedEnd) -> None:
        """Send the figures of the whole run and its files, and finish."""
        if self._run is None:
            return
        self._run.summary.update({f"summary/{k}": x for k, x in summary.values.items()})
        for path in summary.files:
            # A copy: of a file elsewhere the library makes a link, and says so.
            copy = shutil.copy(path, self._run.dir)
            self._run.save(copy, base_path=self._run.dir, policy="now")
        self._run.finish(exit_code=int(summary.status == "failed"))


def offline_files(folder: Path, run_id: str) -> list[Path]:
    """Return what a run without a server has written, oldest first, a file a start."""
    return sorted((folder / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))


def read_steps(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the steps of an offline file, and what was logged of each."""
    found = []
    for record in read_records(path):
        if record.HasField("history"):
            items = record.history.item
            values = {
                item.key or item.nested_key[0]: parse_json(item.value_json)
                for item in items
            }
            found.append((int(record.history.step.num), values))
    return found


def read_records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline file, up to where a kill has cut it off.

    Blocks of 32 KiB hold parts of records, each behind a checksum, a length and a kind,
    as in a log of LevelDB; a head of 7 bytes stands before the first.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), _HEAD_BYTES, b""
    while at + _HEAD_BYTES <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        # No head fits here: the writer has filled the block up with zeros.
        if left < _HEAD_BYTES:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + _HEAD_BYTES])
        at += _HEAD_BYTES
        whole += data[at : at + length]
        at += length
        if kind in (_WHOLE, _LAST_PART):
            try:
                yield Record.FromString(whole)
            except DecodeError:
                return
            whole = b""


def choose_mode(environ: Mapping[str, str]) -> "Any":
    """Return the mode to start in: that of the environment, else what will not wait.

    Args:
        environ: variables; `WANDB_MODE` is taken as it is.

    >>> choose_mode({"WANDB_MODE": "offline"}), choose_mode({"WANDB_MODE": "disabled"})
    ('offline', 'disabled')
    """
    if environ.get(MODE_VAR):
        return environ[MODE_VAR]
    # Without a network the library would try again for minutes, and without a login it
    # would ask a person for a key.
    url = urlsplit(environ.get(URL_VAR) or _DEFAULT_URL)
    host, port = url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError:
        return "offline"

    import wandb

    return "online" if wandb.login(prompt=False, verify=False) else "offline"
