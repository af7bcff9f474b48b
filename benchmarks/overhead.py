"""What the framework costs: jaxdist's step and loop against a hand-written jit loop.

    python benchmarks/overhead.py --json

Both train ResNet-8 on digits with the same batch on the same mesh, in turn, in one
process; a ratio is taken round by round, so that a drifting machine drifts under both.
`step_ratio`: the compiled step alone. `loop_ratio`: jaxdist's whole loop (shuffle,
augmentation, transfer, metrics and spans on disk) against the hand-written loop, which
gathers from memory without augmentation and writes nothing. `check_ratio`: the compiled
step over the same without the check that gradients and state are finite; both leave the
same bits.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import numpy as np
from handwritten import Hand
from record import add_record_option, row, write_result

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.input.augmentation import Augmentation
from jaxdist.input.device_feed import train_feed
from jaxdist.input.registry import open_data
from jaxdist.launch.experiments.digits import digits
from jaxdist.launch.training.job.job import make_job
from jaxdist.train.loop import fit
from jaxdist.train.metrics import Recorder
from jaxdist.train.optimizers import RunSchedule
from jaxdist.train.program import compile_program, initial_state


class Silent:
    """Looks on and saves nothing: evaluation and checkpoints are not measured here."""

    ready = True

    def prepare(self):
        """Have nothing to compile."""

    def __call__(self, state):
        return {}

    def is_best(self, metrics):
        """Keep nothing."""
        return False

    def save(self, state, metrics):
        """Keep nothing."""

    def on_step(self, **what):
        """Draw nothing."""

    def on_evaluation(self, **what):
        """Draw nothing."""


class Ours:
    """The job of `jaxdist train digits`."""

    def __init__(self, plan, source, folder):
        self.job = make_job(digits(), plan, source)
        self.program = compile_program(self.job.layout)
        self.state = initial_state(self.job.layout)
        self.source, self.folder = source, folder

    def unchecked(self):
        """Return the step without the check that gradients and state are finite."""
        same: dict[str, Any] = {
            name: lambda loss, *_: loss
            for name in ("nan_unless_finite", "inf_unless_finite")
        }
        with mock.patch.multiple("jaxdist.train.step", **same):
            return compile_program(self.job.layout).compiled_step

    def batch(self):
        """Return the first batch on the devices."""
        feed = train_feed(self.source, self.job.order, self.program.batch_shardings)
        with feed as batches:
            return next(batches)

    def loop(self, steps):
        """Train `steps` more steps by the real loop."""
        start = int(self.state.step)
        schedule = RunSchedule(
            steps=start + steps,
            samples=10**9,
            batch_size=self.job.order.batch,
            checkpoint_interval=10**9,
        )
        recorder = Recorder(
            self.folder / "metrics.jsonl", self.folder / "spans.jsonl", time.time()
        )
        quiet = Silent()
        feed = train_feed(
            self.source,
            self.job.order,
            self.program.batch_shardings,
            augmentation=Augmentation(shift=1),
            start=start,
        )
        with feed as batches:
            outcome = fit(
                self.program,
                self.state,
                batches,
                schedule=schedule,
                evaluate=quiet,
                checkpointer=quiet,
                recorder=recorder,
                callback=quiet,
                learning_rates=np.zeros_like,
            )
        recorder.close()
        self.state = outcome.state


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def check_same_bits(ours: Ours, unchecked, batch):
    """Raise where the check changes what a step computes."""
    # A step donates its state, so each has one of its own.
    first = (initial_state(ours.job.layout) for _ in range(2))
    steps = ours.program.compiled_step, unchecked
    ends = [step(state, batch)[0] for step, state in zip(steps, first)]
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        assert np.array_equal(a, b), "the check changes the state"


def measure(ours: Ours, hand: Hand, rounds, steps, batch):
    """Return seconds a step by round: (step, by hand, loop, by hand, unchecked)."""
    ready, order = ours.batch(), np.random.default_rng(0)
    theirs = hand.batch(np.arange(batch))
    unchecked = ours.unchecked()
    check_same_bits(ours, unchecked, ready)
    other = initial_state(ours.job.layout)

    def step_ours():
        for _ in range(steps):
            ours.state, loss = ours.program.compiled_step(ours.state, ready)
        jax.block_until_ready(loss)

    def step_hand():
        for _ in range(steps):
            hand.state, loss = hand.step(hand.state, *theirs)
        jax.block_until_ready(loss)

    def step_unchecked():
        nonlocal other
        for _ in range(steps):
            other, loss = unchecked(other, ready)
        jax.block_until_ready(loss)

    runs = (
        step_ours,
        step_hand,
        lambda: ours.loop(steps),
        lambda: hand.epoch(order, batch, steps),
        step_unchecked,
    )
    rows = []
    for turn in range(rounds + 1):
        # The order alternates too: whoever runs second finds warmer caches.
        turns = (4, 0, 1, 2, 3) if turn % 2 else (1, 0, 4, 3, 2)
        times = {i: timed(runs[i]) / steps for i in turns}
        rows.append([times[i] for i in range(5)])
    return rows[1:]  # the first round compiles and warms up


def summary(rows):
    steps = [a / b for a, b, *_ in rows]
    loops = [c / d for _, _, c, d, _ in rows]
    checks = [a / e for a, *_, e in rows]
    medians = [statistics.median(column) for column in zip(*rows)]
    names = ("step_s", "hand_step_s", "loop_s", "hand_loop_s", "unchecked_step_s")
    return {
        "step_ratio": statistics.median(steps),
        "step_ratio_range": [min(steps), max(steps)],
        "loop_ratio": statistics.median(loops),
        "loop_ratio_range": [min(loops), max(loops)],
        "check_ratio": statistics.median(checks),
        "check_ratio_range": [min(checks), max(checks)],
        **dict(zip(names, medians)),
        "rounds": len(rows),
    }


def result_rows(rows):
    """Return the rows that are recorded."""
    names = ("step", "hand step", "loop", "hand loop", "unchecked step")
    columns = dict(zip(names, zip(*rows)))
    made = []
    for name in ("step", "loop"):
        ours, hand = columns[name], columns[f"hand {name}"]
        ratios = [a / b for a, b in zip(ours, hand)]
        made.append(
            row(name, statistics.median(ratios), "", figure="ratio", readings=ratios)
        )
        for figure, seconds in (("jaxdist", ours), ("by hand", hand)):
            times = [1e3 * s for s in seconds]
            middle = statistics.median(times)
            made.append(row(name, middle, "ms", figure=figure, readings=times))
    checks = [a / b for a, b in zip(columns["step"], columns["unchecked step"])]
    middle = statistics.median(checks)
    case = "step over one without the check that it is finite"
    return [*made, row(case, middle, "", figure="ratio", readings=checks)]


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="steps a round")
    parser.add_argument("--mesh", default="data=4,spatial_h=2")
    parser.add_argument("--json", action="store_true")
    add_record_option(parser)
    args = parser.parse_args()
    sizes = {k: int(v) for k, v in (p.split("=") for p in args.mesh.split(","))}
    plan = Plan(mesh=MeshShape(**sizes))
    source, _ = open_data(digits().data)
    samples = source.get(np.arange(len(source)))
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(plan, source, Path(folder))
        hand = Hand(
            ours.job.layout.mesh,
            ours.job.layout.task.optimizer,
            samples["image"],
            samples["label"].astype(np.int32),
        )
        batch = ours.job.order.batch
        rows = measure(ours, hand, args.rounds, args.steps, batch)
    result = summary(rows)
    if args.record:
        write_result("overhead", result_rows(rows))
    result |= {"mesh": plan.title, "batch": batch}
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    for name in ("step", "loop"):
        low, high = result[f"{name}_ratio_range"]
        ours_s, hand_s = result[f"{name}_s"], result[f"hand_{name}_s"]
        sys.stdout.write(
            f"{name}  jaxdist {1e3 * ours_s:.1f} ms, by hand {1e3 * hand_s:.1f} ms, "
            f"ratio {result[f'{name}_ratio']:.3f} ({low:.3f} to {high:.3f})\n"
        )


if __name__ == "__main__":
    main()
