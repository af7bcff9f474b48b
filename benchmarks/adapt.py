"""A link cut to a tenth while a run goes: when that is noticed, and what comes of it.

python benchmarks/adapt.py                          # needs root
python benchmarks/adapt.py --experiment digits --rate 200mbit --plan fsdp=4
python benchmarks/adapt.py --others data=4 --others pipe=4     # held against it

Four hosts in a box. The run starts under a plan, and goes on for some steps; then the
link of one host has a tenth of its rate. It is to notice, to plan again, and to go on.
Afterwards the others, each under a plan that it keeps, run on the slow link from the
start: the best of them is what the run is held against.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from threading import Event, Thread

from jaxdist.launch.launchers.local import LocalLaunch
from jaxdist.launch.launchers.processes.restart import RestartPolicy, run_with_restarts
from jaxdist.launch.run_folder.folder import RunFolder, read_jsonl
from jaxdist.launch.testbed.hosts import EmulatedCluster
from jaxdist.launch.testbed.link_shaping import parse_link_rate
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.meshes.clusters.what_if import apply_overrides

HOSTS, SLOW, CUT_AT = 4, 2, 30
PAGES = Path(__file__).parents[1] / "docs"
EXPERIMENTS = {
    "characters": (
        *("data.context=32", "data.stride=32", "data.batch=32", "optim.accumulate=8"),
        *("model.embed=256", "model.hidden=768", "model.depth=4", "epochs=1"),
    ),
    "digits": ("epochs=20",),
}


def main():
    args = read()
    with tempfile.TemporaryDirectory() as folder:
        args.folder = Path(folder)
        words = [args.experiment, *EXPERIMENTS[args.experiment], *args.words]
        words += [f"run.dir={folder}", "run.hang_timeout_s=300"]
        if args.experiment == "characters":
            text = args.folder / "text.txt"
            text.write_text("".join(p.read_text() for p in sorted(PAGES.glob("*.md"))))
            words += [f"data.path={text}"]
        # A tenth of the rate, in kbit/s.
        slow = f"{parse_link_rate(args.rate) // 10_000}kbit"
        with EmulatedCluster(HOSTS, args.rate) as hosts:
            found = {} if args.only_others else adapts(hosts, args, words, slow)
            hosts.set_host_rate(SLOW, slow)
            for plan in args.others:
                found[plan] = alone(hosts, args, words, plan)
        print(json.dumps(found, indent=2))


def read():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="characters")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--plan", default="data=4", help="at the start: data=2,pipe=2")
    parser.add_argument("--others", action="append", default=[])
    parser.add_argument("--only-others", action="store_true")
    parser.add_argument("--cluster", default="testbed")
    parser.add_argument("--after", type=int, default=25, help="steps under the new one")
    parser.add_argument("words", nargs="*", help="of the experiment")
    return parser.parse_args()


def train(hosts: EmulatedCluster, words):
    """Run on all hosts until the run ends, or is ended."""
    command = (sys.executable, "-m", "jaxdist.launch", "train", *words)

    def attempt(number: int):
        each = LocalLaunch(
            command=command,
            num_processes=HOSTS,
            devices_per_process=1,
            coordinator=hosts.coordinator(number),
        )
        return hosts.place_processes(each.process_specs(os.environ))

    return run_with_restarts(attempt, RestartPolicy())


def adapts(hosts: EmulatedCluster, args, words, slow):
    """Cut the link of a run; return what was noticed, when, and what came of it."""
    cluster = args.folder / "cluster.json"
    asked = apply_overrides(
        load_cluster(args.cluster), [f"levels.net.bandwidth={args.rate}"]
    )
    cluster.write_text(asked.to_json())
    run = RunFolder(args.folder / "adapts")
    seen, over = {}, Event()

    def watches():
        while not over.wait(0.05):
            rows = steps_of(run)
            if "cut" not in seen and rows and rows[-1]["step"] >= CUT_AT:
                hosts.set_host_rate(SLOW, slow)
                seen["cut"] = rows[-1]["step"], time.time()
            news = read_jsonl(run.drift_log).rows
            kept = [row for row in news if row["kind"] == "plan"]
            later = [row for row in rows if kept and row["time"] > kept[-1]["time"]]
            if len(later) >= args.after:
                # It has shown what it does: the rest of the course tells nothing.
                # A signal to one process ends the run in all of them, at one step.
                for pid in hosts.pids(0)[:1]:
                    os.kill(pid, 15)
                return

    watcher = Thread(target=watches)
    watcher.start()
    code = train(
        hosts,
        [
            *words,
            *mesh(args.plan),
            *("run.name=adapts", f"--cluster={cluster}", "--adapt"),
        ],
    )
    over.set()
    watcher.join()
    print(run.drift_log.read_text() if run.drift_log.exists() else "no drift")
    return told(run, seen) | {"exit": code}


def told(run: RunFolder, seen):
    """Say when what was noticed, in steps and seconds since the cut."""
    rows, news = steps_of(run), read_jsonl(run.drift_log).rows
    step, at = seen["cut"]
    drift, reason, plan = (
        next(row for row in news if row["kind"] == kind and row["time"] > at)
        for kind in ("drift", "reason", "plan")
    )
    new = [row for row in rows if row["time"] > plan["time"]]
    spans = [s for s in read_jsonl(run.spans).rows if s["name"] == "compute"]
    done = [s["step"] for s in spans if s["step"]]
    return {
        "cut_after_step": step,
        "noticed_after_steps": drift["step"] - step,
        "noticed_s": drift["time"] - at,
        "named_s": reason["time"] - at,
        "why": reason["why"],
        "plan_found_s_after_named": plan["time"] - reason["time"],
        "plan": f"{plan['stays']} -> {plan['other']}",
        "predicted_gain": plan["gain"],
        "step_ms_before": 1e3 * middle(rows, 10, step),
        "step_ms_cut": 1e3 * drift["seconds"],
        "step_ms_after": 1e3 * median(row["step_s"] for row in new[8:]),
        "trains_s_after_found": next(
            (r["time"] - plan["time"] for r in new if r["step"] > plan["step"] + 3),
            None,
        ),
        "steps_written_once": [r["step"] for r in rows] == [*range(1, len(rows) + 1)],
        "steps_done_again": len(rows) - len({*done} & {r["step"] for r in rows}),
    }


def alone(hosts: EmulatedCluster, args, words, plan):
    """Return the milliseconds of a step under a plan, all of it on the slow link."""
    name = "alone-" + plan.replace("=", "").replace(",", "-")
    run, over = RunFolder(args.folder / name), Event()

    def watches():
        while not over.wait(0.05):
            if len(steps_of(run)) >= args.after:
                for pid in hosts.pids(0)[:1]:
                    os.kill(pid, 15)
                return

    watcher = Thread(target=watches)
    watcher.start()
    train(hosts, [*words, *mesh(plan), f"run.name={name}"])
    over.set()
    watcher.join()
    rows = steps_of(run)
    return {"step_ms": 1e3 * median(r["step_s"] for r in rows[8:]), "steps": len(rows)}


def mesh(plan):
    # Axes that a plan does not name are 1, whatever the experiment has.
    sizes = dict.fromkeys(("data", "fsdp", "spatial_h", "tensor", "pipe"), 1)
    sizes |= dict(part.split("=") for part in plan.split(","))
    return [f"plan.mesh.{axis}={size}" for axis, size in sizes.items()]


def steps_of(run: RunFolder):
    return [row for row in read_jsonl(run.metrics).rows if row["kind"] == "train"]


def middle(rows, first, last):
    return median(row["step_s"] for row in rows if first <= row["step"] <= last)


if __name__ == "__main__":
    main()
