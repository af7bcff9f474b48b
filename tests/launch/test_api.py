"""Experiments run and planned from Python, with values of one's own."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxdist
from jaxdist.core.errors import BadInput
from jaxdist.train.sharded_norms import clip_by_global_norm

EXAMPLE = Path(__file__).parents[2] / "examples" / "own.py"


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(4, 16, rngs=rngs)
        self.head = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.layer(x)))


@pytest.fixture(autouse=True)
def promotion():
    """As a person's jax is: optax counts in int32 and multiplies by floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def points():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(320, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    return {"image": x[:256], "label": y[:256]}, {"image": x[256:], "label": y[256:]}


def pairs():
    """Regression, under keys of one's own."""
    return tuple(
        {"reading": part["image"], "target": part["image"][:, :2] * 2}
        for part in points()
    )


class Log(jaxdist.Callback):
    def __init__(self):
        self.told = []

    def on_begin(self, start):
        self.told.append(("begin", start.start_step, start.steps, start.folder.name))

    def on_step(self, *, step, loss, step_s):
        self.told.append(("step", step))

    def on_evaluation(self, *, step, metrics):
        self.told.append(("evaluation", step, dict(metrics)))

    def on_checkpoint(self, *, step):
        self.told.append(("checkpoint", step))

    def on_end(self, run):
        self.told.append(("end", run.steps))


def experiment(folder, data=points, **changes):
    made = jaxdist.Experiment(
        name="points",
        epochs=2,
        run=jaxdist.RunConfig(dir=str(folder)),
        data=jaxdist.DataConfig(name=jaxdist.object_reference(data), batch=32, shift=0),
        model=jaxdist.ModelConfig(name=jaxdist.object_reference(Net)),
        plan=jaxdist.Plan(mesh=jaxdist.MeshShape(data=2)),
    )
    return replace(made, **changes)


