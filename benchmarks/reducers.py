"""What compressed gradients do to accuracy: the same seeds, summed exactly and not.

    python benchmarks/reducers.py digits [--seeds 10] [--folder runs/reducers]
    python benchmarks/reducers.py fashion_mnist --data FOLDER
    python benchmarks/reducers.py characters --data input.txt --seeds 5

Each row is a set of runs of `jaxdist train`; differences are taken seed by seed to the
exact sum on the same devices, in points of held-out accuracy and in parts of the
held-out loss. The row `exact, other devices` is how far exact runs are apart that
differ in the order of additions alone. Runs that are done are not repeated.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from record import add_record_option, row, write_result

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 95 %, n = 2 ... 10
TASKS = {
    "digits": ("epochs=15", "plan.mesh.spatial_h=1"),
    "fashion_mnist": ("data.size=14", "epochs=24"),
    "characters": (
        *("epochs=0.4", "data.context=64", "model.depth=2", "model.embed=64"),
        *("model.hidden=192", "data.eval_batch=64"),
    ),
}
DEVICES = {"digits": (8, 4), "fashion_mnist": (4, 2), "characters": (4, 2)}
WARM_UP = {"digits": 46, "fashion_mnist": 170, "characters": 49}
"""Exact steps before a sparse sum: about an eighth of all."""


def rows(task: str) -> dict[str, tuple[str, ...]]:
    """Return the settings of every row."""
    devices, others = DEVICES[task]
    here = (*TASKS[task], f"plan.mesh.data={devices}")
    warm = f"plan.reduce.warmup_steps={WARM_UP[task]}"
    moved = ("plan.reduce.momentum=0.9", "optim.momentum=0", warm)
    return {
        "exact": here,
        "exact, other devices": (*TASKS[task], f"plan.mesh.data={others}"),
        "int8": (*here, "plan.reduce.algorithm=int8"),
        "top_k 1 %, corrected": (*here, "plan.reduce.algorithm=top_k", *moved),
        "sparse 1 %, corrected": (*here, "plan.reduce.algorithm=sparse", *moved),
        "sparse 1 %": (*here, "plan.reduce.algorithm=sparse", warm),
        "power, rank 2": (*here, "plan.reduce.algorithm=power", "plan.reduce.rank=2"),
        "sign": (*here, "plan.reduce.algorithm=sign"),
    }


def score(folder: Path, task: str, sums: str, seed: int, data: str) -> dict[str, Any]:
    """Train once, or read what an earlier call has trained."""
    plain = sums.replace(" ", "").replace("%", "").replace(",", "-")
    name = f"{task}-{plain}-{seed}"
    summary = folder / name / "summary.json"
    if not summary.exists():
        words = [f"run.dir={folder}", f"run.name={name}", f"seed={seed}"]
        words += [*rows(task)[sums], *[f"data.path={data}"] * bool(data)]
        command = [sys.executable, "-m", "jaxdist.launch", "train", task, *words]
        subprocess.run(command, check=True, capture_output=True)
    return json.loads(summary.read_text())


def interval(values: list[float]) -> float | None:
    """Return the half-width of the mean's 95 % interval (Student's t)."""
    if len(values) < 2:
        return None
    t = STUDENT[min(len(values) - 2, len(STUDENT) - 1)]
    return t * statistics.stdev(values) / len(values) ** 0.5


def written(values: list[float]) -> str:
    """Write a mean with its interval."""
    half = interval(values)
    mean = f"{statistics.mean(values):+7.3f}"
    return mean if half is None else f"{mean} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--data", default="", help="folder or file of the task's data")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("runs/reducers"))
    parser.add_argument("--rows", nargs="*", default=list(rows("digits")))
    add_record_option(parser)
    given = parser.parse_args()

    def runs(sums: str) -> list[dict[str, Any]]:
        each = range(given.seeds)
        return [score(given.folder, given.task, sums, i, given.data) for i in each]

    exact, made = runs("exact"), []
    for name in given.rows:
        found = runs(name)
        points = [100 * (a["accuracy"] - b["accuracy"]) for a, b in zip(found, exact)]
        losses = [100 * (a["loss"] / b["loss"] - 1) for a, b in zip(found, exact)]
        mean = 100 * statistics.mean(run["accuracy"] for run in found)
        sent = sum(found[0]["bytes_by_collective"].values())
        print(
            f"{name:22} {mean:6.2f} %   points {written(points)}   "
            f"loss {written(losses)} %   {sent:>9,} bytes a step",
            flush=True,
        )
        n = len(found)
        made.append(row(name, mean, "%", figure="accuracy", n=n))
        if name != "exact":
            for figure, unit, each in (
                ("difference", "points", points),
                ("loss, relative difference", "%", losses),
            ):
                middle, half = statistics.mean(each), interval(each)
                made.append(
                    row(name, middle, unit, figure=figure, interval_95=half, n=n)
                )
        made.append(row(name, sent, "B", figure="a step", n=n))
    if given.record:
        write_result(f"reducers_{given.task}", made)


if __name__ == "__main__":
    main()
