"""Trackers: what a run logs arrives in each, once, also after a kill."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.run_record import Run
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.tracking import registry
from jaxdist.launch.tracking.registry import make_trackers
from jaxdist.launch.tracking.run_tracking import RunTracking
from jaxdist.launch.tracking.tensorboard import read_scalars
from jaxdist.launch.tracking.tracker import TrackedRun
from jaxdist.launch.tracking.weights_and_biases import (
    choose_mode,
    offline_files,
    read_records,
    read_steps,
)

CONFIG = {"optim.lr": 0.2, "epochs": 2, "plan.replicated_axes": ("tensor",)}


def train_row(step):
    return {
        **{"kind": "train", "step": step, "epoch": 1, "loss": 1 / step},
        **{"learning_rate": 0.1, "step_s": 0.01, "time": 1e9 + step},
    }


def test_row(step):
    return {
        **{"kind": "test", "step": step, "epoch": 1, "loss": 0.5, "accuracy": 0.9},
        "time": 1e9,
    }


test_row.__test__ = False


class Attempt:
    """An attempt of a run: its rows go to a file and to its trackers, as in training."""

    def __init__(self, folder, trackers, *, start=0):
        self.folder, self.tracking = RunFolder(folder), RunTracking(trackers)
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        if self.folder.metrics.exists():
            rows = map(json.loads, self.folder.metrics.read_text().splitlines())
        kept = [row for row in rows if row["step"] <= start]
        self.folder.metrics.write_text("".join(json.dumps(r) + "\n" for r in kept))
        self.folder.report.write_text("<h1>report</h1>")
        self.folder.plan.write_text("{}")
        self.run = TrackedRun(
            name=folder.name,
            experiment="digits",
            folder=folder,
            config=CONFIG,
            plan='{"mesh": {"data": 2}}',
            steps=6,
            start_step=start,
        )

    def log(self, *rows):
        self.tracking.start(self.run)
        for row in rows:
            with self.folder.metrics.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self.tracking.log_row(row)

    def end(self):
        record = Run(name="r", experiment="digits", accuracy=0.9, loss=0.5, steps=6)
        self.tracking.end(record, self.folder)

    def log_and_end(self, steps):
        self.log(*map(train_row, range(1, steps + 1)))
        self.end()

    def die(self):
        """End without a word, as a kill does: queues are lost, not what was written."""
        for thread in self.tracking._threads:
            while thread.queue.qsize():
                thread.join(0.01)
        self.tracking._threads = []


def first_attempt(folder, make):
    """Log four steps, and die."""
    first = Attempt(folder, make())
    first.log(train_row(1), train_row(2), test_row(2), train_row(3), train_row(4))
    first.die()


def second_attempt(folder, make):
    """Go on from step 2."""
    second = Attempt(folder, make(), start=2)
    second.log(*map(train_row, (3, 4, 5, 6)), test_row(6))
    second.end()


def two_attempts(folder, make):
    first_attempt(folder, make)
    second_attempt(folder, make)
    return folder


def test_csv_has_each_row_once(tmp_path):
    folder = two_attempts(tmp_path / "r", lambda: make_trackers(["csv"]))
    assert b"\r" not in (folder / "metrics.csv").read_bytes()
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    trained = [int(row["step"]) for row in rows if row["train/loss"]]
    tested = [int(row["step"]) for row in rows if row["test/accuracy"]]
    assert (trained, tested) == ([1, 2, 3, 4, 5, 6], [2, 6])
    assert float(rows[1]["train/loss"]) == 0.5


def test_a_row_that_a_kill_has_torn_is_logged_again(tmp_path):
    first = Attempt(tmp_path / "r", make_trackers(["csv"]))
    first.log(train_row(1), train_row(2))
    first.end()
    table = tmp_path / "r" / "metrics.csv"
    table.write_text(table.read_text()[:-5])
    second = Attempt(tmp_path / "r", make_trackers(["csv"]), start=2)
    second.log(train_row(3))
    second.end()
    with table.open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3"]


def test_tensorboard_has_each_step_once_and_text(tmp_path):
    folder = two_attempts(tmp_path / "r", lambda: make_trackers(["tensorboard"]))
    rows = read_scalars(folder / "tensorboard")
    losses = {step: value for step, row in rows for value in row.values()}
    named = [(step, name) for step, row in rows for name in row]
    assert [s for s, name in named if name == "train/loss"] == [1, 2, 3, 4, 5, 6]
    assert [s for s, name in named if name == "test/accuracy"] == [2, 6]
    assert losses[6] == pytest.approx(0.9)
    text = b"".join(p.read_bytes() for p in (folder / "tensorboard").iterdir())
    for part in (b"|optim.lr|0.2|", b'{"mesh": {"data": 2}}', b"report.html"):
        assert part in text


def test_mlflow_goes_on_with_its_run(tmp_path):
    import mlflow

    folder = two_attempts(tmp_path / "r", lambda: make_trackers(["mlflow"]))
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    home = client.get_experiment_by_name("digits").experiment_id
    (run,) = client.search_runs([home])
    assert run.info.run_id == (folder / "tracking" / "mlflow").read_text().strip()
    assert (run.info.run_name, run.info.status) == ("r", "FINISHED")
    assert run.data.params == {
        **{"optim.lr": "0.2", "epochs": "2", "plan.replicated_axes": "tensor"},
    }
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(n, 1 / n) for n in range(1, 7)]
    history = client.get_metric_history(run.info.run_id, "test/accuracy")
    assert [m.step for m in history] == [2, 6]
    assert run.data.metrics["summary/accuracy"] == 0.9
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"plan.json", "report.html"}


def test_mlflow_keeps_a_parameter_that_was_changed_beside_the_first(tmp_path):
    import mlflow

    Attempt(tmp_path / "r", {}).folder.metrics.touch()
    for lr in (0.2, 0.1):
        attempt = Attempt(tmp_path / "r", make_trackers(["mlflow"]))
        attempt.run.config["optim.lr"] = lr
        attempt.log()
        attempt.end()
    CONFIG["optim.lr"] = 0.2
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.data.params["optim.lr"] == "0.2"
    assert run.data.tags["changed.optim.lr"] == "0.1"


WANDB_ATTEMPT = """
import os, signal, sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
import test_trackers as tests
getattr(tests, sys.argv[3])(Path(sys.argv[2]), lambda: tests.make_trackers(["wandb"]))
if sys.argv[3] == "first_attempt":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_wandb_offline_goes_on_under_its_id(tmp_path):
    """The first process is killed: the library writes in a service of its own."""
    env = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path)}
    for name, code in (("first_attempt", -signal.SIGKILL), ("second_attempt", 0)):
        words = ["-c", WANDB_ATTEMPT, Path(__file__).parent, tmp_path / "r", name]
        done = subprocess.run(
            [sys.executable, *words],
            check=False,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
    name = (tmp_path / "r" / "tracking" / "wandb").read_text().strip()
    files = offline_files(tmp_path / "r", name)
    steps, config, saved, runs = [], {}, set(), set()
    for path in files:
        steps += [
            (n, row["train/loss"]) for n, row in read_steps(path) if "train/loss" in row
        ]
    for record in (record for path in files for record in read_records(path)):
        if record.HasField("run"):
            runs.add((record.run.run_id, record.run.project, record.run.display_name))
            config |= {
                i.key: json.loads(i.value_json) for i in record.run.config.update
            }
        saved |= {file.path for file in record.files.files}
    (run,) = runs
    assert run == (name, "digits", "r")
    assert steps == [(n, 1 / n) for n in range(1, 7)]
    assert config["optim.lr"] == 0.2
    assert {"report.html", "plan.json"} <= saved


def test_wandb_does_not_wait_for_a_server_that_is_not_there(unused_port):
    url = f"http://127.0.0.1:{unused_port}"
    assert choose_mode({"WANDB_BASE_URL": url}) == "offline"
    assert choose_mode({"WANDB_BASE_URL": url, "WANDB_MODE": "online"}) == "online"


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as own:  # bound and not listening: connections are refused
        own.bind(("127.0.0.1", 0))
        yield own.getsockname()[1]


class Full:
    """A tracker whose disk is full from the second step on."""

    def start(self, run):
        self.told = []

    def log(self, step, values):
        if step == 2:
            raise OSError(28, "No space left on device")
        self.told.append((step, values))

    def end(self, summary):
        raise AssertionError("a tracker that failed is not called again")


class Memory:
    def __init__(self):
        self.told, self.ended = [], None

    def start(self, run):
        return None

    def log(self, step, values):
        self.told.append((step, values))

    def end(self, summary):
        self.ended = summary


def test_a_tracker_that_fails_is_left_out_and_named_once(tmp_path):
    full, memory = Full(), Memory()
    attempt = Attempt(tmp_path / "r", {"full": full, "memory": memory})
    with pytest.warns(JaxdistWarning, match="tracker full failed.*No space") as said:
        attempt.log_and_end(6)
    assert len(said) == 1
    assert [step for step, _ in memory.told] == [1, 2, 3, 4, 5, 6]
    assert memory.told[0][1]["train/loss"] == 1.0
    assert memory.ended.status == "done"
    assert memory.ended.values["accuracy"] == 0.9


def test_a_tracker_that_hangs_holds_nothing_up(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxdist.launch.tracking.run_tracking.END_S", 0.2)
    free = threading.Event()

    class Hung(Memory):
        def log(self, step, values):
            free.wait()

    attempt = Attempt(tmp_path / "r", {"hung": Hung(), "memory": (memory := Memory())})
    with pytest.warns(JaxdistWarning, match="tracker hung failed.*did not end"):
        attempt.log_and_end(6)
    assert memory.ended.status == "done"
    free.set()


def test_a_run_that_fails_ends_its_trackers(tmp_path):
    memory = Memory()
    attempt = Attempt(tmp_path / "r", {"memory": memory})
    attempt.log(train_row(1))
    with pytest.raises(KeyError), attempt.tracking:
        raise KeyError
    assert (len(memory.told), memory.ended.status) == (1, "failed")


def test_a_tracker_that_is_added_later_has_the_steps_before(tmp_path):
    first = Attempt(tmp_path / "r", {})
    first.log(train_row(1), test_row(1), train_row(2))
    first.end()
    second = Attempt(tmp_path / "r", make_trackers(["csv"]), start=2)
    second.log(train_row(3))
    second.end()
    with (tmp_path / "r" / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "1", "2", "3"]


def test_an_unknown_tracker_is_refused():
    with pytest.raises(BadInput, match="did you mean track=tensorboard") as error:
        resolve_config("digits", ["track=tensorbord,csv"])
    assert "no tracker named tensorbord" in str(error.value)
    with pytest.raises(BadInput, match="no tracker named x"):
        Experiment(name="mine", track=("x",))


def test_a_package_that_is_missing_is_named_before_anything_is_written(
    job, tmp_path, monkeypatch
):
    found = registry.find_spec
    monkeypatch.setattr(
        registry, "find_spec", lambda name: None if name == "wandb" else found(name)
    )
    code, out, err = job.call(
        *("train", "digits", "track=csv,wandb", "epochs=0.1"),
        *(f"run.dir={tmp_path / 'runs'}", f"data.dir={job.data}"),
    )
    assert (code, out) == (2, "")
    assert "pip install 'jaxdist[track]'" in err
    assert not (tmp_path / "runs").exists()


class Remote:
    """A tracker that takes nothing back, and knows which step it has."""

    def __init__(self):
        self.steps = []

    def start(self, run):
        return max(self.steps, default=None)

    def log(self, step, values):
        self.steps.append(step)

    def end(self, summary):
        pass


def test_a_step_that_is_made_again_is_passed_on_once(tmp_path):
    remote = Remote()
    first_attempt(tmp_path / "r", lambda: {"remote": remote})
    assert remote.steps == [1, 2, 2, 3, 4]  # with the evaluation of step 2
    second_attempt(tmp_path / "r", lambda: {"remote": remote})
    assert remote.steps == [1, 2, 2, 3, 4, 5, 6, 6]
