"""A data set is in its folder whole or not at all, and damage is named."""

import os
import subprocess
import sys
import threading
import time

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.input.prepare import CHECKSUM_FILE, ensure_prepared


def write_toy(directory):
    (directory / "toy" / "1.0").mkdir(parents=True)
    (directory / "toy" / "1.0" / "records").write_text("abc" * 1000)
    (directory / "toy" / "info").write_text("{}")


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_it_is_made_once_and_nothing_else_is_left(tmp_path):
    ensure_prepared(tmp_path / "data" / "toy", write_toy)
    ensure_prepared(tmp_path / "data" / "toy", lambda _: pytest.fail("made again"))
    assert contents(tmp_path / "data").keys() == {
        "toy/1.0/records",
        "toy/info",
        f"toy/{CHECKSUM_FILE}",
    }


def test_a_failure_half_way_leaves_nothing_and_the_next_start_does_it_again(tmp_path):
    def fail(directory):
        write_toy(directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_prepared(tmp_path / "toy", fail)
    assert list(tmp_path.iterdir()) == []
    ensure_prepared(tmp_path / "toy", write_toy)


def test_two_at_once_both_get_it(tmp_path):
    both, errors = threading.Barrier(2), []

    def make(directory):
        write_toy(directory)
        both.wait()

    def start():
        try:
            ensure_prepared(tmp_path / "toy", make)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


KILLED = """
import sys, time
from pathlib import Path
from jaxdist.input.prepare import ensure_prepared

def make(directory):
    (directory / "toy").mkdir()
    (directory / "toy" / "part").write_text("half")
    print("at work", flush=True)
    sys.stdin.read()

ensure_prepared(Path(sys.argv[1]) / "toy", make)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_only_what_a_dead_preparation_left_is_removed(tmp_path):
    # Of nobody that is known, as old as they may be, and of names that begin alike.
    for name in (".toy-old", ".toy-young", ".toy-b-0123456789abcdef", ".toy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("not ours")
        os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    others = names(tmp_path)

    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "at work\n"
        alive = names(tmp_path)
        assert len(alive) == len(others) + 2
        for name in alive:
            os.utime(tmp_path / name, (time.time() - 7200,) * 2)
        ensure_prepared(tmp_path / "toy", write_toy)
        assert names(tmp_path) == sorted([*alive, "toy"])

        child.kill()
        child.wait()
        ensure_prepared(tmp_path / "toy-b", lambda at: write_named(at, "toy-b"))
        assert names(tmp_path) == sorted([*alive, "toy", "toy-b"])
        (tmp_path / "toy").rename(tmp_path / "toy-1")
        ensure_prepared(tmp_path / "toy", write_toy)
        assert names(tmp_path) == sorted([*others, "toy", "toy-1", "toy-b"])


def write_named(directory, name):
    write_toy(directory)
    (directory / "toy").rename(directory / name)


def empty(folder):
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


DAMAGE = {
    "empty": empty,
    "no list": lambda folder: (folder / CHECKSUM_FILE).unlink(),
    "empty list": lambda folder: (folder / CHECKSUM_FILE).write_text(""),
    "truncated": lambda folder: os.truncate(folder / "1.0" / "records", 1000),
    "one byte": lambda folder: (folder / "1.0" / "records").write_text("abd" * 1000),
    "missing": lambda folder: (folder / "info").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_with_a_remedy_that_works(tmp_path, damage):
    folder = tmp_path / "toy"
    ensure_prepared(folder, write_toy)
    DAMAGE[damage](folder)
    before = contents(tmp_path)
    with pytest.raises(BadInput, match=f"rm -r {folder}") as refused:
        ensure_prepared(folder, lambda _: pytest.fail("written over"))
    assert refused.value.rule
    assert str(folder) in refused.value.values
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(BadInput, match=r"data\.dir=<another folder>"):
        ensure_prepared(tmp_path / "data" / "toy", write_toy)
