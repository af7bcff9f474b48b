"""How long a search for a plan takes: whole commands, and ordering by estimate.

python benchmarks/plans.py [commands] [--record]
"""

import argparse
import json
import resource
import subprocess
import sys
import time

from record import add_record_option, row, write_result

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.launch.config.resolve import ResolvedConfig, resolve_config
from jaxdist.launch.planning.search_space import LayoutQuery
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.planner.layouts.shortlist import order_by_estimate

GPT3 = (
    *("gpt2_small", "model.depth=96", "model.embed=12288", "model.heads=96"),
    *("model.context=2048", "data.context=2048", "model.vocabulary=51200"),
    *("data.name=synthetic", "data.samples=15360", "data.batch=1536"),
    "precision=bfloat16",
)
"""GPT-3 175B (Brown et al. 2020, table 2.1), as Megatron trains it."""

TRILLION = (
    *("gpt2_small", "model.depth=128", "model.embed=25600", "model.heads=160"),
    *("model.context=2048", "data.context=2048", "model.vocabulary=51200"),
    *("data.name=synthetic", "data.samples=15360", "data.batch=5120"),
    "precision=bfloat16",
)
"""The largest network of Narayanan et al. 2021, arXiv 2104.04473, table 1."""

COMMANDS = {
    "GPT-3-175B": (*GPT3, "--cluster", "dgx-a100", "--devices", "1024"),
    "ResNet-152": (
        *("resnet152", "data.name=synthetic", "data.samples=16384", "data.batch=8192"),
        *("--cluster", "abci", "--devices", "256"),
    ),
    "1.0 T parameters": (*TRILLION, "--cluster", "tpu-v5p", "--devices", "10240"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("all", "commands"), default="all")
    add_record_option(parser)
    args = parser.parse_args()
    whole = [one for name, words in COMMANDS.items() for one in command(name, words)]
    if args.record:
        write_result("plans_commands", whole)
    if args.what == "commands":
        return
    begun = time.perf_counter()
    resolved = resolve_config("resnet152", ("data.batch=32768",))
    subject = StepDescriber(resolved.config)
    rows = [row("the network read", time.perf_counter() - begun, "s")]
    print(f"ResNet-152 read: {rows[0]['value']:.1f} s")
    predictions = {}
    for mesh in (MeshShape(data=1024), MeshShape(data=512, spatial_h=2)):
        for again in ("first", "again", "again"):
            begun = time.perf_counter()
            made = predict(subject.describe(Plan(mesh=mesh)), load_cluster("abci"))
            took = time.perf_counter() - begun
            if mesh.devices == mesh.data:
                case = "the first" if again == "first" else "warm"
                predictions[f"a prediction, {case}"] = took
            print(f"{made.plan}, {again}: {took:.2f} s, step {made.step_s:.3f} s")
    rows += [row(case, took, "s") for case, took in predictions.items()]
    for devices in (64, 256, 1024):
        rows += order(subject, resolved, devices, ())
    rows += order(subject, resolved, 1024, ("int8", "sparse"))
    if args.record:
        write_result("plans", rows)


def command(network, words):
    """Print how long a whole `jaxdist plan` takes, its start included.

    Seconds are those of a core, in the program and not in the system: what else runs on
    the machine is not in them, but for what caches and shared cores cost.

    Returns the rows that are recorded.
    """
    # Of all children that were waited for so far: the difference is this one's.
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    told = subprocess.run(
        [sys.executable, "-m", "jaxdist.launch", "plan", *words, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    took = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    core = after.ru_utime - before.ru_utime
    found = json.loads(told.stdout)
    best = found["plans"][0]
    print(
        f"{words[0]} on {words[-1]}: {took:.1f} s, {core:.1f} s of a core; "
        f"{found['layouts']:,} ordered, {found['described']} described; "
        f"{best['plan']['mesh']}, {best['step_s']:.2f} s a step"
    )
    case = f"{network} on {int(words[-1]):,} of {words[-3]}"
    return [
        row(case, core, "s", figure="command"),
        row(case, found["layouts"], "", figure="layouts"),
        row(case, found["described"], "", figure="described"),
    ]


def order(subject: StepDescriber, resolved: ResolvedConfig, devices, lossy):
    """Print how long the plans of so many devices take to order, and return it."""
    question = LayoutQuery(
        resolved=resolved,
        describer=subject,
        cluster=load_cluster("abci"),
        devices=devices,
    )
    begun = time.perf_counter()
    coarse = question.cost_estimate(lossy)
    listed = time.perf_counter() - begun
    begun = time.process_time()
    order_by_estimate(coarse, 16e9)
    took = time.process_time() - begun
    print(
        f"{devices} devices: {len(coarse.space):,} plans listed in {listed:.2f} s "
        f"(what axes move described), ordered in {took:.2f} s, one core"
    )
    case = f"plans on {devices:,} devices" + ", with lossy sums" * bool(lossy)
    return [
        row(f"{case}, ordered", took, "s"),
        row(f"{case}, listed", listed, "s"),
        row(f"{case}, number", len(coarse.space), ""),
    ]


if __name__ == "__main__":
    main()
