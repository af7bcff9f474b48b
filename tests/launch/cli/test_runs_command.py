"""`jaxdist runs` and `jaxdist status`: what a folder of runs tells, without jax."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxdist.launch.cli.main import main
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import write_config_lock
from jaxdist.launch.run_folder.status import read_status_record

ROOT = Path(__file__).parents[3]
STATUS = {
    **{"state": "done", "attempt": 1, "steps": 23, "count": 1, "pid": 1},
    **{"host": "vm", "began": 0.0, "processes": {}},
}
TRAIN = {"kind": "train", "step": 23, "loss": 1.5}
TEST = {"kind": "test", "step": 23, "accuracy": 0.25, "loss": 2.0, "time": 3.0}


@pytest.fixture
def folder(tmp_path):
    """A run that has ended, one that compiles still, and a folder that is no run."""
    ended = RunFolder(tmp_path / "ended")
    for name in ("ended", "new", "other"):
        (tmp_path / name).mkdir()
    write_config_lock(ended, resolve_config("digits"))
    ended.status.write_text(json.dumps(STATUS))
    rows = (TRAIN, TEST | {"accuracy": 0.1}, TEST)
    ended.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    going = STATUS | {"state": "going", "host": "elsewhere"}
    RunFolder(tmp_path / "new").status.write_text(json.dumps(going))
    return tmp_path


def test_a_status_of_an_older_version_is_read(folder):
    old = {k: v for k, v in STATUS.items() if k != "attempt"} | {"sitting": 3}
    (folder / "ended" / "status.json").write_text(json.dumps(old))
    record = read_status_record(folder / "ended" / "status.json")
    assert record is not None
    assert record.attempt == 3


def test_runs_are_listed_with_what_came_of_them(folder, capsys):
    assert main(["runs", "--dir", str(folder)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ended", "digits", "done", "23", "of", "23", "25.00", "%", "2.000"] in lines
    assert ["new", "going", "0", "of", "23"] in lines
    assert main(["runs", "--dir", str(folder), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["runs"]
    assert first == {
        **{"name": "ended", "folder": str(folder / "ended"), "experiment": "digits"},
        **{"state": "done", "step": 23, "steps": 23},
        **{"test": {"accuracy": 0.25, "loss": 2.0}},
    }
    assert (second["experiment"], second["test"]) == ("", {})


def test_no_runs(tmp_path, capsys):
    assert main(["runs", "--dir", str(tmp_path)]) == 0
    assert "start one with: jaxdist train digits" in capsys.readouterr().out
    assert main(["runs", "--dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": []}


def test_status_is_what_launch_status_says(folder, capsys):
    for words in (["ended"], ["ended", "--json"], ["new"]):
        assert main(["status", *words, "--dir", str(folder)]) == 0
        said = capsys.readouterr().out
        assert main(["launch", "status", *words, "--dir", str(folder)]) == 0
        again = capsys.readouterr().out
        # But for the age of a file.
        assert _without_ages(again) == _without_ages(said)
    assert main(["status", "endd", "--dir", str(folder)]) == 2
    assert "did you mean ended?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "said"), [("done", "ended"), ("going", "between phases")]
)
def test_a_process_without_a_phase_has_ended_or_stands_between_two(
    tmp_path, capsys, state, said
):
    (tmp_path / "r").mkdir()
    at = {"host": "elsewhere", "step": 23, "phase": ""}
    status = STATUS | {"state": state, "host": "elsewhere", "processes": {"0": at}}
    RunFolder(tmp_path / "r").status.write_text(json.dumps(status))
    assert main(["status", "r", "--dir", str(tmp_path)]) == 0
    *_, row = capsys.readouterr().out.rstrip().splitlines()
    assert row.split(maxsplit=3) == ["0", "elsewhere", "23", said]


def _without_ages(text):
    ages = r"last line .*|\"line_s\": .*"
    return re.sub(ages, "", text)


def test_a_list_needs_no_jax(folder):
    code = (
        "import sys; from jaxdist.launch.cli.main import main; "
        f"main(['runs', '--dir', {str(folder)!r}, '--json']); "
        "sys.exit(str({'jax', 'flax', 'orbax'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.stderr == "set()\n"
