"""What a loss costs an elastic run: seconds until it trains with fewer, and with all.

    python benchmarks/elastic.py --trials 5

A tiny network on `jaxdist launch local -n 2:3`. In every trial a process is killed; the
others go on, and when they have trained for some steps the lost one is taken back.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
from record import add_record_option, row, write_result

BATCH = 96
WORDS = (
    *("model.width=4", f"data.batch={BATCH}", "checkpoint.every_steps=5"),
    *("plan.mesh.data=3", "plan.mesh.spatial_h=1"),
)
LONG_S = 600


class Run:
    """A launcher with its processes, and what it writes."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder = folder / "digits"
        self.lines: list[tuple[float, str]] = []
        how = ("-n", "2:3", "--devices-per-process", "1", "--rejoin-after", args.after)
        where = (f"run.dir={folder}", f"data.dir={args.data or folder / 'data'}")
        words = ("train", "digits", *where, *WORDS, "epochs=10000")
        self.child = subprocess.Popen(
            [
                *(sys.executable, "-m", "jaxdist.launch", "launch", "local"),
                *map(str, how),
                *("--restarts", "1000", "--", *words),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.child.stdout or ():
            self.lines.append((time.time(), line.rstrip()))

    def step(self, after: float) -> dict[str, Any] | None:
        """The first step that was finished after a moment."""
        path = self.folder / "metrics.jsonl"
        rows = map(
            json.loads, path.read_text().split("\n")[:-1] if path.exists() else []
        )
        return next(
            (r for r in rows if r["kind"] == "train" and r["time"] > after), None
        )

    def said(self, words: str, after: float) -> float | None:
        """When a line with these words came after a moment."""
        return next(
            (t for t, line in list(self.lines) if t > after and words in line), None
        )

    def wait(self, what: Callable[[], Any]) -> Any:
        """Wait until something is there, and return it.

        Raises:
            SystemExit: the launcher has ended, or it takes too long.
        """
        end = time.monotonic() + LONG_S
        while not (found := what()):
            if self.child.poll() is not None or time.monotonic() > end:
                raise SystemExit("\n".join(line for _, line in self.lines[-40:]))
            time.sleep(0.01)
        return found

    def process(self, rank: int) -> psutil.Process:
        """The process of a rank."""
        for child in psutil.Process(self.child.pid).children(recursive=True):
            if child.environ().get("JAXDIST_RANK") == str(rank):
                return child
        raise SystemExit(f"no process {rank}")


def trial(run: Run, chance: random.Random) -> dict[str, float]:
    """Kill a process; wait until the others train, and until all do."""
    run.wait(lambda: run.step(0))
    time.sleep(chance.uniform(0.5, 1.5))
    killed = time.time()
    run.process(chance.randrange(3)).kill()
    noticed = run.wait(lambda: run.said("error: process", killed))
    ended = run.wait(lambda: run.said("lost: ", killed))
    fewer = run.wait(lambda: run.step(ended))
    recalled = run.wait(lambda: run.said("more places are there", ended))
    # Behind the last line end is a line that is being written.
    *lines, _ = (run.folder / "spans.jsonl").read_text().split("\n")
    last = [json.loads(line) for line in lines]
    asked = max(row["start"] for row in last if row["name"] == "compute")
    all_ = run.wait(lambda: run.step(recalled))
    return {
        "noticed_s": noticed - killed,
        "fewer_s": fewer["time"] - killed,
        "all_s": all_["time"] - asked,
    }


def main() -> None:
    """Do the trials and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--after", type=float, default=20)
    parser.add_argument("--data", help="folder of prepared data")
    parser.add_argument("--seed", type=int, default=0)
    add_record_option(parser)
    args = parser.parse_args()
    chance, found = random.Random(args.seed), []
    for _ in range(args.trials):
        # A place that is lost again rests twice as long: each has a run of its own.
        with tempfile.TemporaryDirectory() as folder:
            run = Run(Path(folder), args)
            found.append(trial(run, chance))
            print(json.dumps(found[-1]), flush=True)
            run.child.terminate()
            run.child.wait()
    for key in found[0]:
        values = [row[key] for row in found]
        print(
            f"{key:10} median {statistics.median(values):6.2f}  most {max(values):6.2f}"
        )
    if args.record:
        rows = []
        for case, key in (("two train again", "fewer_s"), ("three again", "all_s")):
            values = [trial[key] for trial in found]
            n, middle = len(values), statistics.median(values)
            rows.append(row(f"{case}, median", middle, "s", n=n))
            rows.append(row(f"{case}, most", max(values), "s", n=n))
        write_result("elastic", rows)


if __name__ == "__main__":
    main()
