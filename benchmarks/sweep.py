"""A sweep of 20 trials that is killed twice: is a trial lost, or made twice?

    python benchmarks/sweep.py

`jaxdist sweep` is started, killed with SIGKILL in the middle of its trials, started
again, killed again, and started a third time, which makes the rest. Its trials are
counted in the study and in the folders of their runs, and the steps of each in its log.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from record import add_record_option, row, write_result

TRIALS = 20
KILLS = 6, 13
"""Trials in whose middle the sweep is killed, from 0."""
WORDS = (
    *("sweep", "digits", "optim.lr=1e-3..1:log", "epochs=1,2", "model.width=4,8"),
    *("plan.mesh.data=1", "plan.mesh.spatial_h=1", "checkpoint.every_steps=5"),
    *("--trials", str(TRIALS), "--workers", "2", "--name", "swept"),
)


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the sweep, or go on with it."""
    command = [sys.executable, "-m", "jaxdist.launch", *WORDS, "--dir", str(folder)]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_in(child: subprocess.Popen[bytes], metrics: Path) -> None:
    """Kill the sweep and its trials once a trial has logged a step."""
    while not (metrics.exists() and metrics.stat().st_size):
        if child.poll() is not None:
            raise SystemExit(
                f"the sweep ended with {child.returncode} before {metrics}"
            )
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def repeated_steps(run: Path) -> int:
    """Return how many steps a run has logged more than once."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    steps = Counter(each["step"] for each in rows if each["kind"] == "train")
    return sum(count > 1 for count in steps.values())


def main() -> int:
    """Sweep, kill, count; 1 where a trial is lost or was made twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_record_option(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for trial in KILLS:
            run = folder / "swept" / f"trial-{trial:03d}"
            kill_in(start(folder), run / "metrics.jsonl")
        if start(folder).wait():
            raise SystemExit("the sweep failed")
        words = ["sweep", "swept", "--show", "--json", "--dir", str(folder)]
        shown = subprocess.run(
            [sys.executable, "-m", "jaxdist.launch", *words],
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(shown.stdout)["found"]
        states = Counter(each["state"] for each in found)
        runs = sorted((folder / "swept").glob("trial-???"))
        drawn = {json.dumps(each["params"], sort_keys=True) for each in found}
        figures = {
            "trials in the study": len(found),
            "done": states["done"],
            "pruned": states["pruned"],
            "failed or running": states["failed"] + states["running"],
            "folders of runs": len(runs),
            "different draws": len(drawn),
            "steps that a run has twice": sum(map(repeated_steps, runs)),
        }
    case = f"{TRIALS} trials of digits, killed in trials {KILLS[0]} and {KILLS[1]}"
    rows = [row(case, value, "", figure=name) for name, value in figures.items()]
    for each in rows:
        print(each["figure"], each["value"])
    if args.record:
        write_result(
            "sweep",
            rows,
            title="A sweep that is killed twice",
            measures="Trials of one sweep after two kills with SIGKILL: in its study, "
            "as folders, by what was drawn for them, and steps that are logged twice.",
            goal="one study, no trial lost, none made twice",
            not_run="takes minutes",
        )
    is_whole = figures["trials in the study"] == figures["folders of runs"] == TRIALS
    return int(not is_whole or figures["steps that a run has twice"] > 0)


if __name__ == "__main__":
    sys.exit(main())
