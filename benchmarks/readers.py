"""A live run that saves every other step, beside loops that read its folder.

    python benchmarks/readers.py
    python benchmarks/readers.py --saves 50 --readers 2

Trains digits with a checkpoint every second step. Meanwhile processes read the run as
people do, one after the other without a pause, from its first checkpoint on: `jaxdist
eval`, `ckpt verify`, `ckpt ls`, `report` and `jaxdist.load`. No
save may fail, and every reader finds a whole checkpoint.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from record import add_record_option, row, write_result

BATCH = 64
SAMPLES = 1437
"""Of the training part of digits."""
LOAD = "import jaxdist, sys; jaxdist.load(sys.argv[1])"


def command(*words: str) -> list[str]:
    """Return a command of jaxdist."""
    return [sys.executable, "-m", "jaxdist.launch", *words]


def reads(run: Path, number: int) -> list[list[str]]:
    """Return what one reader does in turn; each begins with another command."""
    every = [
        command("eval", str(run)),
        command("ckpt", "verify", str(run)),
        command("ckpt", "ls", str(run)),
        command("report", str(run)),
        [sys.executable, "-c", LOAD, str(run)],
    ]
    turn = number % len(every)
    return every[turn:] + every[:turn]


def read_until_done(
    run: Path, number: int, training: subprocess.Popen[bytes]
) -> Counter[str]:
    """Read a run in a loop; return how often a command ended with which code."""
    codes: Counter[str] = Counter()
    # A checkpoint has the number of its step as its name once it is whole.
    while not any(run.glob("checkpoints/[0-9]*")) and training.poll() is None:
        time.sleep(0.1)
    while training.poll() is None:
        for words in reads(run, number):
            done = subprocess.run(words, check=False, capture_output=True, text=True)
            failed = done.returncode != 0
            codes["failed" if failed else "read"] += 1
            if failed:
                print(" ".join(words), done.stderr[-2000:], file=sys.stderr)
            if training.poll() is not None:
                break
    return codes


def main() -> int:
    """Measure, print, and fail where a save or a reader failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saves", type=int, default=500)
    parser.add_argument("--readers", type=int, default=8)
    add_record_option(parser)
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "live"
        words = (
            *("train", "digits", f"run.dir={folder}", "run.name=live", "--json"),
            f"epochs={2 * args.saves * BATCH / SAMPLES}",
            *("plan.mesh.data=2", "plan.mesh.spatial_h=1", "checkpoint.every_steps=2"),
        )
        with (Path(folder) / "log").open("w+") as log:
            training = subprocess.Popen(command(*words), stdout=log, stderr=log)
            with ThreadPoolExecutor(args.readers) as pool:
                loop = partial(read_until_done, run, training=training)
                found = sum(pool.map(loop, range(args.readers)), Counter[str]())
            log.seek(0)
            said = log.read()
        lines = (run / "spans.jsonl").read_text().splitlines()
        # A long phase has a line as it begins and one as it ends.
        spans = [span for span in map(json.loads, lines) if "seconds" in span]
        saves = sum(span["name"] == "checkpoint" for span in spans)
    if training.returncode:
        print(said[-4000:], file=sys.stderr)
    print(
        f"training ended with {training.returncode} after {saves} saves; "
        f"{found['read']} reads, {found['failed']} failed"
    )
    if args.record:
        write_result(
            "readers",
            [
                row("saves of a live run", saves, "", n=1),
                row("saves that failed", int(training.returncode != 0), ""),
                row("reads meanwhile", found["read"] + found["failed"], ""),
                row("reads that failed", found["failed"], ""),
            ],
        )
    return int(bool(training.returncode or found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
