"""Folders are deleted by their owners alone, and files replaced by fresh ones."""

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.core.files import (
    MARKER_SUFFIX,
    FolderMarker,
    delete_folder,
    marker_path,
    write_atomic,
    write_output,
)
from jaxdist.input.prepare import ensure_prepared
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.checkpoint.orbax_store import INCOMPLETE_SUFFIX
from jaxdist.train.state import TrainState

NOTHING = TrainState(step=None, params=None, stats=None, opt=None)


def tree(folder):
    """Every path of a folder with its content, links not followed."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "folder" if path.is_dir() else path.read_bytes()
    return found


def write_toy(directory):
    (directory / "toy").mkdir()
    (directory / "toy" / "info").write_text("{}")


def only_new(before, after):
    """Return what was added, after a check that nothing else changed."""
    assert before.items() <= after.items()
    return {name for name in after.keys() - before.keys() if "/" not in name}


NAMES = st.one_of(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["7", "12", "damaged-7", "a"]),
        st.sampled_from([INCOMPLETE_SUFFIX, ".orbax", ""]),
        st.sampled_from(["", "-retired", "-1", ".bak", "-mine"]),
    ),
    st.builds(
        ".{}-{}".format,
        st.sampled_from(["toy", "toy-b", "toy.owner"]),
        st.sampled_from(["0" * 16, "0123456789abcdef", "old", "x" * 16, ""]),
    ),
)
MARKERS = st.one_of(
    st.none(),
    st.sampled_from(["", "{}", "[]", "null", "not json", "[" * 3000]),
    st.builds(
        lambda **owner: json.dumps(owner),
        host=st.sampled_from(["another-host", None, 3]),
        pid=st.one_of(st.integers(-1, 2**70), st.text(max_size=3)),
        start_time=st.one_of(st.none(), st.integers(), st.text(max_size=3)),
    ),
    st.builds(
        lambda pid, start: json.dumps(
            {"host": socket.gethostname(), "pid": pid, "start_time": start}
        ),
        st.just(os.getppid()),
        st.none(),
    ),
)
KINDS = st.sampled_from(["folder", "link", "file"])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, st.tuples(KINDS, MARKERS), max_size=6))
def test_nothing_of_anybody_else_is_touched(planted):
    with tempfile.TemporaryDirectory() as place:
        folder, away = Path(place, "data"), Path(place, "away")
        folder.mkdir()
        away.mkdir()
        (away / "file").write_text("not ours")
        for name, (kind, marker) in planted.items():
            path = folder / name
            if kind == "link":
                path.symlink_to(away)
            elif kind == "file":
                path.write_text("not ours")
            else:
                path.mkdir()
                (path / "file").write_text("not ours")
                (path / "link").symlink_to(away)
            if marker is not None:
                step = name.partition(".")[0]
                for beside in (marker_path(path), folder / f".{step}{MARKER_SUFFIX}"):
                    beside.write_text(marker)
        before, outside = tree(folder), tree(away)

        with suppress(BadInput):  # a folder 7 is a damaged checkpoint
            Checkpoints(folder, read_only=True).restore_newest(NOTHING)
        assert tree(folder) == before
        Checkpoints(folder)._remove_incomplete()
        assert tree(folder) == before
        ensure_prepared(folder / "toy", write_toy)
        assert only_new(before, tree(folder)) == {"toy"}
        assert tree(away) == outside


@pytest.fixture
def dead():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return {"host": socket.gethostname(), "pid": child.pid, "start_time": 1}


def test_a_marker_is_taken_of_the_dead_alone(tmp_path, dead):
    path = tmp_path / ".a.owner.json"
    held = FolderMarker.create(path)
    assert json.loads(path.read_text())["pid"] == os.getpid()
    assert FolderMarker.take(path) is None
    with pytest.raises(FileExistsError):
        FolderMarker.create(path)
    # Its object is gone: what a failure in this process has left is its own.
    held.file.close()
    FolderMarker.take(path).release()
    assert not list(tmp_path.iterdir())

    path.write_text(json.dumps(dead))
    FolderMarker.take(path).release()
    # The number of the process was given to another one, which is alive.
    path.write_text(json.dumps({**dead, "pid": os.getppid()}))
    FolderMarker.take(path).release()
    path.write_text(json.dumps({**dead, "host": "another-host"}))
    assert FolderMarker.take(path) is None
    FolderMarker.take(path, any_host=True).release()
    assert not list(tmp_path.iterdir())


def test_a_marker_that_is_a_link_is_not_followed(tmp_path, dead):
    (tmp_path / "target").write_text(json.dumps(dead))
    (tmp_path / ".a.owner.json").symlink_to(tmp_path / "target")
    assert FolderMarker.take(tmp_path / ".a.owner.json") is None
    with pytest.raises(FileExistsError):
        FolderMarker.create(tmp_path / ".a.owner.json")


def test_a_folder_is_deleted_by_its_own_marker(tmp_path):
    for name in ("a", "b", "c/d"):
        (tmp_path / name / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "b")
    marker = FolderMarker.create(tmp_path / ".a.owner.json")
    assert delete_folder(tmp_path / "a", marker)
    assert not (tmp_path / "a").exists()
    delete_folder(tmp_path / "link", marker)
    assert (tmp_path / "b" / "deep").is_dir()
    with pytest.raises(ValueError, match="no marker of"):
        delete_folder(tmp_path / "c" / "d", marker)
    marker.release()
    with pytest.raises(ValueError, match="no marker of"):
        delete_folder(tmp_path / "b", marker)
    assert (tmp_path / "b" / "deep").is_dir()


def test_only_one_file_deletes_folders():
    root = Path(__file__).parents[2]
    files = subprocess.run(
        [shutil.which("git"), "grep", "-l", r"rmtree(", "--", "*.py", ":!tests"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    ours = [file for file in files if not file.startswith((".ci/", "benchmarks/"))]
    assert ours == ["jaxdist/core/files.py"]


@pytest.mark.parametrize("name", ["report.html", "x" * 255, "\u00e9" * 127])
def test_a_file_is_replaced_and_no_link_is_followed(tmp_path, name):
    target = tmp_path / "target"
    target.write_text("not ours")
    path = tmp_path / name
    path.symlink_to(target)
    if len(name) < 100:
        for part in (f"{name}.part", f".{name}.part"):
            (tmp_path / part).symlink_to(target)
    others = set(map(str, tmp_path.iterdir()))
    write_atomic(path, "new")
    assert (path.is_symlink(), path.read_text()) == (False, "new")
    assert target.read_text() == "not ours"
    assert set(map(str, tmp_path.iterdir())) == others


def test_a_file_that_is_there_stays_unless_asked_otherwise(tmp_path):
    path = tmp_path / "plan.json"
    write_output(path, "first", force=False)
    with pytest.raises(BadInput, match="is there already"):
        write_output(path, "second", force=False)
    assert path.read_text() == "first"
    write_output(path, "second", force=True)
    assert path.read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "plan.json"
    write_output(path, "first", force=False)
    with pytest.raises(BadInput, match="is there already"):
        write_output(path, "second", force=False)
    FolderMarker.create(marker_path(tmp_path / "a")).release()
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_device_is_written_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    opened = os.open(pipe, os.O_RDWR)
    try:
        write_output(pipe, "text", force=False)
        assert os.read(opened, 10) == b"text"
    finally:
        os.close(opened)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_write_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "a", "text")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(tmp_path / "b", "\ud800")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
