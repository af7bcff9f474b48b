"""Run folders: where the files of a run are, and reading them while they grow.

Reading the files of a run folder, as far as they were written.

A run may be stopped at any byte: a missing file is empty, a line that is not whole is
counted and left out.
"""

import fcntl
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jaxdist.core.errors import BadInput, MultipleErrors, did_you_mean
from jaxdist.core.files import check_no_store
from jaxdist.core.records import is_scalar
from jaxdist.core.validation import json_text, parse_json

if TYPE_CHECKING:
    from jaxdist.launch.config import Experiment


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run; nothing is created by naming them."""

    path: Path
    """The folder itself."""

    @property
    def name(self) -> str:
        """Name of the run: the last part of the path."""
        return self.path.resolve().name

    @property
    def config_lock(self) -> Path:
        """Every value of the configuration and who set it."""
        return self.path / "config.lock.json"

    @property
    def plan(self) -> Path:
        """The plan that runs."""
        return self.path / "plan.json"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer of the text that it is trained on, where it has one."""
        return self.path / "tokenizer.json"

    @property
    def metrics(self) -> Path:
        """A line a step and a line an evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def spans(self) -> Path:
        """A line a phase: where the wall clock went."""
        return self.path / "spans.jsonl"

    @property
    def stragglers(self) -> Path:
        """A line each time that a process was slower than the others."""
        return self.path / "slow.jsonl"

    @property
    def drift_log(self) -> Path:
        """A line each time that steps drifted, a reason was found, or a plan."""
        return self.path / "drift.jsonl"

    @property
    def saved_plan(self) -> Path:
        """The plan that the run has changed to, where it has."""
        return self.path / "adapted.json"

    @property
    def status(self) -> Path:
        """Where each process is, written again and again while the run goes."""
        return self.path / "status.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def pretrained(self) -> Path:
        """Folder of the tokenizer and other files of the weights it started from."""
        return self.path / "pretrained"

    @property
    def summary(self) -> Path:
        """The run record, written at the end."""
        return self.path / "summary.json"

    @property
    def shuffle_quality(self) -> Path:
        """How well its samples were mixed, where each epoch exchanged a part."""
        return self.path / "shuffle.json"

    @property
    def traces(self) -> Path:
        """Folder of what the profiler saw."""
        return self.path / "profile"

    @property
    def step_breakdown(self) -> Path:
        """Where the profiled steps went, by term and by layer."""
        return self.path / "measured.json"

    @property
    def comparison(self) -> Path:
        """The run beside its prediction, as it was last compared."""
        return self.path / "compared.json"

    @property
    def compiled_step(self) -> Path:
        """The step as it was last compiled for a machine that is not here."""
        return self.path / "compiled.json"

    @property
    def sample_evaluation(self) -> Path:
        """What a checkpoint says of held-out samples, one by one."""
        return self.path / "samples.json"

    @property
    def report(self) -> Path:
        """The run as one page."""
        return self.path / "report.html"

    @property
    def stacks(self) -> Path:
        """Folder of what the threads of each process did when one was stuck."""
        return self.path / "stacks"

    @property
    def lock_file(self) -> Path:
        """File that the process that works here has locked."""
        return self.path / ".claim"

    @property
    def has_run(self) -> bool:
        """Whether a run was started here."""
        return self.config_lock.is_file()


def run_folder(config: "Experiment") -> RunFolder:
    """Return the folder that a configuration's run has."""
    return RunFolder(Path(config.run.dir) / (config.run.name or config.name))


def find_run(name_or_path: str, *, folder: str | Path = "runs") -> RunFolder:
    """Return the run that a name or a path means.

    Args:
        name_or_path: a run inside `folder`, or the path of a run folder.
        folder: where run folders are.

    Raises:
        BadInput: there is no run; names one that is spelled like it.
    """
    # Runs are typed by name more often than by path, so the name goes first.
    for path in (Path(folder, name_or_path), Path(name_or_path)):
        if RunFolder(path).has_run:
            return RunFolder(path)
    names = run_names(folder)
    listed = f"no runs in {folder}/; start one with: jaxdist train digits"
    if names:
        more = ", ..." if names[8:] else ""
        listed = f"runs in {folder}/: {', '.join(names[:8])}{more}"
    if Path(name_or_path).is_dir():
        raise BadInput(
            f"{name_or_path} holds no run",
            rule="the folder of a run has a config.lock.json",
            remedy=listed,
        )
    near = did_you_mean(Path(name_or_path).name, names)
    meant = f"did you mean {near}? " if near else ""
    raise BadInput(f"no run {name_or_path}", remedy=meant + listed)


