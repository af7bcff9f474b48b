"""What a checkpoint a minute costs the loop: seconds it stands, and steps after it.

    python benchmarks/checkpoint_stall.py
    python benchmarks/checkpoint_stall.py --minutes 1 --apart 15 alexnet data.batch=8 \
        data.name=synthetic data.size=64 plan.mesh.data=1 optim.lr=1e-5

Trains an experiment for some minutes, by default ResNet-50 on small synthetic images,
with a checkpoint about once a minute, and reads the files of the run. The loop stands
while a state is copied; it is written behind the steps that follow, which may take
longer for it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from record import add_record_option, row, write_result

RESNET = (
    *("resnet50", "data.name=synthetic", "data.size=64", "data.batch=8"),
    *("plan.mesh.data=1", "plan.mesh.spatial_h=1", "optim.lr=1e-3"),
)
SAMPLES = 4000
"""Of an epoch, as synthetic data have them."""
FIRST = 20
"""Steps of a short run that says how long one takes."""


def trained(words: list[str], folder: Path, steps: int, every: int, batch: int) -> Path:
    """Train so many steps; return the folder of the run."""
    name = f"every-{every}"
    settings = (
        f"run.dir={folder}",
        f"run.name={name}",
        f"checkpoint.every_steps={every}",
        # Half a step less: their number is rounded up.
        f"epochs={(steps - 0.5) * batch / SAMPLES}",
        f"data.samples={SAMPLES}",
    )
    command = [sys.executable, "-m", "jaxdist.launch", "train", *words, *settings]
    subprocess.run([*command, "--json"], check=True, stdout=subprocess.DEVNULL)
    return folder / name


def lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def stall(run: Path) -> dict[str, Any]:
    """Say what the checkpoints of a run cost its loop."""
    spans = [row for row in lines(run / "spans.jsonl") if "seconds" in row]
    rows = [row for row in lines(run / "metrics.jsonl") if row["kind"] == "train"]
    last = rows[-1]["step"]
    saves = {
        row["step"]: row["seconds"]
        for row in spans
        if row["name"] == "checkpoint" and 0 < row["step"] < last
    }
    # A state is written in some seconds, so the steps of those are the ones after it.
    behind: list[float] = []
    others: list[float] = []
    ends = [row["time"] for row in rows if row["step"] in saves]
    for one in rows[FIRST // 2 :]:
        at = one["time"]
        since = min((at - end for end in ends if at > end), default=99.0)
        (behind if since < 10 else others).append(one["step_s"])
    step = statistics.median(others)
    after = statistics.median(behind)
    apart = statistics.mean(b - a for a, b in pairwise(ends))
    stood = statistics.mean(saves.values())
    return {
        "step_s": step,
        "checkpoints": len(saves),
        "apart_s": apart,
        "stood_s": stood,
        "longest_s": max(saves.values()),
        "stood_share": stood / 60,
        "step_within_10_s_after_s": after,
        "steps_after": len(behind),
    }


def main() -> None:
    """Print what was measured as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=4)
    help_ = "seconds between checkpoints; shares are always those of a minute"
    parser.add_argument("--apart", type=float, default=60, help=help_)
    parser.add_argument("words", nargs="*", default=RESNET)
    add_record_option(parser)
    args = parser.parse_args()
    words = list(args.words)
    batch = next(int(w.split("=")[1]) for w in words if w.startswith("data.batch="))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        short = trained(words, folder, FIRST, 10 * FIRST, batch)
        pace = [row for row in lines(short / "metrics.jsonl") if row["kind"] == "train"]
        step = statistics.median(row["step_s"] for row in pace[FIRST // 2 :])
        every, steps = round(args.apart / step), round(60 * args.minutes / step)
        run = trained(words, folder, steps + 1, max(every, 1), batch)
        size = sum(p.stat().st_size for p in run.rglob("*") if "checkpoints" in p.parts)
        found = stall(run)
    kept = min(found["checkpoints"] + 1, 3)
    if args.record:
        n, after = found["checkpoints"], found["step_within_10_s_after_s"]
        rows = [
            row("loop stands, of a minute", 100 * found["stood_share"], "%", n=n),
            row("a save", found["stood_s"], "s", n=n),
            row("the longest save", found["longest_s"], "s", n=n),
            row("step behind a save", 1e3 * after, "ms", n=found["steps_after"]),
            row("other steps", 1e3 * found["step_s"], "ms"),
        ]
        write_result("checkpoint_stall", rows)
    print(json.dumps({"words": words, **found, "checkpoint_MB": size / kept / 1e6}))


if __name__ == "__main__":
    main()
