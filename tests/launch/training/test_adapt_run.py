"""Runs that are looked at, in one process: one that says why it drifts, one of fewer."""

import itertools
import json
import shlex
import time
from dataclasses import replace

import pytest

from jaxdist.core.plan import Plan
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.adapt.controller import LinkProbe
from jaxdist.launch.training.adapt.diagnosis import (
    BASELINE_STEPS,
    DRIFT_WARMUP_STEPS,
)
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.meshes.clusters.what_if import apply_overrides
from jaxdist.train.metrics import LossQueue

CPU = load_cluster("cpu-fake")

pytestmark = pytest.mark.timeout(300)

STEADY, SLOWER = 0.1, 5
SMALL = (
    *("data.context=16", "data.stride=None", "data.batch=8", "plan.mesh.data=2"),
    *("model.depth=1", "model.heads=2", "model.kv_heads=1", "model.embed=16"),
    *("--cluster", "cpu-fake"),
)


@pytest.fixture
def train(job, tmp_path):
    """Train on an alphabet, 22.5 steps an epoch: exit code, all that was said, folder."""
    (tmp_path / "a.txt").write_text("abcdefghijklmnop" * 200)
    where = f"data.path={tmp_path / 'a.txt'}", f"run.dir={tmp_path}"

    def train(*words):
        code, out, err = job.call("train", "characters", *where, *SMALL, *words)
        return code, out + err, tmp_path / "characters"

    return train


@pytest.fixture
def clocked(monkeypatch):
    """Let steps take as long as a list says, however busy the machine is."""

    def clocked(seconds):
        now = itertools.accumulate(seconds)
        monkeypatch.setattr(LossQueue, "clock", staticmethod(lambda: next(now)))

    return clocked


@pytest.fixture
def throttled(monkeypatch):
    """Let every sounding but the first find devices that are slower.

    What a product really took would do, but for the machine: where the tests beside
    this one end after the first sounding, devices are quicker at the second.
    """
    sounds, count = LinkProbe.__call__, itertools.count()

    def slower(self):
        found, seconds = sounds(self), 1e-3 * (SLOWER if next(count) else 1)
        return replace(found, products=tuple(seconds for _ in found.products))

    monkeypatch.setattr(LinkProbe, "__call__", slower)


def slowly(seconds):
    """Leave the processor to the search, which has as many steps as it takes."""
    while True:
        time.sleep(0.02)
        yield seconds


def trained(rows):
    return [row["step"] for row in rows if row["kind"] == "train"]


def test_without_adapt_it_says_what_drifted_and_why_and_goes_on(
    train, job, clocked, throttled
):
    # The clock is read as the run begins and after the first sounding, then by steps.
    steady = 2 + DRIFT_WARMUP_STEPS + BASELINE_STEPS
    clocked(itertools.chain([STEADY] * steady, itertools.repeat(SLOWER * STEADY)))
    code, said, folder = train("epochs=6")
    assert code == 0, said
    steps = trained(job.lines(folder / "metrics.jsonl"))
    assert steps == [*range(1, len(steps) + 1)]
    assert not (folder / "adapted.json").exists()
    drift, reason = job.lines(folder / "drift.jsonl")
    assert (drift["kind"], drift["since"]) == (
        "drift",
        DRIFT_WARMUP_STEPS + BASELINE_STEPS + 1,
    )
    assert drift["seconds"] == pytest.approx(SLOWER * STEADY)
    assert (reason["kind"], reason["step"]) == ("reason", drift["step"])
    assert reason["step"] < steps[-1]
    assert f"drift: a step takes 500 ms since step {drift['since']}" in said
    assert "likely cause: rank 0 computes" in said
    # What it says to type plans the same network for devices as they are now.
    (line,) = (line for line in said.splitlines() if "jaxdist plan" in line)
    typed = shlex.split(line.partition("jaxdist plan")[2])
    cut = typed.index("--cluster")
    assert resolve_config(typed[0], typed[1:cut]).config.model.embed == 16
    given = [typed[i + 1] for i, word in enumerate(typed) if word == "--what-if"]
    was, now = (
        c.device.flops["float32"].value for c in (CPU, apply_overrides(CPU, given))
    )
    assert now < 0.33 * was


def test_on_fewer_processes_it_goes_on_under_the_best_plan_for_those(
    train, job, clocked, monkeypatch
):
    """Of two processes one is here; its plan is what is left of the one of both."""
    place = {"RANK": "0", "HOSTS": "1", "COORDINATOR": "", "PLANNED": "2"}
    for name, text in place.items():
        monkeypatch.setenv(f"JAXDIST_{name}", text)
    words = "plan.mesh.fsdp=2", "plan.remat=true", "--adapt"
    clocked(slowly(10.0))  # steps as long as this make a restart pay
    code, said, folder = train("epochs=4000", *words)
    assert code == 75, said
    change = json.loads((folder / "adapted.json").read_text())
    assert change["why"] == "1 of 2 processes are here"
    plan = Plan.from_json(json.dumps(change["plan"]))
    reason, weighed = job.lines(folder / "drift.jsonl")
    assert (reason["kind"], weighed["stays"]) == ("reason", "fsdp 2, remat")
    assert weighed["other"] == plan.label != "fsdp 2, remat"
    ended = json.loads((folder / "summary.json").read_text())["steps"]
    code, said, _ = train(f"epochs={(ended + 2) / 22.5}", "--change", *words)
    assert code == 0, said
    told = " ".join(said.split())
    assert f"resumed at step {ended}" in told
    assert f"plan {plan.label}, adapted after step" in told
    steps = trained(job.lines(folder / "metrics.jsonl"))
    assert steps == [*range(1, len(steps) + 1)]
    # Nothing is searched again for those that are here.
    assert len(job.lines(folder / "drift.jsonl")) == 2