def run_names(folder: str | Path = "runs") -> tuple[str, ...]:
    """Return the names of the runs in a folder, sorted."""
    found = Path(folder).glob("*/config.lock.json")
    return tuple(sorted(lock.parent.name for lock in found))


def check_writable(path: Path, *, key: str = "run.dir") -> None:
    """Make sure that a folder can be written or made, without touching the disk.

    Args:
        path: the folder, which need not be there yet.
        key: the setting that moves it elsewhere.

    Raises:
        BadInput: it cannot; names the folder that stands in the way. Or it is the
            address of a store.
    """
    check_no_store(path, key)
    if not is_writable(path):
        raise not_writable_error(path, nearest_existing_folder(path), key)


def is_writable(path: Path) -> bool:
    """Tell whether a folder can be written, or made where it is not there yet."""
    place = nearest_existing_folder(path)
    # Asked, not tried: a folder that was made to try would be left behind by a run that
    # is refused. Making a file in a folder needs both bits.
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def not_writable_error(path: Path, obstacle: Path, key: str = "run.dir") -> BadInput:
    """Say that a folder cannot be written, and what stands in the way."""
    if not obstacle.is_dir():
        what = "a file"
    elif os.statvfs(obstacle).f_flag & os.ST_RDONLY:
        what = "on a disk that is mounted read-only"
    else:
        try:
            owner = obstacle.owner()
        except KeyError:  # a user without a name, as in many containers
            owner = str(obstacle.stat().st_uid)
        what = f"owner {owner}, mode {obstacle.stat().st_mode & 0o777:o}"
    return BadInput(
        f"{path} cannot be written",
        rule="the folder of a run is writable",
        values=f"{obstacle} is {what}",
        remedy=f"{key}=FOLDER, a folder of yours",
    )