def rows(folder, kind):
    lines = (folder / "points" / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def test_callbacks_are_told_what_happens_in_order(tmp_path, capsys):
    log = Log()
    run = jaxdist.run(experiment(tmp_path), callbacks=[log], quiet=True)
    assert capsys.readouterr().out == ""
    assert (run.status, run.steps) == ("done", 16)
    kinds = [told[0] for told in log.told]
    assert kinds == [
        "begin",
        *["step"] * 8,
        *("evaluation", "checkpoint"),
        *["step"] * 8,
        *("evaluation", "checkpoint", "end"),
    ]
    assert log.told[0] == ("begin", 0, 16, "points")
    assert [told[1] for told in log.told if told[0] == "checkpoint"] == [8, 16]
    assert (tmp_path / "points" / "report.html").exists()
    network, _ = jaxdist.load(tmp_path / "points", trust=True)
    test = points()[1]
    right = np.asarray(network(test["image"]).argmax(-1)) == test["label"]
    assert right.mean() == pytest.approx(run.accuracy)


def test_a_callback_has_what_a_step_reports_beside_its_loss(tmp_path):
    class Norms(jaxdist.Callback):
        def __init__(self):
            self.told = []

        def on_scalars(self, *, step, scalars):
            self.told.append((step, scalars["gradient_norm"]))

    norms = Norms()
    jaxdist.run(experiment(tmp_path), callbacks=[norms], quiet=True)
    written = rows(tmp_path, "train")
    assert len(written) == 16
    assert norms.told == [(row["step"], row["gradient_norm"]) for row in written]


class Memory:
    """A tracker: three methods, and no base class."""

    def start(self, run):
        self.run, self.steps = run, []

    def log(self, step, values):
        self.steps.append((step, values))

    def end(self, summary):
        self.summary = summary


def test_a_tracker_of_ones_own_is_a_callback(tmp_path):
    memory = Memory()
    made = experiment(tmp_path, epochs=1, track=("csv",))
    run = jaxdist.run(made, callbacks=[memory, log := Log()], quiet=True)
    assert log.told[-1] == ("end", 8)
    assert memory.run.config["data.batch"] == 32
    assert json.loads(memory.run.plan)["mesh"]["data"] == 2
    assert [step for step, values in memory.steps if "train/loss" in values] == [
        *range(1, 9)
    ]
    tested = [values for _, values in memory.steps if "test/loss" in values]
    assert [each["test/accuracy"] for each in tested] == [run.accuracy]
    assert memory.summary.values["accuracy"] == run.accuracy
    names = {path.name for path in memory.summary.files}
    assert names == {"report.html", "plan.json", "config.lock.json"}
    # Beside one of its configuration.
    table = (tmp_path / "points" / "metrics.csv").read_text().splitlines()
    assert len(table) == 1 + 8 + 1


def test_a_longer_run_goes_on_under_another_plan(tmp_path, capsys):
    jaxdist.run(experiment(tmp_path), quiet=True)
    log = Log()
    plan = jaxdist.Plan(mesh=jaxdist.MeshShape(data=4))
    longer = experiment(tmp_path, epochs=3)
    run = jaxdist.run(longer, plan=plan, callbacks=[log])
    assert log.told[0] == ("begin", 16, 24, "points")
    assert (run.plan["mesh"]["data"], run.resumed_at) == (4, 16)
    assert "test accuracy" in capsys.readouterr().out


def test_optimizers_schedules_and_metrics_are_values(tmp_path):
    def confidence(outputs, batch):
        return jax.nn.softmax(outputs).max(-1)

    found = []
    for number, given in enumerate(
        [
            {"optimizer": optax.sgd(0.25)},
            {"optimizer": optax.sgd, "learning_rate": 0.25},
            {"optimizer": optax.sgd, "learning_rate": optax.constant_schedule(0.25)},
        ]
    ):
        folder, log = tmp_path / str(number), Log()
        run = jaxdist.run(
            experiment(folder),
            metrics={"confidence": confidence},
            callbacks=[log],
            quiet=True,
            **given,
        )
        assert 0.5 < run.metrics["confidence"] < 1
        seen = [told[2] for told in log.told if told[0] == "evaluation"]
        assert seen[-1]["confidence"] == run.metrics["confidence"]
        assert rows(folder, "test")[-1]["confidence"] == run.metrics["confidence"]
        rates = {row["learning_rate"] for row in rows(folder, "train")}
        assert rates == ({None} if number == 0 else {0.25})
        found.append([row["loss"] for row in rows(folder, "train")])
        network, _ = jaxdist.load(folder / "points", trust=True)
        mean = confidence(network(points()[1]["image"]), None).mean()
        assert float(mean) == pytest.approx(run.metrics["confidence"], rel=1e-5)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-6)


def test_an_objective_is_a_function(tmp_path, capsys):
    def absolute(outputs, batch):
        return jnp.abs(outputs - batch["target"]).mean(-1)

    run = jaxdist.run(
        experiment(tmp_path, pairs), objective=absolute, optimizer=optax.adam(3e-2)
    )
    losses = [row["loss"] for row in rows(tmp_path, "train")]
    assert losses[-1] < 0.7 * losses[0]
    assert run.accuracy is None
    assert run.loss == rows(tmp_path, "test")[-1]["loss"]
    assert "not evaluated" not in capsys.readouterr().out

    near = jaxdist.FunctionObjective(
        loss=absolute,
        inputs=(("reading", "float32"),),
        targets=(("target", "float32"),),
        answers=lambda outputs, batch: jnp.abs(outputs - batch["target"]) < 9,
    )
    one = experiment(tmp_path / "near", pairs, epochs=1)
    assert jaxdist.run(one, objective=near, quiet=True).accuracy == 1.0


def test_optimizers_that_need_whole_parameters_are_refused_in_shards(tmp_path):
    plan = jaxdist.Plan(mesh=jaxdist.MeshShape(fsdp=2))
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
    with pytest.raises(BadInput, match="cannot move shards") as caught:
        jaxdist.run(experiment(tmp_path), plan=plan, optimizer=clipped, quiet=True)
    assert "plan.mesh.fsdp=1" in str(caught.value)
    assert not (tmp_path / "points" / "config.lock.json").exists()
    ours = optax.chain(clip_by_global_norm(1.0), optax.adamw(1e-2))
    losses = []
    for number, chosen in enumerate((plan, None)):
        folder = tmp_path / str(number)
        one = experiment(folder)
        jaxdist.run(one, plan=chosen, optimizer=ours, quiet=True)
        losses.append([row["loss"] for row in rows(folder, "train")])
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metrics": {"loss": len}}, "an evaluation has its own loss"),
        ({"metrics": {"m": lambda outputs, batch: outputs}}, "not one number a sample"),
        ({"learning_rate": -1.0}, "nothing would be learnt"),
        ({"overrides": ["epochs=0"]}, "nothing to train"),
        ({"objective": lambda outputs, batch: outputs}, "one loss a sample"),
        (
            {"plan": jaxdist.Plan(mesh=jaxdist.MeshShape(data=32))},
            "larger than the devices",
        ),
    ],
)
def test_what_is_wrong_is_an_exception(tmp_path, given, said):
    with pytest.raises(BadInput, match=said):
        jaxdist.run(experiment(tmp_path), quiet=True, **given)


