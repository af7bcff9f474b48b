"""What compressed gradients do to accuracy: the same seeds, summed exactly and not.

    python benchmarks/reducers.py [--seeds 10] [--epochs 15] [--folder runs/reducers]

Each row is a set of runs of `jaxdist train digits`; differences are taken seed by seed
to the exact sum on the same devices, in points of held-out accuracy and in parts of the
held-out loss. The row `exact, 4 devices` is how far two exact runs are apart that
differ in the order of additions alone. Runs that are done are not repeated.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

EIGHT = ("plan.mesh.data=8", "plan.mesh.spatial_h=1")
ROWS = {
    "exact": EIGHT,
    "exact, 4 devices": ("plan.mesh.data=4", "plan.mesh.spatial_h=1"),
    "int8": (*EIGHT, "plan.reduce.via=int8"),
    "top_k 1 %, corrected": (
        *EIGHT,
        "plan.reduce.via=top_k",
        "plan.reduce.momentum=0.9",
        "optim.momentum=0",
        "plan.reduce.warm_up=46",  # two epochs
    ),
    "sparse 1 %": (*EIGHT, "plan.reduce.via=sparse", "plan.reduce.warm_up=46"),
    "power, rank 2": (*EIGHT, "plan.reduce.via=power", "plan.reduce.rank=2"),
    "sign": (*EIGHT, "plan.reduce.via=sign"),
}


def score(folder: Path, row: str, seed: int, epochs: int) -> dict:
    """Train once, or read what an earlier call has trained."""
    name = f"{row.replace(' ', '').replace('%', '').replace(',', '-')}-{seed}"
    summary = folder / name / "summary.json"
    if not summary.exists():
        words = [f"run.dir={folder}", f"run.name={name}", f"seed={seed}"]
        words += [f"epochs={epochs}", *ROWS[row]]
        command = [sys.executable, "-m", "jaxdist.launch", "train", "digits", *words]
        subprocess.run(command, check=True, capture_output=True)
    return json.loads(summary.read_text())


def interval(values: list[float]) -> str:
    """Return the mean and the half-width of its 95 % interval (Student's t, n > 4)."""
    t = {5: 2.78, 10: 2.26}.get(len(values), 2.1)
    spread = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):+7.3f} ± {t * spread:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=Path("runs/reducers"))
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    given = parser.parse_args()
    first: list[dict] = []
    for row in given.rows:
        runs = [score(given.folder, row, i, given.epochs) for i in range(given.seeds)]
        first = first or runs
        points = [100 * (a["accuracy"] - b["accuracy"]) for a, b in zip(runs, first)]
        losses = [100 * (a["loss"] / b["loss"] - 1) for a, b in zip(runs, first)]
        mean = 100 * statistics.mean(run["accuracy"] for run in runs)
        sent = sum(runs[0]["bytes_by_collective"].values())
        print(
            f"{row:22} {mean:6.2f} %   points {interval(points)}   "
            f"loss {interval(losses)} %   {sent:>9,} bytes a step",
            flush=True,
        )


if __name__ == "__main__":
    main()
