"""Executed plans: what the oracle predicts beside what hosts of a testbed take.

    python benchmarks/executed.py calibrate found --rates 100mbit,200mbit,1gbit
    python benchmarks/executed.py run found --rates 100mbit,200mbit,1gbit
    python benchmarks/executed.py layers found --rates 100mbit,200mbit,1gbit
    python benchmarks/executed.py choose found --rates 100mbit,200mbit,1gbit
    python benchmarks/executed.py read found

All but `read` as root, and each once. `calibrate` measures four hosts together at each
rate. `run` compiles the plans of a pool, and runs their steps in turn, in rounds, while
links change their rate. `layers` times their layers and blocks; `choose` asks the
planner for the best plan of each network and rate by these, and runs it beside the
three of the pool that were fastest (`run --planned` runs it with the pool); a plan
that goes by two names there was measured twice as often. `read`
predicts from the calibrations alone (with `--own` from what the layers took as well),
and sets the median over the rounds beside it; the floor is how well one round predicts
that median. Nothing is fitted to steps. Regret is what the plan predicted to be fastest
takes longer than the fastest one, of those whose step does what it does on one device;
its floor is what the fastest plan of a single round takes longer.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from executed_pool import LOSSY, MODELS, pool
from scipy.stats import spearmanr

from jaxdist.core.plan import Plan
from jaxdist.launch.config.plan_file import plan_to_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import Prediction, predict

HOSTS = 4
WORKER = Path(__file__).with_name("executed_worker.py")
OURS = [sys.executable, "-m", "jaxdist.launch"]


def link(rate):
    return None if rate == "none" else rate


def calibrate(folder, args):
    """Calibrate all hosts together at each rate."""
    with EmulatedCluster(HOSTS) as hosts:
        for rate in args.rates.split(","):
            hosts.set_rate(link(rate))
            out = str(folder / f"{rate}.json")
            measure = [*OURS, "calibrate", "--allow-noisy", "--force", "-o", out]
            hosts.run(measure, timeout=args.timeout, env=cache(folder))


def layers(folder, args):
    """Time the networks' own layers on all hosts together, for the planner."""
    rates = args.rates.split(",")
    timed = folder / "layers.json"
    # A copy, since the layers of each network are added to the file.
    timed.write_text((folder / f"{rates[0]}.json").read_text())
    with EmulatedCluster(HOSTS) as hosts:
        hosts.set_rate(None)
        for model in args.models.split(","):
            given = ["--cluster", str(timed), "-o", str(timed), "--force"]
            measure = [*OURS, "calibrate", *MODELS[model], *given]
            hosts.run(measure, timeout=args.timeout, env=cache(folder))
    own = load_cluster(str(timed)).device
    for rate in rates:
        cluster = load_cluster(str(folder / f"{rate}.json"))
        device = replace(own, packing=cluster.device.packing)
        (folder / f"{rate}.own.json").write_text(
            replace(cluster, device=device).to_json()
        )


