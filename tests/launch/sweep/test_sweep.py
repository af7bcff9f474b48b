"""A sweep: trials are runs, none is lost or made twice, and the worse are ended."""

import json
import re
import signal
import time
from collections import Counter

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import read_config_lock
from jaxdist.launch.sweep.html_page import render_page, write_page
from jaxdist.launch.sweep.space import parse_space
from jaxdist.launch.sweep.study import (
    SweepSettings,
    check_sweep,
    claim_sweep,
    draw_values,
    next_trial,
    open_study,
    read_trials,
    repair_journal,
    report_evaluations,
    running_trials,
)

WORDS = ("optim.lr=1e-3..1e-1:log", "epochs=1,2", "model.width=8")
SETTINGS = SweepSettings(experiment="digits", words=WORDS, trials=6)
TINY = """
from dataclasses import replace

import numpy as np
from flax import nnx

import jaxdist


class Tiny(nnx.Module):
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


def points():
    x = np.random.default_rng(0).normal(size=(320, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    return {"image": x[:256], "label": y[:256]}, {"image": x[256:], "label": y[256:]}


def tiny() -> jaxdist.Experiment:
    return jaxdist.Experiment(
        name="tiny",
        epochs=1,
        data=jaxdist.DataConfig(name=jaxdist.object_reference(points), batch=32, shift=0),
        model=jaxdist.ModelConfig(name=jaxdist.object_reference(Tiny)),
        optim=jaxdist.OptimConfig(lr=0.1),
    )
"""


@pytest.fixture
def space():
    return parse_space("digits", WORDS)


def values(trial, space):
    return draw_values(trial, space)


def test_trials_are_drawn_alike_however_often_the_sweep_is_started(tmp_path, space):
    """One source for the sweep would draw the first trials again after each start."""
    drawn = {}
    for name, restarts in (("whole", False), ("killed", True)):
        (tmp_path / name).mkdir()
        study = open_study(tmp_path / name, SETTINGS)
        found = []
        while (trial := next_trial(study, SETTINGS, space)) is not None:
            found.append(values(trial, space))
            study.tell(trial, found[-1]["optim.lr"])
            if restarts:
                study = open_study(tmp_path / name, SETTINGS)
        drawn[name] = found
    assert drawn["whole"] == drawn["killed"]
    assert len({each["optim.lr"] for each in drawn["whole"]}) == SETTINGS.trials == 6
    lrs = [each["optim.lr"] for each in drawn["whole"]]
    assert all(1e-3 <= lr <= 1e-1 for lr in lrs)


def test_a_kill_leaves_no_part_of_a_line_and_no_lock(tmp_path, space):
    study = open_study(tmp_path, SETTINGS)
    trial = next_trial(study, SETTINGS, space)
    before = values(trial, space)
    journal = tmp_path / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":6,"trial_')
    (tmp_path / "journal.log.lock").symlink_to("journal.log")
    repair_journal(journal)
    assert journal.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["journal.log"]
    # A kill between the values of a trial: the rest is drawn, the others stay.
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    (again,) = running_trials(open_study(tmp_path, SETTINGS), space)
    assert again.number == trial.number
    assert values(again, space)["optim.lr"] == before["optim.lr"]
    assert set(values(again, space)) == {"optim.lr", "epochs"}


def test_a_trial_below_the_median_at_the_same_evaluation_is_pruned(tmp_path, space):
    study = open_study(tmp_path, SETTINGS)
    for loss in (0.1, 0.2, 0.3, 0.4, 0.5):
        trial = next_trial(study, SETTINGS, space)
        report_evaluations(trial, {1: loss, 2: loss / 2})
        assert not trial.should_prune()  # no trial before it came to its end
        study.tell(trial, loss / 2)
    trial = next_trial(study, SETTINGS, space)
    report_evaluations(trial, {1: 0.25})
    assert not trial.should_prune()
    # The first is reported again, as after a kill, and the second one added.
    report_evaluations(trial, {1: 0.25, 2: 0.24})
    assert trial.should_prune()
    other = open_study(tmp_path, SweepSettings(experiment="d", words=(), pruner="none"))
    (again,) = running_trials(other, space)
    assert not again.should_prune()


def make_study(folder, space, settings=SETTINGS):
    from optuna.trial import TrialState

    study = open_study(folder, settings)
    for loss in (0.3, 0.1, 0.2):
        trial = next_trial(study, settings, space)
        report_evaluations(trial, {1: loss})
        study.tell(trial, loss)
    trial = next_trial(study, settings, space)
    report_evaluations(trial, {1: 90.0})
    study.tell(trial, state=TrialState.PRUNED)
    trial = next_trial(study, settings, space)
    trial.set_user_attr("reason", "its process ended with 1: <b>")
    study.tell(trial, state=TrialState.FAIL)
    next_trial(study, settings, space)
    return read_trials(study)


def test_trials_are_ranked_and_drawn(tmp_path, space):
    trials = make_study(tmp_path, space)
    assert [each.name for each in trials[:3]] == ["trial-001", "trial-002", "trial-000"]
    states = [each.state for each in trials]
    assert states == ["done", "done", "done", "pruned", "running", "failed"]
    page = write_page(tmp_path, SETTINGS, space, trials).read_text()
    assert "trial-001 is best: test_loss 0.1 with optim.lr" in page
    assert page.count("<polyline") == 4 + 1  # trials, and the best so far
    assert "test_loss by optim.lr" in page
    assert "optim.lr, logarithmic" in page
    assert 'href="trial-001/report.html"' in page
    assert "its process ended with 1: &lt;b&gt;" in page
    # It loads nothing, and what diverged presses the others onto no line.
    assert not re.search(r"https?://|src=", page)
    lines = re.findall(r'points="([^"]*)"', page)[:4]
    ends = sorted(float(line.split(",")[-1]) for line in lines)
    assert ends[0] == 0.0  # the pruned one, at the end of the axis
    assert ends[-1] - ends[1] > 30
    assert page.count("1 trial above 0.55 at the end of the axis.") == 2


