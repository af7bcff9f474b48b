"""One recalibration: the error of a cluster file that is wrong, before it and after.

    python benchmarks/recalibrated.py --folder runs/recalibrated

Calibrates fake devices of this machine, runs the steps of digits and of a small
Transformer under several plans, in turn and in rounds, and spoils the cluster file by
known factors: devices three times as fast, links half as fast, and the other way round.
Then each run in turn is the one that `compare --recalibrate` is given, and every other
run is predicted before and after. What is whole in the folder is not made again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from jaxdist.core.cluster import Cluster
from jaxdist.core.measured import Measured
from jaxdist.core.number import Number
from jaxdist.core.run import Run
from jaxdist.launch.described import Subject
from jaxdist.launch.resolve import resolve
from jaxdist.oracle.compare import compare, recalibrated
from jaxdist.oracle.predict import predict

EXPERIMENTS = {
    "digits": ("epochs=2",),
    "characters": (
        *("data.name=synthetic", "data.samples=768", "data.batch=16"),
        *("data.context=64", "model.context=64", "model.size=tiny", "epochs=1"),
        *(f"model.{k}=None" for k in ("depth", "heads", "kv_heads", "embed", "hidden")),
    ),
}
MESHES = {
    "digits": ("data=4", "fsdp=4", "tensor=4", "data=2 spatial_h=2", "data=2 fsdp=2"),
    "characters": (
        *("data=4", "fsdp=4", "data=2 tensor=2", "data=2 fsdp=2", "fsdp=2 tensor=2"),
    ),
}
AXES = ("data", "fsdp", "spatial_h", "tensor", "pipe")
SPOILS = {"devices x 3, links / 2": (3.0, 0.5), "devices / 3, links x 4": (1 / 3, 4.0)}
DEVICES = 4
FAKE = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(DEVICES)}


def words_of(experiment, mesh):
    """Return the overrides of one plan."""
    sizes = dict.fromkeys(AXES, 1) | dict(part.split("=") for part in mesh.split())
    return [*EXPERIMENTS[experiment], *(f"plan.mesh.{a}={n}" for a, n in sizes.items())]


def calibrate(path):
    """Measure the fake devices in a process of its own."""
    command = [sys.executable, "-m", "jaxdist.launch", "calibrate", "--noisy"]
    on = ["--devices", str(DEVICES), "-o", str(path)]
    subprocess.run([*command, *on], check=True, capture_output=True)


def ran(folder, rounds=5, steps=6):
    """Run the steps of all plans in turn; return seconds and where they went, by plan.

    In turn: other work of the machine slows all plans, and not those of one minute.
    """
    import jax
    from executed_worker import Runner

    from jaxdist.launch.measuring import write_measured

    plans = [(e, mesh) for e in EXPERIMENTS for mesh in MESHES[e]]
    runners = [Runner(e, words_of(e, mesh)) for e, mesh in plans]
    times = {plan: [] for plan in plans}
    for _ in range(rounds):
        for plan, runner in zip(plans, runners):
            runner.seconds(1)
            times[plan].append(runner.seconds(steps))
    found = {}
    for (experiment, mesh), runner in zip(plans, runners):
        name = f"{experiment}, {mesh}"
        traces, path = folder / name, folder / f"{name}.json"
        begun, options = time.time(), jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # as `train --profile` has it
        jax.profiler.start_trace(str(traces), profiler_options=options)
        runner.seconds(steps)
        jax.profiler.stop_trace()
        write_measured(runner.program, traces, begun, path)
        seconds = median(times[experiment, mesh])
        found[name] = {"step_s": seconds, "rounds": times[experiment, mesh]}
    return found


def spoiled(cluster, devices, links):
    """Return the cluster with devices and links as many times as fast."""

    def times(number, factor):
        return Number(number.value * factor, "given: wrong on purpose")

    device = replace(
        cluster.device,
        flops={k: times(rate, devices) for k, rate in cluster.device.flops.items()},
        memory_bandwidth=times(cluster.device.memory_bandwidth, devices),
        launch=times(cluster.device.launch, 1 / devices),
    )
    levels = tuple(
        replace(
            level,
            alpha=times(level.alpha, 1 / links),
            bandwidth=times(level.bandwidth, links),
        )
        for level in cluster.levels
    )
    return replace(cluster, device=device, levels=levels)


class Seen:
    """A plan that was run, described once and predicted on any cluster."""

    def __init__(self, name, row, folder):
        self.name, (experiment, mesh) = name, name.split(", ")
        self.run = Run(name=name, experiment=experiment, step_s=row["step_s"], steps=1)
        config = resolve(experiment, words_of(experiment, mesh)).config
        self.case = Subject(config).case(config.plan)
        path = folder / f"{name}.json"
        self.measured = Measured.from_json(path.read_text())

    def beside(self, cluster):
        return compare(self.run, predict(self.case, cluster), self.measured)

    def error(self, cluster):
        return abs(predict(self.case, cluster).step_s / self.run.step_s - 1)


def scored(seen, cluster):
    """Return, for each run that is given, the others' median error before and after."""
    rows = []
    for one in seen:
        better = recalibrated(cluster, [one.beside(cluster)])
        others = [other for other in seen if other is not one]
        before, after = (
            median(other.error(on) for other in others) for on in (cluster, better)
        )
        rows.append({"run": one.name, "before": before, "after": after})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/recalibrated"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not FAKE.items() <= os.environ.items():  # jax has read them as it was imported
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | FAKE)
    given.folder.mkdir(parents=True, exist_ok=True)
    cluster, rows = given.folder / "cluster.json", given.folder / "steps.json"
    if not cluster.is_file():
        calibrate(cluster)
    if not rows.is_file():
        rows.write_text(json.dumps(ran(given.folder)))
    told = json.loads(rows.read_text())
    seen = [Seen(name, row, given.folder) for name, row in told.items()]
    right = Cluster.from_json(cluster.read_text())
    found = {
        "calibrated": {one.name: one.error(right) for one in seen},
        **{how: scored(seen, spoiled(right, *by)) for how, by in SPOILS.items()},
    }
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print("| run | step, ms | predicted as calibrated, ms |\n|---|---|---|")
    for one in seen:
        said = predict(one.case, right).step_s
        print(f"| {one.name} | {1e3 * one.run.step_s:.1f} | {1e3 * said:.1f} |")
    for how in SPOILS:
        print(f"\n{how}\n| given | others' median error | after |\n|---|---|---|")
        for row in found[how]:
            said = f"{100 * row['before']:.0f} % | {100 * row['after']:.0f} %"
            print(f"| {row['run']} | {said} |")
        ratios = [row["after"] / row["before"] for row in found[how]]
        print(f"after / before: median {median(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
