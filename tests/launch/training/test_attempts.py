"""Attempts of a run: it goes on as it was started, and a change is asked for and kept."""

import json
import re
import shlex
import shutil
import signal
import time
from hashlib import sha256
from pathlib import Path

import pytest

from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.core.run_record import Run
from jaxdist.launch.config.plan_file import load_plan_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import (
    ConfigLock,
    lock_to_json,
    read_config_lock,
)
from jaxdist.launch.run_folder.next_commands import resume_command

pytestmark = pytest.mark.timeout(300)
STORED = (
    *("model.width=4", "optim.lr=0.05", "epochs=0.3", "plan.mesh.data=2"),
    *("plan.mesh.spatial_h=1", "run.name=r"),
)
"""What a run is started with: it differs from the experiment in all of it."""


def files(folder):
    """Content and time of every file."""
    return {
        path: (path.stat().st_mtime_ns, sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file()
    }


def values(folder):
    """The configuration of a run, without the place of its files."""
    config = read_config_lock(RunFolder(folder)).resolved.config
    return config.epochs, config.optim.lr, config.plan.mesh.data, config.model.width


@pytest.fixture
def place(job, tmp_path):
    return f"run.dir={tmp_path}", f"data.dir={job.data}"


@pytest.fixture(scope="module")
def original(job, tmp_path_factory):
    """A run that has ended, of which each test has a copy."""
    runs = tmp_path_factory.mktemp("original")
    where = f"run.dir={runs}", f"data.dir={job.data}"
    code, _, err = job.call("train", "digits", *STORED, *where)
    assert code == 0, err
    return runs / "r"


@pytest.fixture
def finished(original, tmp_path):
    copy = tmp_path / "r"
    shutil.copytree(original, copy)
    for name in ("config.lock.json", "report.html"):
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace(str(original.parent), str(tmp_path)))
    return copy


@pytest.fixture
def stopped(finished):
    """As it is after a kill: with checkpoints and without a summary."""
    (finished / "summary.json").unlink()
    return finished


def test_a_run_that_is_resumed_is_the_run_that_was_started(job, place, stopped):
    """It silently became another one: 30 epochs, another rate and another layout."""
    before = values(stopped)
    for words in (
        ("resume", stopped),
        ("train", "digits", "run.name=r", place[0]),
        ("train", "digits", *STORED, *place),
    ):
        code, out, err = job.call(*words)
        assert code == 0, err
        assert "resumed at step 7 (newest verified)" in " ".join(out.split())
        assert values(stopped) == before == (0.3, 0.05, 2, 4)
        (stopped / "summary.json").unlink()


def test_a_change_of_the_result_is_asked_for(job, place, stopped):
    before = files(stopped)
    words = "train", "digits", "run.name=r", *place, "epochs=0.4", "optim.lr=0.1"
    code, out, err = job.call(*words)
    assert (code, out) == (2, "")
    assert "run r was started with another epochs" in err
    assert "--change" in err
    assert "values   epochs 0.3, now 0.4; optim.lr 0.05, now 0.1" in err
    # The remedies are lines to type.
    lines = err.split("remedy")[1].splitlines()
    for line, end in zip(
        lines, (" resumes it as it was", " changes it", " starts another")
    ):
        assert line.strip().startswith("jaxdist ")
        assert end in line
    assert files(stopped) == before

    code, out, err = job.call(*words, "--change")
    assert code == 0, err
    said = " ".join(err.split())
    assert "change: epochs 0.3, now 0.4 change: optim.lr 0.05, now 0.1" in said
    # Kept in the lock, by attempt, with what was typed.
    first, second = read_config_lock(RunFolder(stopped)).attempts
    assert (first.step, first.changes) == (0, {})
    assert list(first.command) == ["jaxdist", "train", "digits", *STORED, *place]
    assert (second.step, list(second.command)[-1]) == (7, "--change")
    assert second.changes == {"epochs": [0.3, 0.4], "optim.lr": [0.05, 0.1]}
    # Shown by diff and by the report, with a mark on the curves.
    code, out, _ = job.call("diff", stopped)
    assert code == 0
    assert "was changed in 1 of 2 attempts" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["2", "7", "optim.lr", "0.05", "0.1"] in rows
    page = (stopped / "report.html").read_text()
    assert (
        "<title>from step 7: epochs 0.3, now 0.4; optim.lr 0.05, now 0.1</title>"
        in (page)
    )
    assert ">change 1</text>" in page
    assert "Changed since the run began: <b>epochs, optim.lr</b>" in page


