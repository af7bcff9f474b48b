"""What a fault costs: seconds until it is noticed and until the run trains again.

    python benchmarks/faults.py kill --trials 5
    python benchmarks/faults.py term --trials 20
    python benchmarks/faults.py stop --trials 20

One run of a tiny network under `jaxdist launch local --restarts`; in every trial a
random process of it is sent SIGKILL, SIGTERM or SIGSTOP at a random moment.
"""

import argparse
import json
import os
import random
import signal
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

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
SMALL = ("model.width=4", "data.batch=64", "epochs=1000", "checkpoint.every_steps=5")
LONG_S = 300


class Run:
    """A launcher with its processes, and what it writes."""

    def __init__(self, folder: Path, processes: int, trials: int, hang_s: float):
        self.metrics = folder / "digits" / "metrics.jsonl"
        self.lines: list[tuple[float, str]] = []
        # What fails again and again waits longer each time: a kill has its own run.
        how = ("-n", processes, "--devices-per-process", 1, "--restarts", trials)
        where = (f"run.dir={folder}", f"data.dir={folder.parent / 'data'}")
        words = ("train", "digits", *where, *SMALL, f"run.hang_s={hang_s}")
        command = [sys.executable, "-m", "jaxdist.launch", "launch", "local"]
        self.child = subprocess.Popen(
            [*command, *map(str, how), "--", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.child.stdout or ():
            self.lines.append((time.time(), line.rstrip()))

    def steps(self, after: float = 0.0) -> list[dict[str, Any]]:
        """Lines of trained steps that were finished after a moment."""
        text = self.metrics.read_text() if self.metrics.exists() else ""
        rows = [json.loads(line) for line in text.split("\n")[:-1]]
        return [r for r in rows if r["kind"] == "train" and r["time"] > after]

    def said(self, words: str, after: float) -> tuple[float, str] | None:
        """The first line with these words after a moment."""
        found = (line for line in list(self.lines) if line[0] > after)
        return next((line for line in found if words in line[1]), None)

    def process(self, rank: int) -> psutil.Process:
        """The process of a rank."""
        for child in psutil.Process(self.child.pid).children(recursive=True):
            if child.environ().get("JAXDIST_RANK") == str(rank):
                return child
        raise SystemExit(f"no process {rank}")

    def wait(self, what: Callable[[], Any]) -> Any:
        """Wait until something is there, and return it."""
        end = time.monotonic() + LONG_S
        while not (found := what()):
            if self.child.poll() is not None or time.monotonic() > end:
                raise SystemExit("\n".join(line for _, line in self.lines[-40:]))
            time.sleep(0.01)
        return found


def trial(run: Run, fault: str, rank: int, chance: random.Random) -> dict[str, Any]:
    """Do harm to one process, and see what follows."""
    begun = time.time()
    first = run.wait(lambda: run.steps(begun))[0]["step"]
    time.sleep(chance.uniform(0.1, 1.5))
    victim = run.process(rank)
    at, before = time.time(), run.steps()[-1]["step"]
    victim.send_signal(SIGNALS[fault])
    count, _ = run.wait(
        lambda: run.said(" so all were ended", at) or run.said("error: process", at)
    )
    noticed = run.said("stuck: ", at) or (count, "")
    last = run.steps()[-1]["step"]
    back = run.wait(lambda: run.steps(count))[0]
    return {
        "noticed_s": noticed[0] - at,
        "ended_s": count - at,
        "again_s": back["time"] - at,
        "lost_steps": last - back["step"] + 1,
        "named": f"rank {rank}" in noticed[1].partition(";")[0],
        "steps": (first, before, last, back["step"]),
    }


def main() -> None:
    """Do the trials and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=tuple(SIGNALS))
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--hang-s", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance, found = random.Random(args.seed), []
    each = 1 if args.fault == "kill" else args.trials
    with tempfile.TemporaryDirectory() as folder:
        while len(found) < args.trials:
            path = Path(folder, f"runs-{len(found)}")
            run = Run(path, args.processes, each, args.hang_s)
            for _ in range(each):
                rank = chance.randrange(args.processes)
                found.append(trial(run, args.fault, rank, chance))
                print(json.dumps(found[-1]), flush=True)
            run.child.terminate()
            run.child.wait()
    for key in ("noticed_s", "ended_s", "again_s", "lost_steps"):
        values = [row[key] for row in found]
        print(
            f"{key:11} median {statistics.median(values):6.2f}  most {max(values):6.2f}"
        )
    print(f"named       {sum(row['named'] for row in found)} of {len(found)}")


if __name__ == "__main__":
    main()