def cache(folder):
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def chosen(model, cluster):
    """Return the overrides of the plan that the planner finds best."""
    asked = ["--cluster", str(cluster), "--devices", str(HOSTS), "--top", "1", "--json"]
    command = [*OURS, "plan", *MODELS[model], *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (first,) = json.loads(done.stdout)["plans"]
    return list(plan_to_overrides(Plan.from_json(json.dumps(first["plan"]))))


def planned(model, rates, folder):
    """Return {name: overrides} of what the planner finds best at each rate."""
    return {
        f"planned {rate}": chosen(model, folder / f"{rate}.own.json") for rate in rates
    }


def beside(model, rates, folder):
    """Return {name: overrides}: what the planner chose, and the fastest of the pool."""
    made = planned(model, rates, folder)
    found = dict(made)
    before = json.loads((folder / f"{model}.executed.json").read_text())
    for rate in rates:
        times = before["seconds"][rate]
        exact = [plan for plan in times if plan not in (*LOSSY, *made)]
        fast = sorted(exact, key=lambda plan: statistics.median(times[plan]))
        found |= {plan: before["plans"][plan] for plan in fast[:3]}
    return found


class Switch(threading.Thread):
    """Gives all links the rate that the processes on them have asked for, in a file."""

    def __init__(self, hosts: EmulatedCluster, folder: Path):
        super().__init__(daemon=True)
        self.hosts, self.asked = hosts, folder / "asked"
        self.given, self.over = folder / "given", False

    def run(self):
        last = None
        while not self.over:
            rate = self.asked.read_text() if self.asked.exists() else last
            if rate and rate != last:
                self.hosts.set_rate(link(rate))
                self.given.write_text(rate)
                last = rate
            time.sleep(0.1)


def executed(hosts: EmulatedCluster, model, plans, folder, args):
    """Run all plans in turn; return {rate: {plan: seconds of a step by round}}."""
    rates = args.rates.split(",")
    hosts.set_rate(None)
    # A `given` of the network before would be taken for an answer.
    for left in ("asked", "given"):
        (folder / left).unlink(missing_ok=True)
    (folder / "plans.json").write_text(json.dumps(list(plans.values())))
    given = {
        "experiment": MODELS[model][0],
        "words": MODELS[model][1:],
        "folder": str(folder),
        "rates": rates,
        "rounds": args.rounds,
        "seconds": args.seconds,
    }
    switch = Switch(hosts, folder)
    switch.start()
    try:
        command = [sys.executable, str(WORKER), json.dumps(given)]
        done = hosts.run(command, timeout=args.timeout, env=cache(folder))
    finally:
        switch.over = True
        switch.join()
    seconds = json.loads(done[0].stdout.splitlines()[-1])
    return {
        rate: dict(zip(plans, rows, strict=True))
        for rate, rows in zip(rates, seconds, strict=True)
    }


def run(folder, args):
    """Execute the pool, and write down what it took."""
    rates = args.rates.split(",") if args.planned else ()

    def plans(model):
        return _of_pool(model, args.plans) | planned(model, rates, folder)

    _execute(folder, args, "executed", plans)


def choose(folder, args):
    """Execute what the planner chooses, beside the fastest of the pool."""
    rates = args.rates.split(",")
    _execute(folder, args, "chosen", lambda model: beside(model, rates, folder))


def _of_pool(model, asked):
    names = asked.split(",") if asked else None
    return {k: v for k, v in pool(model).items() if names is None or k in names}


def _execute(folder, args, what, plans_of):
    with EmulatedCluster(HOSTS) as hosts:
        for model in args.models.split(","):
            plans = plans_of(model)
            times = executed(hosts, model, plans, folder, args)
            found = {"plans": plans, "seconds": times}
            (folder / f"{model}.{what}.json").write_text(json.dumps(found))
            print(f"{model}: {len(plans)} plans", flush=True)


def laid(model, plans) -> dict[str, Plan]:
    """Return {name: plan}, microbatches included."""
    name, *words = MODELS[model]
    found = {}
    for plan, more in plans.items():
        config = resolve_config(name, [*words, *more]).config
        micro = {"microbatches": config.optim.accumulate}
        tree = json.loads(config.plan.to_json()) | micro
        found[plan] = Plan.from_json(json.dumps(tree))
    return found


def pooled(seconds, plans):
    """Return {name: seconds by round}, of a plan with several names all of them."""
    alike = {
        plan: [name for name, other in plans.items() if other == plans[plan]]
        for plan in plans
    }
    return {p: [s for name in alike[p] for s in seconds[name]] for p in seconds}


def rows(folder, models, what="executed", own=""):
    """Yield a row a rate, network and plan: predicted beside executed."""
    for model in models:
        file = folder / f"{model}.{what}.json"
        if not file.exists():
            continue
        found = json.loads(file.read_text())
        plans = laid(model, found["plans"])
        name, *words = MODELS[model]
        subject = StepDescriber(resolve_config(name, words).config)
        for rate, seconds in found["seconds"].items():
            machine = load_cluster(str(folder / f"{rate}{own}.json"))
            for plan, times in pooled(seconds, plans).items():
                said = predict(subject.describe(plans[plan]), machine)
                yield row(rate, model, plan, times, said)


def row(rate, model, plan, times, said: Prediction):
    took, step = statistics.median(times), said.step_s
    low, high = said.interval_s
    return {
        "rate": rate,
        "model": model,
        "plan": plan,
        "layout": said.plan,
        "predicted_ms": round(1e3 * step, 1),
        "measured_ms": round(1e3 * took, 1),
        "accuracy": round(max(0.0, 1 - abs(step - took) / took), 3),
        "inside": low <= took <= high,
        "floor": round(statistics.mean(1 - abs(t - took) / took for t in times), 3),
        "rounds_ms": [round(1e3 * t, 1) for t in times],
        "terms_ms": {k: round(1e3 * v, 1) for k, v in said.terms_s.items()},
    }


def summary(rows):
    """Return the mean accuracy, by plan as well, and how well plans are ordered."""
    ranks = spearmanr(
        [row["predicted_ms"] for row in rows], [row["measured_ms"] for row in rows]
    )
    return {
        "plans": len(rows),
        "mean_accuracy": mean(rows, "accuracy"),
        "floor": mean(rows, "floor"),
        "spearman": round(float(ranks.statistic), 3),
        "inside": mean(rows, "inside"),
        **{f"by_{key}": by(rows, key) for key in ("rate", "model", "plan")},
    }


def mean(rows, key):
    return round(statistics.mean(row[key] for row in rows), 3)


def by(rows, key):
    return {
        value: mean([row for row in rows if row[key] == value], "accuracy")
        for value in dict.fromkeys(row[key] for row in rows)
    }


def regrets(rows):
    """Yield what following the prediction costs, by rate and network."""
    # Of lossy plans none may be chosen: their step is not that of one device.
    exact = [row for row in rows if row["plan"] not in LOSSY]
    for rate, model in dict.fromkeys((row["rate"], row["model"]) for row in exact):
        here = [row for row in exact if (row["rate"], row["model"]) == (rate, model)]
        own = [r for r in here if r["plan"] == f"planned {rate}"]
        first = own[0] if own else min(here, key=lambda row: row["predicted_ms"])
        best = min(here, key=lambda row: row["measured_ms"])
        data = next((r["measured_ms"] for r in here if r["plan"] == "data"), None)
        yield {
            "rate": rate,
            "model": model,
            "plans": len(here),
            "chosen": first["plan"],
            "layout": first["layout"],
            "best": best["plan"],
            "regret": round(first["measured_ms"] / best["measured_ms"] - 1, 3),
            "floor": round(by_chance(here), 3),
            "over_data": data and round(data / first["measured_ms"], 2),
        }


def by_chance(rows):
    """Return what following one round costs on average: regret without prediction."""
    best = min(row["measured_ms"] for row in rows)
    rounds = min(len(row["rounds_ms"]) for row in rows)
    firsts = [min(rows, key=lambda row: row["rounds_ms"][n]) for n in range(rounds)]
    return statistics.mean(row["measured_ms"] / best - 1 for row in firsts)


def read(folder, args):
    """Predict, and print it beside what was executed."""
    models, own = args.models.split(","), ".own" * args.own
    found = []
    for row in rows(folder, models, own=own):
        found.append(row)
        print(json.dumps(row), flush=True)
    for name, some in (
        ("of the pool", found),
        ("of the planner", list(rows(folder, models, "chosen", ".own"))),
    ):
        regret = list(regrets(some))
        for row in regret:
            print(json.dumps(row))
        if values := [row["regret"] for row in regret]:
            worst = {"mean": round(statistics.mean(values), 3), "worst": max(values)}
            floors = [row["floor"] for row in regret]
            worst["floor"] = round(statistics.mean(floors), 3)
            worst["worst_floor"] = max(floors)
            print(json.dumps({f"regret {name}": worst}))
    print(json.dumps(summary(found)))


def main():
    each = (calibrate, run, layers, choose, read)
    whats = {what.__name__: what for what in each}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=whats)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rates", default="100mbit,200mbit,1gbit")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--plans", default="", help="of the pool; none is all")
    parser.add_argument(
        "--planned", action="store_true", help="run: what the planner chooses as well"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="of a round: as many steps, 2 to 10"
    )
    parser.add_argument(
        "--own", action="store_true", help="read: with what their layers were timed"
    )
    parser.add_argument("--timeout", type=float, default=2400, help="s")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    whats[args.what](args.folder.resolve(), args)


if __name__ == "__main__":
    main()
