"""Predicted steps beside executed ones, on the hosts of a testbed.

    python benchmarks/predicted.py --rates 100mbit,200mbit,1gbit
    python benchmarks/predicted.py --rates 200mbit --models digits --plans data,fsdp

As root. For each rate four hosts are calibrated together, and every plan is predicted;
then the compiled steps of all plans are run in turn, in rounds, and the median over the
rounds is set beside the prediction. The floor is how well one round predicts that
median. Nothing is fitted to the steps.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from scipy.stats import spearmanr

from jaxdist.launch.described import Subject
from jaxdist.launch.resolve import resolve
from jaxdist.launch.testbed import Hosts
from jaxdist.meshes.clusters.read import find
from jaxdist.oracle.predict import predict

HOSTS = 4
WORKER = Path(__file__).with_name("predicted_worker.py")
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
    "4 stages": {"pipe": 4},
    "int8": {"data": 4},
}
MORE = {
    "1f1b": ("optim.accumulate=4",),
    "4 stages": ("optim.accumulate=4",),
    "int8": ("plan.reduce.via=int8",),
}
"""Overrides beside the mesh."""


def words(plan, name):
    """Overrides of a plan."""
    sizes = {"data": 1, "spatial_h": 1} | PLANS[plan]
    mesh = (f"plan.mesh.{a}={n}" for a, n in sizes.items())
    return [*mesh, *MORE.get(plan, ()), *MODELS[name]]


def predicted(cluster, asked):
    """Return what the oracle says of each plan, without a device."""
    machine, found = find(str(cluster)), {}
    for model, plan in asked:
        config = resolve(model, words(plan, model)).config
        case = Subject(config).case(config.plan)
        found[model, plan] = predict(case, machine).tree()
    return found


def executed(hosts, asked, args, cache):
    """Run all plans in turn, in rounds; return the seconds of a step, [plan][round]."""
    plans = [(model, words(plan, model)) for model, plan in asked]
    given = {"plans": plans, "rounds": args.rounds, "steps": args.steps}
    command = [sys.executable, str(WORKER), json.dumps(given)]
    done = hosts.run(command, timeout=args.timeout, env=cache)
    return json.loads(done[0].out.splitlines()[-1])


def study(hosts, folder, rate, args):
    """Calibrate, predict, run, and yield a row a plan."""
    hosts.shape(None if rate == "none" else rate)
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    cluster = folder / f"{rate}.json"
    measure = [sys.executable, "-m", "jaxdist.launch", "calibrate", "--noisy"]
    hosts.run([*measure, "-o", str(cluster)], timeout=args.timeout, env=cache)
    asked = [(m, p) for m in args.models.split(",") for p in args.plans.split(",")]
    said = predicted(cluster, asked)
    rounds = executed(hosts, asked, args, cache)
    for (model, plan), times in zip(asked, rounds, strict=True):
        took, step = statistics.median(times), said[model, plan]["step_s"]
        low, high = said[model, plan]["interval_s"]
        floor = [1 - abs(one - took) / took for one in times]
        yield {
            "rate": rate,
            "model": model,
            "plan": plan,
            "predicted_ms": round(1e3 * step, 1),
            "measured_ms": round(1e3 * took, 1),
            "accuracy": round(max(0.0, 1 - abs(step - took) / took), 3),
            "inside": low <= took <= high,
            "floor": round(statistics.mean(floor), 3),
            "terms_ms": {
                k: round(1e3 * v, 1) for k, v in said[model, plan]["terms_s"].items()
            },
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", default="200mbit")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="of a round")
    parser.add_argument("--timeout", type=float, default=900, help="s a rate")
    args = parser.parse_args()
    rows = []
    with Hosts(HOSTS) as hosts, tempfile.TemporaryDirectory() as folder:
        for rate in args.rates.split(","):
            for row in study(hosts, Path(folder), rate, args):
                rows.append(row)
                print(json.dumps(row), flush=True)
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
