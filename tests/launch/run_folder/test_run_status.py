"""`jaxdist status`: runs that go, that have ended, and that have died."""

import json
import os
import time

from jaxdist.launch.cli.main import main
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.status import read_run_status, read_status_record
from jaxdist.launch.training.monitor.watchdog import ProcessHeartbeat, StatusWriter


def said(step, phase, host):
    return ProcessHeartbeat(
        number=1, step=step, phase=phase, beat=1, line="x", host=host
    )


PLACES = {0: said(8, "compute", "h0"), 1: said(7, "input", "h1")}


def bulletin(folder, rank=0):
    folder.mkdir(exist_ok=True)
    mine = ProcessGroup(rank=rank, size=2)
    return StatusWriter(folder / "status.json", 90, mine, lambda: PLACES)


def trained(folder, step):
    row = {"kind": "train", "step": step, "loss": 0.25}
    (folder / "metrics.jsonl").write_text(f'{json.dumps(row)}\n{{"kind": "tra')


def shown(capfd, *words):
    assert main(["status", *map(str, words)]) == 0
    return capfd.readouterr().out


def test_a_run_that_goes_says_where_each_process_is(tmp_path, capfd):
    with bulletin(tmp_path / "a"):
        trained(tmp_path / "a", 6)
        found = json.loads(shown(capfd, tmp_path / "a", "--json"))
        assert (found["state"], found["step"], found["steps"]) == ("going", 6, 90)
        assert found["processes"]["1"] == {"host": "h1", "step": 7, "phase": "input"}
        assert (found["hosts"], found["restarts"]) == (["h0", "h1"], 0)
        text = shown(capfd, "a", "--dir", tmp_path)
        assert "step 6 of 90 (7 %), loss 0.250" in text
        assert "input" in text.split("h1")[1].splitlines()[0]


def test_a_run_says_how_it_ended_and_counts_its_starts(tmp_path):
    folder = RunFolder(tmp_path / "a")
    with bulletin(folder.path) as news:
        news.finish("done")
    assert read_run_status(folder).state == "done"
    with bulletin(folder.path):
        pass
    assert (read_run_status(folder).state, read_run_status(folder).restarts) == (
        "stopped",
        1,
    )


def test_a_refusal_is_a_failure(tmp_path):
    try:
        with bulletin(tmp_path / "a"):
            raise ValueError
    except ValueError:
        assert read_status_record(tmp_path / "a" / "status.json").state == "failed"


def test_only_process_0_writes(tmp_path):
    with bulletin(tmp_path / "a", rank=1):
        pass
    assert read_status_record(tmp_path / "a" / "status.json") is None


def changed(folder, **news):
    path = folder / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | news))
    return path


def test_without_news_a_run_is_silent_or_dead(tmp_path):
    folder = RunFolder(tmp_path / "a")
    with bulletin(folder.path):
        pass
    path = changed(folder.path, state="going")
    assert read_run_status(folder).state == "going"
    os.utime(path, (time.time() - 60,) * 2)
    assert read_run_status(folder).state == "silent"
    # A process of that number which is younger than the run is another one.
    changed(folder.path, began=1.0)
    assert read_run_status(folder).state == "dead"
    # Of another machine nobody here knows whether its process lives.
    changed(folder.path, host="elsewhere")
    assert read_run_status(folder).state == "going"


def test_a_run_that_wrote_no_news_is_told_by_its_summary(tmp_path):
    folder = RunFolder(tmp_path / "a")
    folder.path.mkdir()
    folder.config_lock.write_text("{}")
    assert read_run_status(folder).state == "unknown"
    folder.summary.write_text('{"status": "done", "steps": 7}')
    assert (read_run_status(folder).state, read_run_status(folder).step) == ("done", 7)


def test_runs_under_way_come_first(tmp_path, capfd):
    with bulletin(tmp_path / "old"):
        pass
    with bulletin(tmp_path / "young"):
        text = shown(capfd, "--dir", tmp_path)
    assert text.index("young") < text.index("old")
    tree = json.loads(shown(capfd, "--dir", tmp_path, "--json"))
    assert [run["name"] for run in tree["runs"]] == ["old", "young"]


def test_without_runs_there_is_something_to_start(tmp_path, capfd):
    assert "jaxdist train digits" in shown(capfd, "--dir", tmp_path)


def test_a_run_that_is_not_there_is_named(tmp_path, capfd):
    assert main(["status", "no", "--dir", str(tmp_path)]) == 2
    assert "no run no" in capfd.readouterr().err
