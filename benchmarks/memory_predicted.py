"""Predicted bytes of a device beside the compiler's own, over networks and layouts.

    python benchmarks/memory_predicted.py [--only NAME]

Every step is compiled for 8 fake devices; nothing is run. A line a pair: bytes of the
state (exact), the total, and temp + arguments + outputs - alias of XLA; then the mean,
the 95th percentile and the worst of the errors.
"""

import argparse
import json
import os
from collections.abc import Iterator

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import numpy as np
from record import add_record_option, row, write_result

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.build import build_mesh
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.train.build_layout import build_layout
from jaxdist.train.program import compile_program

TINY = ("data.name=synthetic", "data.samples=64", "data.batch=32", "model.size=tiny")
SUBJECTS = {
    "digits": ("digits",),
    "resnet50": ("resnet50", *TINY),
    "vgg16": ("vgg16", *TINY),
    "googlenet": ("googlenet", *TINY),
    "alexnet": ("alexnet", *TINY),
    "cosmoflow": ("cosmoflow", *TINY),
    "captions": ("captions",),
    "characters": ("characters",),
}
PLANS = (
    (),
    ("plan.mesh.data=4",),
    ("plan.mesh.data=2", "plan.mesh.spatial_h=2"),
    ("plan.mesh.data=2", "plan.mesh.tensor=2"),
    ("plan.mesh.fsdp=4",),
    ("plan.mesh.data=2", "plan.mesh.fsdp=2", "plan.remat=true"),
    ("plan.mesh.pipe=2", "plan.mesh.data=2", "optim.accumulate=4"),
    (
        "plan.mesh.pipe=2",
        "plan.mesh.data=1",
        "optim.accumulate=4",
        "plan.pipe.schedule=gpipe",
    ),
    ("plan.mesh.data=4", "plan.reduce.algorithm=int8"),
)
ALONE = ("plan.mesh.data=1", "plan.mesh.spatial_h=1")


def pairs(only) -> Iterator[tuple[str, Experiment | str]]:
    for name, (experiment, *words) in SUBJECTS.items():
        if only and name != only:
            continue
        for plan in PLANS:
            try:
                yield name, resolve_config(experiment, (*words, *ALONE, *plan)).config
            except BadInput as error:
                yield name, str(error).splitlines()[0]


def compiled(subject: StepDescriber, plan: Plan):
    layout = build_layout(subject.task, plan, build_mesh(plan), subject.shapes)
    return compile_program(layout).memory_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME")
    add_record_option(parser)
    args = parser.parse_args()
    if args.only and args.record:
        parser.error("a record is of all networks")
    cluster, errors, worst = load_cluster("testbed"), [], {}
    for name, config in pairs(args.only):
        head = {"network": name}
        try:
            if isinstance(config, str):
                raise BadInput(config)
            subject = StepDescriber(config)
            found = predict(subject.describe_traced(config.plan), cluster)
            measured = compiled(subject, config.plan)
        except BadInput as error:
            print(
                json.dumps(head | {"refused": str(error).splitlines()[0]}), flush=True
            )
            continue
        errors.append(found.memory_bytes / measured - 1)
        worst[errors[-1]] = f"{name}, {config.plan.title}"
        print(
            json.dumps(
                head
                | {
                    "plan": config.plan.title,
                    "remat": config.plan.remat,
                    "predicted": found.memory_bytes,
                    "compiled": measured,
                    "error": round(errors[-1], 4),
                    "terms": found.memory_by_term,
                }
            ),
            flush=True,
        )
    sizes, most = np.abs(errors), max(errors, key=abs)
    errors_of_all = {
        "pairs": len(errors),
        "mean": float(sizes.mean()),
        "p95": float(np.percentile(sizes, 95)),
        "worst": most,
    }
    print(json.dumps(errors_of_all))
    if args.record:
        n = len(errors)
        rows = [
            row("all, mean error", 100 * errors_of_all["mean"], "%", n=n),
            row("all, 95th percentile", 100 * errors_of_all["p95"], "%", n=n),
            row(f"all, worst: {worst[most]}", 100 * most, "%", n=n),
        ]
        write_result("memory_predicted", rows)


if __name__ == "__main__":
    main()