def test_a_page_of_a_sweep_without_an_outcome(space):
    assert "No trial has come to its end" in render_page("s", SETTINGS, space, ())


def test_a_sweep_goes_on_as_it_was_started(tmp_path):
    folder = tmp_path / "s"
    with claim_sweep(folder, SETTINGS):
        check_sweep(folder, SETTINGS)
        with (
            pytest.raises(BadInput, match="at work") as error,
            claim_sweep(folder, SETTINGS),
        ):
            pass
        assert "--name s-2" in str(error.value)
    more = SweepSettings(experiment="digits", words=WORDS, trials=9)
    assert len(check_sweep(folder, more).parameters) == 2
    for changed in (
        SweepSettings(experiment="digits", words=WORDS[:1], trials=6),
        SweepSettings(experiment="digits", words=WORDS, trials=5),
        SweepSettings(experiment="digits", words=WORDS, trials=6, seed=1),
    ):
        with pytest.raises(BadInput, match="has another sweep"):
            check_sweep(folder, changed)


def test_what_a_kill_has_left_of_an_event_is_taken_away(tmp_path):
    (tmp_path / "journal.log").write_bytes(b'{"op": 1}\n{"op"')
    (tmp_path / "journal.log.lock").symlink_to("journal.log")
    with claim_sweep(tmp_path, SETTINGS):
        assert (tmp_path / "journal.log").read_bytes() == b'{"op": 1}\n'
        assert not (tmp_path / "journal.log.lock").is_symlink()


def test_nothing_is_written_where_a_word_is_wrong(job, tmp_path):
    for words, said in (
        (("optim.lr=2..1",), "is empty"),
        (("optim.lr=1..2", "--workers", "0"), "needs a worker"),
        (("optim.lr=1..2", "--trials", "0"), "needs a trial"),
        (("optim.lr=1..2", "--metric", "acuracy"), "did you mean accuracy"),
    ):
        code, out, err = job.call("sweep", "digits", *words, "--dir", tmp_path / "runs")
        assert (code, out) == (2, ""), err
        assert said in err
    code, _, err = job.call("sweep", "nothing", "--show", "--dir", tmp_path / "runs")
    assert code == 2
    assert "no sweep in" in err
    assert not (tmp_path / "runs").exists()


def wait_for(condition, child):
    while not condition():
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)


@pytest.mark.timeout(300)
def test_a_sweep_that_is_killed_loses_no_trial_and_makes_none_twice(job, tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    command = (
        *("sweep", tmp_path / "tiny.py", "optim.lr=1e-2..1:log", "--trials", 4),
        *("checkpoint.every_steps=1", "--name", "s", "--dir", tmp_path / "runs"),
        *("--pruner", "none", "--json"),
    )
    folder = tmp_path / "runs" / "s"
    child = job.start(*command)
    # In the middle of the second trial: its process goes with the sweep.
    wait_for((folder / "trial-001" / "metrics.jsonl").exists, child)
    running = job.call("sweep", "s", "--show", "--dir", tmp_path / "runs")
    job.stop(child)
    shown = job.call("sweep", "s", "--show", "--dir", tmp_path / "runs")
    assert [("resume it with" in out, code) for code, out, _ in (running, shown)] == [
        (False, 0),
        (True, 0),
    ]
    assert "running" not in shown[1]
    # The trial that was under way has not ended.
    assert f"stopped after {shown[1].count(' done ')} of 4 trials" in shown[1]
    # What it names is the command that was typed.
    words = f"{tmp_path}/tiny.py optim.lr=1e-2..1:log checkpoint.every_steps=1"
    assert f"{words} --trials 4 --pruner none --name s --dir" in shown[1]
    with claim_sweep(
        folder, SweepSettings.from_json((folder / "sweep.json").read_text())
    ):
        (folder / "journal.log.lock").symlink_to("journal.log")

    code, out, err = job.run(*command)
    assert code == 0, err
    found = json.loads(out)["found"]
    assert [each["state"] for each in found] == ["done"] * 4
    assert sorted(each["number"] for each in found) == [0, 1, 2, 3]
    assert len({each["params"]["optim.lr"] for each in found}) == 4
    ranked = [each["value"] for each in found]
    assert ranked == sorted(ranked)
    assert "trial-000" not in err  # the first had ended before
    for each in found:
        run = RunFolder(folder / f"trial-{each['number']:03d}")
        rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
        steps = Counter(row["step"] for row in rows if row["kind"] == "train")
        assert steps == Counter(range(1, 9))
        lock = read_config_lock(run)
        assert lock.resolved.config.optim.lr == each["params"]["optim.lr"]
        assert len(lock.attempts) == 1 or each["number"] == 1
    # Once more: all is there, and nothing is started.
    before = (folder / "journal.log").read_bytes()
    code, out, err = job.call(*command[:-1])
    assert (code, err) == (0, "")
    assert "is best: test_loss" in out
    assert (folder / "journal.log").read_bytes() == before
    code, shown, _ = job.call("sweep", "s", "--show", "--dir", tmp_path / "runs")
    assert shown == out
    assert child.returncode == -signal.SIGKILL
