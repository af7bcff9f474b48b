"""A run folder as a training leaves it, made of arithmetic."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sample_runs import compared_of, put_everything

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.run_record import Run
from jaxdist.launch.report import write_report

START = 1_773_475_200.0  # 2026-03-14 08:00:00 UTC
EPOCHS, BATCH, SAMPLES, HELD_OUT, STEP_S = 30, 64, 1437, 360, 0.0364


@dataclass(kw_only=True)
class Sample:
    """The lines and values of a run, changed by a test before they are written."""

    folder: Path
    name: str = "digits"
    plan: Plan | None = field(
        default_factory=lambda: Plan(mesh=MeshShape(data=4, spatial_h=2))
    )
    train: list[dict] = field(default_factory=list)
    tests: list[dict] = field(default_factory=list)
    spans: list[dict] = field(default_factory=list)
    lock: dict | None = None
    run: Run | None = None

    def write(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = sorted([*self.train, *self.tests], key=lambda row: row["time"])
        self.put("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self.put("spans.jsonl", "".join(json.dumps(row) + "\n" for row in self.spans))
        if self.plan is not None:
            self.put("plan.json", self.plan.to_json())
        if self.lock is not None:
            self.put("config.lock.json", json.dumps(self.lock))
        if self.run is not None:
            self.put("summary.json", self.run.to_json())
        return self.folder

    def put(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def sample(tmp_path):
    """A run of 30 epochs that went well."""
    return make_sample(tmp_path / "digits")


@pytest.fixture
def sample_at():
    """Make such runs in any folder."""
    return make_sample


@pytest.fixture
def compared(sample):
    """What `compare` found of the run, cut in two stages."""
    return compared_of(sample)


@pytest.fixture
def everything(sample, compared):
    """The report of a run of which all is known."""
    return write_report(put_everything(sample, compared))


def make_sample(folder, epochs=EPOCHS):
    steps = math.ceil(epochs * SAMPLES / BATCH)
    made = Sample(folder=folder, lock=_lock())
    clock = START + 8.7
    made.spans = [_span("compile", START + 0.8, 7.9, 0)]
    for step in range(1, steps + 1):
        clock += STEP_S
        made.train.append(_step(step, steps, clock))
        made.spans.append(_span("compute", clock - STEP_S, STEP_S, step))
        if step * BATCH // SAMPLES > (step - 1) * BATCH // SAMPLES:
            made.tests.append(_test(step, clock + 0.06))
            made.spans.append(_span("evaluation", clock, 0.063, step))
            made.spans.append(_span("checkpoint", clock + 0.063, 0.01, step))
            clock += 0.08
    made.run = _run(made, steps)
    return made


def _span(name, start, seconds, step):
    return {"name": name, "start": start, "seconds": seconds, "step": step}


def _step(step, steps, clock):
    noise = 0.25 * math.sin(12.9898 * step) ** 2
    rate = 0.1 * min(step / 66, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    return {
        "kind": "train",
        "step": step,
        "epoch": 1 + (step - 1) * BATCH // SAMPLES,
        "loss": (2.3 * math.exp(-step / 60) + 0.02) * (0.9 + noise),
        "learning_rate": rate,
        "step_s": STEP_S * (1 + 0.08 * math.sin(78.233 * step)),
        "time": clock,
    }


def _test(step, clock):
    correct = round(HELD_OUT * (0.992 - 0.7 * math.exp(-step / 50)))
    return {
        "kind": "test",
        "step": step,
        "epoch": step * BATCH // SAMPLES,
        "loss": 2.2 * math.exp(-step / 55) + 0.032,
        "accuracy": correct / HELD_OUT,
        "correct": correct,
        "samples": HELD_OUT,
        "time": clock,
    }


def _run(made, steps):
    last = made.tests[-1] if made.tests else {}
    return Run(
        name=made.name,
        experiment="digits",
        plan=json.loads(made.plan.to_json()),
        devices=made.plan.mesh.devices,
        parameters=78_330,
        steps=steps,
        accuracy=last.get("accuracy"),
        loss=last.get("loss"),
        correct=last.get("correct", 0),
        held_out=last.get("samples", 0),
        samples_per_s=BATCH / STEP_S,
        step_s=STEP_S,
        step_s_p5=0.0349,
        step_s_p95=0.0398,
        wall_s=34.2,
        first_step_s=8.7,
        phases_s={
            "compute": 23.6,
            "compile": 7.9,
            "evaluation": 1.9,
            "input": 0.4,
            "checkpoint": 0.3,
            "other": 0.1,
        },
        bytes_by_collective={
            "all-reduce, data x spatial_h": 548_310,
            "halo, spatial_h": 96_000,
            "all-reduce, loss": 8,
        },
        memory_bytes=39_000_000,
        checkpoint=steps,
    )


def _lock():
    rows = {
        "name": ("digits", "experiment"),
        "seed": (0, "default"),
        "precision": ("float32", "default"),
        "epochs": (EPOCHS, "experiment"),
        "run.name": ("digits", "default"),
        "run.dir": ("runs", "default"),
        "data.name": ("digits", "experiment"),
        "data.batch": (BATCH, "experiment"),
        "data.shift": (2, "default"),
        "model.name": ("resnet8", "experiment"),
        "optim.frozen": (["stem", "block1"], "default"),
        "model.dropout": (0.1, "default"),
        "optim.lr": (0.1, "command line"),
        "optim.warmup_epochs": (3, "default"),
        "optim.weight_decay": (0.0005, "default"),
        "plan.mesh.data": (4, "experiment"),
        "plan.mesh.spatial_h": (2, "experiment"),
        "plan.mesh.tensor": (1, "default"),
        "checkpoint.keep": (3, "default"),
        "plan.outer.nesterov": (True, "default"),
    }
    return {
        "experiment": "digits",
        "values": {k: {"value": v, "by": by} for k, (v, by) in rows.items()},
        "data": {"train": f"{SAMPLES:,} samples, 0123", "test": "360 samples, 4567"},
        "packages": {"jaxdist": "0.1.0", "jax": "0.10.2", "flax": "0.12.8"},
        "command": ["jaxdist", "train", "digits", "optim.lr=0.1"],
    }
