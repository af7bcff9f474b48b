"""Vessels in volumes: seconds until the Dice of their voxels is 0.9, on split volumes.

    python benchmarks/vessels.py
    python benchmarks/vessels.py --run runs/vessels

Trains the experiment `vessels` as `jaxdist train vessels` does, volumes cut over 2 x 2
fake devices beside 2 that share batches, and reads what the run has recorded. With
`--run` it reads a run that is there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from record import add_record_option, row, write_result

GOAL = 0.9
"""Dice of vessels, over all held-out voxels."""


def train(folder):
    """Train in a folder of its own; returns that of the run."""
    words = "-m", "jaxdist", "train", "vessels", "run.name=vessels", f"run.dir={folder}"
    subprocess.run([sys.executable, *words], check=True)
    return folder / "vessels"


def measured(run):
    """Return the rows of a run: its scores, and when it met the goal."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    tests = [each for each in rows if each["kind"] == "test"]
    whole = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    case = "vessels, data 2 x spatial_d 2 x spatial_h 2"
    found = [
        row(case, tests[-1]["dice_1"], "", figure="Dice of vessels"),
        row(case, tests[-1]["mean_iou"], "", figure="mean IoU"),
        row(case, whole["steps"], "steps", figure="steps"),
        row(case, whole["wall_s"], "s", figure="whole run"),
        row(case, whole["first_step_s"], "s", figure="until the first step"),
    ]
    if met := next((each for each in tests if each["dice_1"] >= GOAL), None):
        # The clock of the rows, from the end of the first step on.
        after = met["time"] - rows[0]["time"] + whole["first_step_s"]
        found.append(row(case, after, "s", figure=f"until a Dice of {GOAL}"))
        found.append(
            row(case, met["step"], "steps", figure=f"until a Dice of {GOAL}, steps")
        )
    return found


def main(args):
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(args.run or train(Path(folder)))
    for each in rows:
        print(f"{each['figure']:32} {each['value']:>10} {each['unit']}")
    if args.record:
        write_result(
            "vessels",
            rows,
            title="Vessels in volumes",
            measures="The experiment `vessels`: a small 3-D U-Net on volumes of "
            "24 x 24 x 24 voxels, eight fake devices on two cores. Dice and IoU are of "
            "the counts over all held-out voxels.",
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="folder of a run that is there")
    add_record_option(parser)
    main(parser.parse_args())
