"""Plan, run, compare: the three commands for every experiment, at a tiny size.

    python benchmarks/loop.py --devices 2
    python benchmarks/loop.py --cluster mine.json digits gpt2_small

Each experiment is planned on fake devices of this machine, trained under the plan for
an epoch of random samples, and compared. A command that fails is a row that says so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from record import add_record_option, row, write_result

from jaxdist.launch.config.experiment import experiment_names

TINY = (
    *("data.name=synthetic", "data.samples=192", "data.batch=16", "data.context=16"),
    *("model.size=tiny", "epochs=1"),
    *(f"model.{key}=None" for key in ("depth", "heads", "kv_heads", "embed", "hidden")),
)
SIZES = {"digits": ("epochs=1",)}
"""What an experiment is made small with, where that is not `TINY`."""


def call(environ, *words):
    """Run a command of ours; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxdist.launch", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )
    if done.returncode:
        why = done.stderr.strip().splitlines() or [""]
        raise RuntimeError(f"{words[0]}: {done.returncode}, {why[-1]}\n{done.stderr}")
    return done.stdout


def looped(name, devices, cluster, folder):
    """Plan, run and compare one experiment."""
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    small, plan = SIZES.get(name, TINY), folder / f"{name}.json"
    on = ("--cluster", cluster)
    where = (f"run.dir={folder / 'runs'}", f"run.name={name}")
    call(environ, "plan", name, *small, *on, "--devices", devices, "-o", plan)
    profile = ("--profile", "steps=4:10")
    call(environ, "train", name, "--plan", plan, *small, *where, *profile)
    path = folder / "runs" / name
    (run,) = json.loads(call(environ, "compare", path, *on, "--json"))["runs"]
    assert "Predicted and measured" in (path / "report.html").read_text()
    return run


def figures(run):
    """Return the figures of a comparison, in ms and %."""
    terms = {term["name"]: term["measured"] for term in run["terms"]}
    whole = sum(s for name, s in terms.items() if name != "memory")
    step, memory = run["step"], run["terms"][-1]
    return {
        "predicted, ms": 1e3 * step["predicted"],
        "measured, ms": 1e3 * step["measured"],
        "step accurate, %": 100 * step["accurate"],
        "terms add up to, %": 100 * whole / step["measured"],
        "memory accurate, %": 100 * memory["accurate"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=sorted(experiment_names()))
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--cluster", default="cpu-fake")
    add_record_option(parser)
    given = parser.parse_args()
    print(
        "| experiment | plan | predicted, ms | measured, ms | step, % "
        "| terms add up to, % | memory, % | largest miss, ms |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    failed, rows = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names:
            try:
                run = looped(name, given.devices, given.cluster, Path(folder))
                found, miss = figures(run), run["misses"][0]
                shown = " | ".join(f"{value:.1f}" for value in found.values())
                print(
                    f"| {name} | {run['plan']} | {shown} "
                    f"| {miss['term']} {1e3 * miss['seconds']:+.1f} |",
                    flush=True,
                )
                rows.append(row(name, run["plan"], "", figure="plan"))
                for title, value in found.items():
                    figure, _, unit = title.rpartition(", ")
                    rows.append(row(name, value, unit, figure=figure))
            except RuntimeError as error:
                failed += 1
                what, _, told = str(error).partition("\n")
                print(f"| {name} | failed: {what} |", flush=True)
                print(told, file=sys.stderr)
    if given.record:
        write_result(
            "loop",
            rows,
            title="Plan, run, compare",
            not_run="minutes for each experiment",
            measures="The step and the memory of every experiment at a tiny size under "
            "the plan that `jaxdist plan` chooses for fake devices of this machine, "
            "predicted and measured.",
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