def test_what_changes_no_number_is_said_and_not_asked_for(job, stopped):
    code, _, err = job.call("resume", stopped, "checkpoint.keep=2")
    assert code == 0, err
    assert "set checkpoint.keep 3, now 2" in " ".join(err.split())
    *_, second = read_config_lock(RunFolder(stopped)).attempts
    assert second.changes == {"checkpoint.keep": [3, 2]}


def test_what_the_state_rests_on_is_refused_whoever_asks(job, stopped):
    for words in ((), ("--change",)):
        code, out, err = job.call("resume", stopped, "model.width=8", *words)
        assert (code, out) == (2, "")
        assert "the run was started with another model.width" in err


def test_another_experiment_does_not_take_over_a_run(job, place, stopped):
    code, out, err = job.call("train", "characters", "run.name=r", *place)
    assert (code, out) == (2, "")
    assert "run r is of another experiment" in err
    assert "digits, now characters" in err


def test_an_experiment_that_was_edited_meanwhile_is_named(job, tmp_path):
    file = tmp_path / "mine.py"
    text = """
from dataclasses import replace
from jaxdist.launch.config import Experiment, load_experiment

def mine() -> Experiment:
    start = load_experiment("digits")
    return replace(start, name="mine", optim=replace(start.optim, lr=0.05))
"""
    file.write_text(text)
    where = f"run.dir={tmp_path}", f"data.dir={job.data}", "run.name=mine"
    words = "train", file, *where, *STORED[:1], "epochs=0.1", *STORED[3:5]
    code, _, err = job.call(*words)
    assert code == 0, err
    (tmp_path / "mine" / "summary.json").unlink()
    file.write_text(text.replace("lr=0.05", "lr=0.07"))
    code, _, err = job.call(*words)
    assert code == 0, err
    said = " ".join(err.split())
    assert "has other values by now: optim.lr 0.07, the run's 0.05" in said
    assert read_config_lock(RunFolder(tmp_path / "mine")).resolved.config.optim.lr == (
        0.05
    )


