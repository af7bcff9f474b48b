"""Activations kept, computed again or on the host: what a planner chose, compiled.

    python benchmarks/activation_policies.py          # with jaxdist[tpu,cuda12]

Batches that do not fit with all activations kept. `jaxdist plan` chooses; the step of
its plan and those of the two simple policies are compiled by the target's compiler:
memory of the device and the host, and on TPUs the estimated step. A program that is
not its plan's, or a chosen plan that does not fit, ends the benchmark with an error.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from record import add_record_option, row, write_result
from targets import compile_step

LLAMA = ("llama", "data.name=synthetic", "precision=bfloat16", "optim.accumulate=1")
BATCHES = {
    "Llama 1B, 8,192 tokens a device": (
        (("tpu-v5e:4x4", "tpu-v5e"),),
        (*LLAMA, "data.batch=16", "data.context=8192"),
        ("plan.mesh.data=2", "plan.mesh.fsdp=8", "plan.placement=data"),
    ),
    "Llama 1B, 129,024 tokens a device": (
        (("tpu-v5p:2x2x4", "tpu-v5p"), ("h100:2x8", "dgx-h100")),
        (*LLAMA, "data.batch=1008"),
        ("plan.mesh.data=1", "plan.mesh.fsdp=16"),
    ),
}
"""Targets and their clusters, words of the experiment, the mesh of the others."""
POLICIES = {
    "all kept": (),
    "blocks computed again": ("plan.remat=true",),
    "blocks on the host": ("plan.offload=block*",),
}


def chosen_plan(words, cluster, folder):
    """Return the file of the plan that a search finds for 16 devices."""
    path = Path(folder) / f"{cluster}.json"
    command = [sys.executable, "-m", "jaxdist.launch", "plan", *words]
    command += ["--cluster", cluster, "--devices", "16", "-o", str(path), "--force"]
    subprocess.run(command, check=True, capture_output=True)
    return path


def main():
    """Search, compile, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_record_option(parser)
    args = parser.parse_args()
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for batch, (targets, words, mesh) in BATCHES.items():
            for target, cluster in targets:
                plan = chosen_plan(words, cluster, folder)
                cases = {name: (*words, *mesh, *own) for name, own in POLICIES.items()}
                cases["what plan chose"] = (*words, "--plan", str(plan))
                for name, given in cases.items():
                    found = compile_step(given, target)
                    wrong += bool(found["differences"])
                    wrong += name == "what plan chose" and not found["fits"]
                    case = f"{batch}, {target}: {name}"
                    figures = [
                        ("memory", found["memory_bytes"] / 1e9, "GB"),
                        ("fits", "yes" if found["fits"] else "no", ""),
                        ("on the host", found["host_bytes"] / 1e9, "GB"),
                    ]
                    if found["step_s"] is not None:
                        step = 1e3 * found["step_s"]
                        figures.append(("estimated step", step, "ms"))
                    for figure, value, unit in figures:
                        rows.append(row(case, value, unit, figure=figure))
                        print(case, figure, value, unit, flush=True)
    if args.record:
        write_result("activation_policies", rows)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
