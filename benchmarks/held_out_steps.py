"""Steps that others measured beside our predictions from data sheets, as a table.

    python benchmarks/held_out_steps.py FOLDER > steps.csv

FOLDER has paradl/measured_iterations.csv (github.com/ankahira/paraDL, cc23ef09) and
fsdp_rows/measured.csv (github.com/mosaicml/llm-foundry, 8c8dd48f). No number of a
cluster was fitted to them. The rows are those of `jaxdist/oracle/held_out_steps.csv`
behind the executed plans, and are made again where predictions change. Ten minutes.
"""

import csv
import sys
from pathlib import Path

from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.training.job.abstract_step import StepDescriber
from jaxdist.meshes.clusters.load import load_cluster
from jaxdist.oracle.predict import predict
from jaxdist.oracle.step_errors import layout_kind

# Width, heads and blocks of MPT's networks.
MPT = {
    "125m": (768, 12, 12),
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
}
PEAK = {"h100": 989e12, "a100_80": 312e12}


def predicted(cluster, words):
    """Return the layout's kind and the seconds of its step."""
    config = resolve_config(words[0], words[1:]).config
    machine = load_cluster(cluster)
    described = StepDescriber(config, machine.device.platform).describe(config.plan)
    return layout_kind(config.plan), predict(described, machine).step_s


def paradl(path: Path):
    """Yield ParaDL's runs of layouts that we have, statistics of a device its own."""
    for row in csv.DictReader(path.open()):
        if row["preferred"] != "1" or "filter" in row["strategy"]:
            continue
        gpus, how, model = int(row["gpus"]), row["strategy"], row["model"]
        split = 1 if how == "data" else 2
        mesh = {"data": gpus // split**2, "spatial_h": split, "spatial_w": split}
        words = [f"plan.mesh.{axis}={size}" for axis, size in mesh.items()]
        batch = row["global_batch"]
        kind, step = predicted(
            "abci", [model, "model.norm=replica", *words, f"data.batch={batch}"]
        )
        setting, plan = f"{model} on {gpus} GPUs", f"{how}; batch {batch}"
        measured = float(row["median_s_per_iter"])
        yield "abci", model, gpus, setting, kind, plan, step, measured


def mpt(path: Path):
    """Yield llm-foundry's runs; seconds from MFU, since samples/s are rounded."""
    for row in csv.DictReader(path.open()):
        width, heads, blocks = MPT[row["model"]]
        gpus, batch, context = (int(row[x]) for x in ("gpus", "batch", "context"))
        # Of a sample, as MFU counts: 6 N + 12 L H Q T a token (Chowdhery et al. 2022,
        # arXiv:2204.02311, appendix B).
        flops = 6 * int(row["parameters"]) * context + 12 * blocks * width * context**2
        share = float(row["mfu"]) / 100
        measured = batch * flops / (share * PEAK[row["device"]] * gpus)
        model = {"depth": blocks, "embed": width, "heads": heads, "context": context}
        words = [
            *(f"model.{key}={value}" for key, value in model.items()),
            *("model.vocabulary=50368", "precision=bfloat16", "plan.mesh.data=1"),
            *(f"data.context={context}", f"data.batch={batch}"),
            *(f"plan.mesh.fsdp={gpus}", "plan.zero=3"),
            f"optim.accumulate={row['accumulate']}",
            *["plan.remat=true"] * int(row["remat"]),
        ]
        cluster = f"dgx-{row['device'][:4]}"
        kind, step = predicted(cluster, ["gpt2_small", *words])
        plan = f"fsdp; batch {batch}; context {context}; remat {row['remat']}"
        yield cluster, f"gpt {row['model']}", gpus, "", kind, plan, step, measured


def main():
    folder, out = Path(sys.argv[1]), csv.writer(sys.stdout, lineterminator="\n")
    for file, read in (
        ("paradl/measured_iterations.csv", paradl),
        ("fsdp_rows/measured.csv", mpt),
    ):
        for *what, step, measured in read(folder / file):
            out.writerow([*what, f"{step:.5g}", f"{measured:.5g}"])
            sys.stdout.flush()


if __name__ == "__main__":
    main()