def test_a_finished_run_says_so_and_nothing_of_it_is_touched(job, place, finished):
    """A second `make train` set its samples/s to 0 and drew a restart of 3,065 s."""
    before = files(finished)
    for words in (
        ("train", "digits", *STORED, *place),
        ("train", "digits", "run.name=r", place[0]),
        ("resume", finished),
    ):
        code, out, err = job.call(*words)
        assert (code, err) == (0, "")
        assert out.startswith("finished  run r at step 7: test accuracy ")
        assert "--change" in out
        assert files(finished) == before
    code, out, err = job.call("resume", finished, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((finished / "summary.json").read_text())


def test_a_finished_run_can_be_made_longer(job, finished):
    code, out, err = job.call("resume", finished, "epochs=0.4", "--change", "--json")
    assert code == 0, err
    assert (json.loads(out)["resumed_at"], json.loads(out)["steps"]) == (7, 9)


def test_a_run_without_a_step_to_make_keeps_its_figures(job, finished):
    before = json.loads((finished / "summary.json").read_text())
    tree = before | {"status": "stopped"}
    (finished / "summary.json").write_text(json.dumps(tree))
    code, out, err = job.call("resume", finished, "--json")
    assert code == 0, err
    after = json.loads(out)
    for key in ("samples_per_s", "step_s", "step_s_p5", "step_s_p95", "first_step_s"):
        assert after[key] == before[key] > 0


def test_an_old_run_folder_goes_on(job, stopped):
    """Lock files had neither what was typed nor attempts."""
    lock = stopped / "config.lock.json"
    tree = json.loads(lock.read_text())
    for key in ("command", "options", "attempts"):
        del tree[key]
    lock.write_text(json.dumps(tree))
    code, _, err = job.call("resume", stopped, "epochs=0.4", "--change")
    assert code == 0, err
    first, second = read_config_lock(RunFolder(stopped)).attempts
    assert (first.time, first.command, second.step) == (None, [], 7)


def test_the_folder_of_a_run_may_be_moved(job, stopped, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    stopped.rename(moved / "s")
    code, _, err = job.call("resume", "s", "--dir", moved)
    assert code == 0, err
    assert (moved / "s" / "summary.json").is_file()
    assert not stopped.exists()


def test_a_run_that_is_resumed_has_no_other_name(job, stopped):
    code, _, err = job.call("resume", stopped, "run.name=other")
    assert code == 2
    assert "run.name=other names another run" in err


def test_a_plan_and_a_profile_belong_to_the_run(job, place, tmp_path, finished):
    plan = tmp_path / "plan.json"
    plan.write_text((finished / "plan.json").read_text())
    words = "train", "digits", *STORED[:3], *place, "run.name=planned"
    more = "--plan", str(plan), "--profile", "steps=3:4"
    code, _, err = job.call(*words, *more)
    assert code == 0, err
    folder = RunFolder(tmp_path / "planned")
    lock = read_config_lock(folder)
    assert (lock.options.plan_file, lock.options.profile) == (str(plan), "steps=3:4")
    # The report has what was typed, which can be typed again.
    page = folder.report.read_text()
    shown = re.search(r"<dt>Command</dt><dd><code>(.*?)</code>", page)[1]
    assert shlex.split(shown) == ["jaxdist", *words, *more]
    code, out, err = job.call(*shlex.split(shown)[1:])
    assert (code, err) == (0, "")
    assert out.startswith("finished")
    folder.summary.unlink()
    code, out, err = job.call("resume", folder.path)
    assert code == 0, err
    assert read_config_lock(folder).options == lock.options
    assert read_config_lock(folder).resolved.config.plan == lock.resolved.config.plan


def test_the_command_of_an_old_planned_run_can_be_typed(job, place, tmp_path, finished):
    """It said plan.pipe.replicas=[], which was refused."""
    plan = tmp_path / "plan.json"
    plan.write_text((finished / "plan.json").read_text())
    words = *STORED[:3], *place, *load_plan_overrides(str(plan)), "run.name=r"
    lock = finished / "config.lock.json"
    resolved = resolve_config("digits", words)
    tree = json.loads(lock_to_json(ConfigLock(resolved=resolved, packages={})))
    del tree["command"]
    lock.write_text(json.dumps(tree))
    assert job.call("report", finished)[0] == 0
    page = (finished / "report.html").read_text()
    shown = re.search(r"<dt>Command</dt><dd><code>(.*?)</code>", page)[1]
    assert "plan.pipe.replicas= " in shown
    code, out, err = job.call(*shlex.split(shown)[1:])
    assert (code, err) == (0, "")
    assert out.startswith("finished")


def test_code_that_only_the_run_names_is_imported_where_that_is_asked(
    job, place, stopped
):
    lock = stopped / "config.lock.json"
    tree = json.loads(lock.read_text())
    tree["values"]["model.name"]["value"] = "my_networks:Net"
    lock.write_text(json.dumps(tree))
    for words in (("resume", stopped), ("train", "digits", "run.name=r", place[0])):
        code, out, err = job.call(*words)
        assert (code, out) == (2, "")
        assert "name code that is not known" in err
        assert "--trust" in err
    assert resume_command(RunFolder(stopped)) == f"jaxdist resume {stopped} --trust"


def wait_for_steps(job, child, folder, count):
    while len(job.lines(folder / "metrics.jsonl")) < count:
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)


def test_ctrl_c_saves_and_says_how_to_go_on(job, place, tmp_path):
    words = [word for word in STORED if "epochs" not in word]
    child = job.start("train", "digits", *words, *place, "epochs=400")
    folder = tmp_path / "r"
    # What it will do is said before jax is there; the first step comes much later.
    assert child.stderr.readline().startswith(f"train     {folder} (new): resnet8")
    assert not (folder / "spans.jsonl").exists()
    wait_for_steps(job, child, folder, 30)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate()
    assert child.returncode == 75, err
    assert "saving this step; Ctrl-C again ends at once" in err
    assert "Traceback" not in err
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert summary["checkpoint"] == summary["steps"] >= 30
    assert f"try      jaxdist resume {folder}\n" in out
    # An epoch has a line of its own.
    line = r"epoch   1/400  training loss \S+  test loss \S+  test accuracy \S+ %"
    assert re.search(line, err)


def test_ctrl_c_before_the_first_step_is_no_death(job, place, tmp_path):
    """The state of such a run was `dead`."""
    for number, code in ((signal.SIGTERM, 75), (signal.SIGINT, 130)):
        child = job.start("train", "digits", *STORED, *place)
        status = tmp_path / "r" / "status.json"
        while not status.exists() or '"going"' not in status.read_text():
            assert child.poll() is None, child.communicate()
            time.sleep(0.01)
        child.send_signal(number)
        _, err = child.communicate()
        assert child.returncode == code, err
        assert "before the first step: nothing to save" in err
        found = json.loads(job.call("launch", "status", tmp_path / "r", "--json")[1])
        assert (found["state"], found["step"]) == ("stopped", 0)


def test_a_second_ctrl_c_ends_at_once(job, tmp_path):
    text = """
import os, signal, time
from jaxdist.launch.distributed.preemption import PreemptionHandler
from jaxdist.launch.distributed.process_group import process_group

with PreemptionHandler(process_group()) as ends:
    ends.on_abort = lambda: print("aborted", flush=True)
    ends()
    os.kill(os.getpid(), signal.SIGINT)
    while not ends():
        time.sleep(0.01)
    print("saving", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(100)
"""
    child = job.python("-c", text)
    out, err = child.communicate()
    assert child.returncode == 130
    assert out == "saving\naborted\n"
    assert err.endswith("stopped at once: nothing was saved\n")


def test_the_best_checkpoint_stays_and_is_scored(job, place):
    """The loss falls, so that of the first evaluation is the highest."""
    words = ("run.name=best", "epochs=3", "data.batch=320", "plan.mesh.data=1")
    words += ("checkpoint.best=max:loss", "checkpoint.keep=1", "optim.lr=0.01")
    asked = (
        "train",
        "digits",
        "model.width=4",
        *words,
        "plan.mesh.spatial_h=1",
        *place,
    )
    code, out, err = job.call(*asked)
    assert code == 0, err
    folder = RunFolder(Path(place[0].removeprefix("run.dir=")) / "best")
    run = Run.from_json(folder.summary.read_text())
    scored = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in scored if row["kind"] != "train"}
    first = max(losses, key=losses.get)
    assert run.best == BestCheckpoint(step=first, metric="loss", value=losses[first])
    assert first != run.checkpoint == run.steps
    assert {int(p.name) for p in folder.checkpoints.iterdir() if p.is_dir()} == {
        first,
        run.steps,
    }
    assert f"best at step {first}" in " ".join(out.split())
    code, out, _ = job.call("eval", folder.path, "--checkpoint", "best", "--json")
    assert code == 0
    assert json.loads(out)["checkpoint"] == first
    code, out, _ = job.call("ckpt", "ls", folder.path)
    (line,) = (line for line in out.splitlines() if "best loss" in line)
    assert line.split()[0] == str(first)


def test_a_metric_that_no_evaluation_has_is_refused(job, place, tmp_path):
    words = ("checkpoint.best=acuracy", "run.name=refused", *place)
    code, _, err = job.call("train", "digits", *words)
    assert code == 2
    assert "did you mean accuracy?" in err
    assert not (tmp_path / "refused").exists()