def test_a_run_in_another_thread_takes_no_signals(tmp_path):
    found = []

    def work():
        with jax.numpy_dtype_promotion("standard"):
            found.append(jaxdist.run(experiment(tmp_path, epochs=1), quiet=True))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].status == "done"


def test_what_a_notebook_defines_is_trained_there(tmp_path):
    """A program without a file, as a notebook is: names are those of `__main__`."""
    text = EXAMPLE.read_text()
    text += "\nfor _ in range(2):\n    jd.run(experiment, plan=plan, quiet=True, "
    text += "overrides=['run.name=again'], optimizer=optax.adam(1e-2))\n"
    environ = {**os.environ, "JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run(
        [sys.executable, "-"],
        input=text,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lock = json.loads((tmp_path / "runs/discs/config.lock.json").read_text())
    assert "__main__:Net" in json.dumps(lock)
    assert lock["command"] == ["jaxdist.run"], "no command would start it again"
    # In another program it is not there.
    with pytest.raises(BadInput, match="no Net in this program"):
        jaxdist.load(tmp_path / "runs/discs", trust=True)


def test_the_example_is_25_lines_and_learns(job, tmp_path):
    lines = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert len(lines) <= 25
    page = EXAMPLE.parents[1] / "docs" / "your_model.md"
    assert f"```python\n{EXAMPLE.read_text()}```" in page.read_text()
    inside = f"import os, runpy; os.chdir({str(tmp_path)!r}); "
    inside += f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    child = job.python("-c", inside, JAX_NUM_CPU_DEVICES="4")
    out, err = child.communicate()
    assert child.returncode == 0, err
    assert float(out.splitlines()[-1].partition("%")[0]) > 93


def test_the_command_of_a_program_s_run_is_the_program(tmp_path):
    """Its values cannot all be typed as settings; the program can be started again."""
    (tmp_path / "train_discs.py").write_text(EXAMPLE.read_text())
    typed = ["train_discs.py", "--name with spaces"]
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, *typed],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": "4"},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert "jaxdist eval discs --trust" in said[0], "the run alone names the network"
    assert "finished  run discs at step 140: test accuracy" in said[1]
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]
    folder = tmp_path / "runs" / "discs"
    lock = json.loads((folder / "config.lock.json").read_text())
    assert lock["command"] == ["python", *typed]
    report = (folder / "report.html").read_text()
    assert "python train_discs.py &#39;--name with spaces&#39;" in report
    assert "jaxdist train" not in report


def test_another_program_s_network_under_the_name_of_a_run_is_refused_as_that(tmp_path):
    """Nothing that the files of the run name is imported: there is nothing to trust."""
    jaxdist.run(experiment(tmp_path, epochs=1), quiet=True)
    network = jaxdist.ModelConfig(name=jaxdist.object_reference(nnx.Linear))
    with pytest.raises(BadInput, match=r"another model\.name") as found:
        jaxdist.run(experiment(tmp_path, model=network), quiet=True)
    assert "run.name=points-2" in str(found.value)


def test_a_plan_is_chosen_for_machines_that_are_not_here(tmp_path):
    one = experiment(tmp_path)
    plan = jaxdist.plan_for(one, cluster="abci", devices=8)
    assert plan.mesh.devices == 8
    fixed = jaxdist.plan_for(
        one, cluster="abci", devices=8, overrides=["plan.mesh.fsdp=4"]
    )
    assert fixed.mesh.fsdp == 4