def nearest_existing_folder(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


@contextmanager
def folder_lock(folder: RunFolder) -> Iterator[RunFolder]:
    """Make a run folder and lock it for this process.

    Raises:
        BadInput: the folder cannot be written, or another process works in it. Then
            nothing was made.
    """
    check_writable(folder.path)
    place = nearest_existing_folder(folder.path)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        # Close-on-exec: a process that is started from here must not keep the lock.
        file = os.open(folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as refused:
        raise not_writable_error(folder.path, place) from refused
    try:
        # The operating system holds the lock, so it ends with the process, however that
        # ends: a kill leaves nothing stale behind.
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as busy:
            who = "a process that does not say its name"
            with suppress(ValueError, KeyError):
                holder = parse_json(os.pread(file, 4096, 0))
                who = f"process {holder['pid']} on {holder['host']}"
            raise BadInput(
                f"another process is at work in {folder.path}",
                rule="one process at a time works in a run folder",
                values=who,
                remedy=f"run.name={folder.name}-2, or wait for it to end",
            ) from busy
        # Whom the next process that finds the lock taken can name.
        # The file stays: a lock on a deleted file would exclude nobody.
        mine = {"pid": os.getpid(), "host": socket.gethostname()}
        os.ftruncate(file, 0)
        os.pwrite(file, json_text(mine).encode(), 0)
        try:
            yield folder
        finally:
            # Who finds the lock taken next must not be told of this process.
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def is_locked(folder: RunFolder) -> bool:
    """Tell whether a process works in a folder."""
    try:
        file = os.open(folder.lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


JsonRow = dict[str, Any]
T = TypeVar("T")
_TAIL_BYTES: Final = 1 << 16
"""Bytes of a file's end in which a last line is looked for."""


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """What could be read of a file of JSON lines."""

    rows: tuple[JsonRow, ...] = ()
    """The objects, in the order of the file."""
    unreadable: int = 0
    """Lines left out: cut off by the end of a process."""


def read_jsonl(path: Path) -> JsonLines:
    """Read a file of JSON objects, one a line.

    Args:
        path: the file; one that does not exist reads as empty.
    """
    try:
        # A line may end within a character, which is no UTF-8; replaced, the line is
        # still no JSON, and is counted.
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return JsonLines()
    # Not `splitlines`, which also cuts at U+2028 and U+0085: JSON texts may hold these.
    found = [_parse(line) for line in text.split("\n") if line.strip()]
    rows = tuple(row for row in found if row is not None)
    return JsonLines(rows=rows, unreadable=len(found) - len(rows))


SPAN_KEYS: Final = ("name", "start", "step")
METRIC_KEYS: Final = ("kind", "step")
_ROW_NUMBERS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("step", "correct", "samples", "answers"), int),
    **dict.fromkeys(("time", "step_s", "start", "seconds", "epoch"), float),
}
_MAYBE_NONFINITE: Final = ("loss", "accuracy", "learning_rate")
"""Numbers that older versions have written as NaN and Infinity."""


def read_rows(path: Path, required: Iterable[str]) -> JsonLines:
    """Read metrics or spans; lines with values of other types are left out as well.

    Args:
        path: the file.
        required: keys that each row has: numbers or texts.

    Raises:
        BadInput: it has lines, and none of them is such a row.
    """
    found, names = read_jsonl(path), tuple(required)
    rows = tuple(row for row in found.rows if _is_row(row, names))
    unreadable = found.unreadable + len(found.rows) - len(rows)
    # A kill leaves one line cut off. Several, and none whole, are of something else.
    if unreadable > 1 and not rows:
        raise damaged_file_error(path, f"{unreadable} lines, none with {names}")
    return JsonLines(rows=rows, unreadable=unreadable)


def _is_row(row: JsonRow, required: Iterable[str]) -> bool:
    numbers = (row[key] for key in _MAYBE_NONFINITE if row.get(key) is not None)
    return (
        all(is_scalar(_ROW_NUMBERS.get(key, str), row.get(key)) for key in required)
        and all(
            is_scalar(kind, row[key]) and row[key] >= 0
            for key, kind in _ROW_NUMBERS.items()
            if key in row
        )
        # As no finite number: NaN is drawn as a gap.
        and all(is_scalar(float, x) or isinstance(x, float) for x in numbers)
    )


def read_json_object(path: Path) -> JsonRow | None:
    """Read a file that holds one JSON object; None where it is missing or cut off."""
    try:
        return _parse(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None


def read_run_file(path: Path, parse: Callable[[str], T]) -> T:
    """Read a file of a run, which may be damaged, or of something else.

    Args:
        path: the file.
        parse: makes a value of its text; raises ValueError where it cannot.

    Raises:
        BadInput: it is not there or damaged, with its path.
    """
    with run_file_errors(path):
        return parse(path.read_text(encoding="utf-8"))


@contextmanager
def run_file_errors(path: Path) -> Iterator[None]:
    """Turn what is raised of the values of a run's file into a refusal that names it.

    Raises:
        BadInput: something was raised.
    """
    try:
        yield
    except MultipleErrors:
        raise
    except BadInput as error:
        raise BadInput(
            f"{path} cannot be used: {error.what}",
            rule=error.rule,
            values=error.values,
            remedy=error.remedy,
        ) from error
    except Exception as error:  # KeyError, TypeError, ZeroDivisionError, OSError, ...
        said = f"{type(error).__name__}: {error}"
        raise damaged_file_error(path, said) from error


def damaged_file_error(path: Path, said: str) -> BadInput:
    """Return the refusal of a file of a run that cannot be used.

    Args:
        path: the file.
        said: what is wrong with it.
    """
    return BadInput(
        f"{path} is damaged",
        rule="the files of a run are those that jaxdist train wrote, of a version "
        "that this one knows",
        values=said,
        remedy=("the file as it was, from a copy", "run.name=NAME starts a new run"),
    )


def read_last_row(path: Path, kind: str) -> JsonRow | None:
    """Return the last whole object of a kind, from the end of a file that may be long.

    Args:
        path: a file of JSON objects, one a line, that may still grow.
        kind: the value of its `kind`.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return None
    # The first of these lines may have lost its beginning, the last one its end.
    rows = (_parse(line) for line in reversed(lines))
    return next((row for row in rows if row and row.get("kind") == kind), None)


def _parse(text: str) -> JsonRow | None:
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def complete_spans(spans: Iterable[Mapping[str, Any]]) -> list[JsonRow]:
    """Give every span an end: one that never ended lasts to the last known moment.

    Returns:
        One row a span, in the order of the file; the ones without an end have
        `unfinished` set.
    """
    rows = [dict(s) for s in spans if "name" in s and "start" in s]
    # A long phase is written twice, as it begins and as it ends.
    ended = {(row["name"], row["start"]) for row in rows if not row.get("begin")}
    last = max((row["start"] + row.get("seconds", 0.0) for row in rows), default=0.0)
    return [
        row | {"seconds": last - row["start"], "unfinished": True}
        if row.get("begin")
        else row | {"seconds": row.get("seconds", 0.0)}
        for row in rows
        if not (row.get("begin") and (row["name"], row["start"]) in ended)
    ]
