"""Predicted steps beside executed ones, on the hosts of a testbed.

    python benchmarks/predicted.py --rates 200mbit --rounds 2
    python benchmarks/predicted.py --rates 100mbit,1gbit --models digits,vgg16

As root. For each rate four hosts are calibrated together; then every plan is run in
turn, in rounds, and the median of a plan's step times is set beside what was predicted
before. The floor is one round predicting another. Nothing is fitted to the runs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy.stats import spearmanr

from jaxdist.launch import standing
from jaxdist.launch.iproute import check_machine

HOSTS = 4
SYNTHETIC = ("data.name=synthetic", "data.samples=640", "data.batch=64")
MODELS = {
    "digits": (),
    "vgg16": (*SYNTHETIC, "model.size=tiny"),
}
PLANS = {
    "data": {"data": 4},
    "fsdp": {"fsdp": 4},
    "spatial": {"spatial_h": 4},
    "tensor": {"tensor": 4},
    "data+spatial": {"data": 2, "spatial_h": 2},
    "data+tensor": {"data": 2, "tensor": 2},
    "data+fsdp": {"data": 2, "fsdp": 2},
    "1f1b": {"pipe": 2, "data": 2},
}


def words(plan, name):
    """Overrides of a plan."""
    sizes = {"data": 1, "spatial_h": 1} | PLANS[plan]
    more = ["optim.accumulate=4"] if "pipe" in PLANS[plan] else []
    return [*(f"plan.mesh.{a}={n}" for a, n in sizes.items()), *more, *MODELS[name]]


def call(*what, inside=False):
    """Call a command of ours, on all hosts or here; return what it printed."""
    start = (sys.executable, "-m", "jaxdist.launch")
    on = ("testbed", "run", "--devices-per-process", "1", "--") if inside else ()
    done = subprocess.run(
        [*start, *on, *map(str, what)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return done.stdout


def predicted(cluster, plan, name):
    told = call(
        *("oracle", "predict", name, *words(plan, name)),
        *("--cluster", cluster, "--json"),
    )
    return json.loads(told)


def executed(folder, plan, name, number, steps):
    """Run a plan, and return the median seconds of its steps."""
    run = f"{name}-{plan}-{number}".replace("+", "-")
    epochs = f"epochs={steps}"
    call(
        *("train", name, *words(plan, name), epochs),
        *(f"run.dir={folder}", f"run.name={run}", "checkpoint.every_epochs=1000"),
        inside=True,
    )
    return json.loads((folder / run / "summary.json").read_text())["step_s"]


def study(folder, rate, args):
    """Predict, run, and yield a row a plan."""
    cluster = folder / f"{rate}.json"
    call("calibrate", "-o", cluster, "--noisy", inside=True)
    asked = [(m, p) for m in args.models.split(",") for p in args.plans.split(",")]
    said = {(m, p): predicted(cluster, p, m) for m, p in asked}
    seen = {key: [] for key in asked}
    for number in range(args.rounds):
        for model, plan in asked:
            run = f"{rate}-{number}"
            took = executed(folder, plan, model, run, args.epochs)
            seen[model, plan].append(took)
    for (model, plan), times in seen.items():
        took, step = statistics.median(times), said[model, plan]["step_s"]
        low, high = said[model, plan]["interval_s"]
        yield {
            "rate": rate,
            "model": model,
            "plan": plan,
            "predicted_ms": round(1e3 * step, 1),
            "measured_ms": round(1e3 * took, 1),
            "accuracy": round(max(0.0, 1 - abs(step - took) / took), 3),
            "inside": low <= took <= high,
            "floor": round(1 - abs(times[0] - times[-1]) / times[-1], 3),
            "terms_ms": {
                k: round(1e3 * v, 1) for k, v in said[model, plan]["terms_s"].items()
            },
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", default="200mbit")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=float, default=1.5)
    args = parser.parse_args()
    check_machine()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for rate in args.rates.split(","):
            standing.up(HOSTS, rate)
            try:
                for row in study(Path(folder), rate, args):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            finally:
                standing.down()
    print(json.dumps(summary(rows)))


def summary(rows):
    accuracy = [row["accuracy"] for row in rows]
    by_plan = {
        plan: round(
            statistics.mean(r["accuracy"] for r in rows if r["plan"] == plan), 3
        )
        for plan in dict.fromkeys(row["plan"] for row in rows)
    }
    ranks = spearmanr(
        [row["predicted_ms"] for row in rows], [row["measured_ms"] for row in rows]
    )
    return {
        "plans": len(rows),
        "mean_accuracy": round(statistics.mean(accuracy), 3),
        "floor": round(statistics.mean(row["floor"] for row in rows), 3),
        "spearman": round(float(ranks.statistic), 3),
        "inside": round(statistics.mean(row["inside"] for row in rows), 3),
        "by_plan": by_plan,
    }


if __name__ == "__main__":
    main()
