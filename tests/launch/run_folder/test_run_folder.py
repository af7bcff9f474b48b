"""Run folders, their names, and the claim on one."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    check_writable,
    find_run,
    folder_lock,
    run_names,
)

HOLDER = """
import sys
from pathlib import Path
from pathlib import Path
from jaxdist.launch.run_folder.folder import folder_lock
from jaxdist.launch.run_folder.folder import RunFolder
with folder_lock(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def runs(tmp_path):
    for name in ("digits", "vgg16"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.lock.json").write_text("{}")
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def holder(tmp_path):
    """Start a second process that holds the folder `held`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "held")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_run_is_found_by_name_and_by_path(runs):
    assert find_run("digits", folder=runs).path == runs / "digits"
    assert find_run(str(runs / "digits")).path == runs / "digits"
    assert run_names(runs) == ("digits", "vgg16")


def test_an_unknown_run(runs):
    with pytest.raises(BadInput) as caught:
        find_run("digit", folder=runs)
    assert str(caught.value) == (
        f"no run digit\n  remedy   did you mean digits? runs in {runs}/: digits, vgg16"
    )


def test_a_folder_without_a_run(runs):
    with pytest.raises(BadInput, match="holds no run"):
        find_run(str(runs / "notes"), folder=runs)


def test_no_runs_at_all(tmp_path):
    with pytest.raises(BadInput, match="start one with: jaxdist train digits"):
        find_run("digits", folder=tmp_path / "none")


def test_naming_a_run_makes_nothing(tmp_path):
    folder = RunFolder(tmp_path / "a")
    paths = [
        folder.config_lock,
        folder.plan,
        folder.metrics,
        folder.spans,
        folder.checkpoints,
        folder.summary,
        folder.report,
    ]
    assert [path.name for path in paths] == [
        "config.lock.json",
        "plan.json",
        "metrics.jsonl",
        "spans.jsonl",
        "checkpoints",
        "summary.json",
        "report.html",
    ]
    assert not folder.path.exists()
    assert folder.name == "a"


def test_a_claim_makes_the_folder_and_ends(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    with folder_lock(folder):
        assert json.loads(folder.lock_file.read_text())["pid"] == os.getpid()
    with folder_lock(folder):
        pass
    assert folder.lock_file.read_text() == ""


def test_an_error_ends_a_claim(tmp_path):
    folder = RunFolder(tmp_path / "a")
    with pytest.raises(KeyboardInterrupt), folder_lock(folder):
        raise KeyboardInterrupt
    assert folder.lock_file.read_text() == ""
    with folder_lock(folder):
        pass


def test_two_processes_cannot_work_in_one_folder(tmp_path, holder):
    folder = RunFolder(tmp_path / "held")
    before = sorted(folder.path.iterdir())
    with pytest.raises(BadInput) as caught, folder_lock(folder):
        pass
    assert caught.value.values == f"process {holder.pid} on {socket.gethostname()}"
    assert caught.value.remedy == ("run.name=held-2, or wait for it to end",)
    assert sorted(folder.path.iterdir()) == before


def test_a_killed_process_leaves_no_claim(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with folder_lock(RunFolder(tmp_path / "held")) as folder:
        assert json.loads(folder.lock_file.read_text())["pid"] == os.getpid()


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "runs").write_text("")
    with (
        pytest.raises(BadInput) as caught,
        folder_lock(RunFolder(tmp_path / "runs" / "a")),
    ):
        pass
    assert caught.value.values == f"{tmp_path / 'runs'} is a file"
    assert caught.value.remedy[0].startswith("run.dir=")


def test_a_folder_that_refuses_even_the_administrator():
    with (
        pytest.raises(BadInput, match="cannot be written"),
        folder_lock(RunFolder(Path("/proc/runs/a"))),
    ):
        pass


def test_a_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BadInput, match="mode 7"):
        check_writable(tmp_path / "runs" / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("store", ["s3", "gs", "https"])
def test_the_address_of_a_store_is_no_folder(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(f"{store}://bucket/runs", "a")
    with pytest.raises(BadInput, match="is no folder") as caught:
        check_writable(path)
    assert f"begins with {store}://" in caught.value.values
    Path(f"{store}:").mkdir()  # odd, and a folder
    check_writable(path)


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "plan.json"
    write_atomic(path, "old")
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
