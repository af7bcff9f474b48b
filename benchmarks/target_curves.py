"""A TPU calibrated by its compiler, held against programs of networks left out.

    python benchmarks/target_curves.py                # with jaxdist[tpu]
    python benchmarks/target_curves.py --only vgg16

What `jaxdist calibrate target tpu-v5p` writes predicts the compute of networks that are
none of those it compiles. The compiler's cycles of their whole steps are the truth: by
step, and by layer. Memory is predicted and compiled for every network, fitted or not.
Answers of the compiler are kept where `jaxdist compile` keeps them.
"""

import argparse
import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from record import add_record_option, row, write_result

from jaxdist.launch.devices.jax_environment import target_answer_folder
from jaxdist.meshes.targets.compilers import prepare_compilation
from jaxdist.meshes.targets.target import host_target

CHIP = "tpu-v5p"
SCORED = {
    "ResNet-50, 256 images a chip": (
        *("resnet50", "data.name=synthetic", "data.batch=1024"),
    ),
    "VGG-16, 128 images a chip": (*("vgg16", "data.name=synthetic", "data.batch=512"),),
    "GPT-2 small, 8 x 1,024 tokens a chip": (
        *("gpt2_small", "data.name=synthetic", "data.batch=32"),
    ),
    "Llama 1B, 2 x 2,048 tokens a chip": (
        *("llama", "data.name=synthetic", "data.batch=8"),
    ),
    "Llama tiny, 8 x 16 tokens a chip": (
        *("llama", "data.name=synthetic", "model.size=tiny"),
        *("data.context=16", "data.batch=32"),
    ),
    "CosmoFlow, 4 volumes a chip": (
        *("cosmoflow", "data.name=synthetic", "data.batch=16"),
    ),
}
LAYOUTS = {
    "data 4": (),
    "fsdp 4": ("plan.mesh.data=1", "plan.mesh.fsdp=4"),
    "data 4, blocks computed again": ("plan.remat=true",),
}
"""Layouts in which memory is compared, of networks that compile fast."""


def add(rows: list[dict[str, Any]], case: str, value: float, unit: str, what: str):
    """Add a figure, and print it."""
    rows.append(row(case, value, unit, figure=what))
    print(f"{case}: {what} {value:,.4g} {unit}", flush=True)


def score_compute(rows, only, target, cluster, folder) -> None:
    """Predict the compute of networks left out, and hold it against their programs."""
    from jaxdist.launch.analysis.target_curves import compile_network, score_network

    steps, layers = [], []
    for case, words in SCORED.items():
        if only not in " ".join(words):
            continue
        answer = compile_network(words, target, folder)
        score = score_network(answer, cluster)
        sheet = score_network(answer, target.cluster)
        steps.append(100 * abs(score.step_error))
        layers.append(100 * score.layer_error)
        add(rows, case, 1e3 * score.compiled_s, "ms", "compute, compiled")
        add(rows, case, 1e3 * score.predicted_s, "ms", "compute, predicted")
        add(rows, case, 100 * score.step_error, "%", "step off by")
        add(rows, case, layers[-1], "%", "layers off by")
        add(rows, case, 100 * score.median_layer_error, "%", "layers off by, median")
        add(rows, case, 100 * sheet.step_error, "%", "step off by, data sheet")
    for what, errors in (("step", steps), ("layers", layers)):
        add(
            rows,
            "networks left out",
            float(np.mean(errors)),
            "%",
            f"{what} off by, mean",
        )
        add(rows, "networks left out", max(errors), "%", f"{what} off by, worst")


def score_memory(rows, target, cluster, folder) -> None:
    """Predict the memory of a device, and hold it against what the compiler allots."""
    from jaxdist.launch.analysis.target_curves import FITTED_NETWORKS, compile_network
    from jaxdist.oracle.predict import predict

    errors = []
    for words in (*FITTED_NETWORKS, *SCORED.values()):
        for layout, keys in LAYOUTS.items():
            # Whole networks take minutes to compile: theirs is the layout above.
            if keys and words in SCORED.values():
                continue
            answer = compile_network((*words, *keys), target, folder)
            plan = answer.describer.config.plan
            found = predict(answer.describer.describe_traced(plan), cluster)
            errors.append(100 * (found.memory_bytes / answer.step.memory_bytes - 1))
            case = f"{' '.join(words)}, {layout}"
            add(rows, case, errors[-1], "%", "memory off by")
    add(rows, "memory", float(np.mean(np.abs(errors))), "%", "mean")
    add(rows, "memory", max(map(abs, errors)), "%", "worst")
    add(rows, "memory", len(errors), "", "steps")


def main() -> int:
    """Calibrate, score, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="networks whose words have this one")
    parser.add_argument("--no-memory", action="store_true", help="compute alone")
    add_record_option(parser)
    args = parser.parse_args()
    target, folder = host_target(CHIP), target_answer_folder(os.environ)
    prepare_compilation(target)

    # From here on jax is imported.
    from jaxdist.launch.analysis.target_curves import (
        FITTED_NETWORKS,
        compile_network,
        fit_device,
        memory_speed,
    )

    fitted = [compile_network(words, target, folder) for words in FITTED_NETWORKS]
    networks = [one.network for one in fitted]
    device = fit_device(target, networks, memory_speed(target))
    cluster = replace(target.cluster, device=device)
    rows: list[dict[str, Any]] = []
    score_compute(rows, args.only, target, cluster, folder)
    if not args.no_memory:
        score_memory(rows, target, cluster, folder)
    if args.record:
        write_result("target_curves", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
