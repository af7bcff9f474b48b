"""What a fault costs: seconds until it is noticed and until the run trains again.

    python benchmarks/faults.py kill --trials 5
    python benchmarks/faults.py term --trials 20
    python benchmarks/faults.py stop --trials 20
    python benchmarks/faults.py soak --trials 50 --processes 4

One run of a tiny network under `jaxdist launch local --restarts`; in every trial a
random process of it is sent SIGKILL, SIGTERM or SIGSTOP at a random moment. `soak` does
any of these, damages the newest checkpoint as well, lets the run end, and compares it
with one that nothing has happened to.
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

SIGNALS = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "damage": signal.SIGKILL,
}
SMALL = ("model.width=4", "data.batch=64", "checkpoint.every_steps=5")
EPOCH = 1437 / 64
"""Steps of an epoch."""
LONG_S = 300


class Run:
    """A launcher with its processes, and what it writes."""

    def __init__(self, folder: Path, args: argparse.Namespace, restarts: int) -> None:
        self.folder = folder / "digits"
        self.metrics = self.folder / "metrics.jsonl"
        self.lines: list[tuple[float, str]] = []
        how = ("-n", args.processes, "--devices-per-process", 1, "--restarts", restarts)
        data = args.data or folder.parent / "data"
        where = (f"run.dir={folder}", f"data.dir={data}", f"run.hang_s={args.hang_s}")
        epochs = f"epochs={(args.steps + 0.5) / EPOCH}"
        words = ("train", "digits", *where, *SMALL, epochs)
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

    def hash(self) -> str:
        """Digest of the newest parameters."""
        command = [sys.executable, "-m", "jaxdist.launch", "ckpt", "hash"]
        done = subprocess.run(
            [*command, str(self.folder)], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


def damage(run: Run) -> None:
    """Change some bytes of the newest checkpoint."""
    whole = [
        path
        for path in (run.folder / "checkpoints").glob("[0-9]*")
        if path.name.isdigit()
    ]
    newest = max(whole, key=lambda path: int(path.name), default=None)
    if newest is None:
        return
    files = [path for path in newest.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(b"damaged!")


def trial(run: Run, fault: str, rank: int, chance: random.Random) -> dict[str, Any]:
    """Do harm to one process, and see what follows."""
    begun = time.time()
    first = run.wait(lambda: run.steps(begun))[0]["step"]
    time.sleep(chance.uniform(0.1, 1.5))
    victim = run.process(rank)
    at, before = time.time(), run.steps()[-1]["step"]
    if fault == "damage":
        damage(run)
    victim.send_signal(SIGNALS[fault])
    count, _ = run.wait(
        lambda: run.said(" so all were ended", at) or run.said("error: process", at)
    )
    noticed = run.said("stuck: ", at) or (count, "")
    last = run.steps()[-1]["step"]
    back = run.wait(lambda: run.steps(count))[0]
    return {
        "fault": fault,
        "noticed_s": noticed[0] - at,
        "ended_s": count - at,
        "again_s": back["time"] - at,
        "lost_steps": last - back["step"] + 1,
        "named": f"rank {rank}" in noticed[1].partition(";")[0],
        "steps": (first, before, last, back["step"]),
    }


def soak(folder: Path, args: argparse.Namespace, chance: random.Random) -> None:
    """Do any harm, and compare the end with that of a run that was left alone.

    Raises:
        SystemExit: a difference, or a process that is left.
    """
    whole = Run(folder / "whole", args, 0)
    assert whole.child.wait() == 0, whole.lines[-40:]
    run = Run(folder / "runs", args, args.trials)
    seen = set()
    for _ in range(args.trials):
        fault, rank = chance.choice(list(SIGNALS)), chance.randrange(args.processes)
        row = trial(run, fault, rank, chance)
        seen |= {child.pid for child in psutil.Process(run.child.pid).children(True)}
        print(json.dumps(row), flush=True)
    assert run.child.wait() == 0, run.lines[-40:]
    steps = [row["step"] for row in run.steps()]
    wrong = {
        "steps": steps != [row["step"] for row in whole.steps()],
        "losses": [r["loss"] for r in run.steps()]
        != [r["loss"] for r in whole.steps()],
        "parameters": run.hash() != whole.hash(),
        "processes": any(psutil.pid_exists(pid) for pid in seen),
    }
    print(json.dumps({f"{name} differ": found for name, found in wrong.items()}))
    if any(wrong.values()):
        raise SystemExit("the run is not the one that was left alone")


def trials(folder: Path, args: argparse.Namespace, chance: random.Random) -> None:
    """Do one kind of harm again and again, and print what it costs."""
    found: list[dict[str, Any]] = []
    # What fails again and again waits longer each time: a kill has a run of its own.
    each = 1 if args.fault == "kill" else args.trials
    while len(found) < args.trials:
        run = Run(folder / f"runs-{len(found)}", args, each)
        for _ in range(each):
            rank = chance.randrange(args.processes)
            found.append(trial(run, args.fault, rank, chance))
            print(json.dumps(found[-1]), flush=True)
        run.child.terminate()
        run.child.wait()
    for key in ("noticed_s", "ended_s", "again_s", "lost_steps"):
        values = [row[key] for row in found]
        middle = statistics.median(values)
        print(f"{key:11} median {middle:6.2f}  most {max(values):6.2f}")
    print(f"named       {sum(row['named'] for row in found)} of {len(found)}")


def main() -> None:
    """Do the trials and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=("kill", "term", "stop", "soak"))
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, help="of the run (60 a trial)")
    parser.add_argument("--hang-s", type=float, default=10)
    parser.add_argument("--data", help="folder of prepared data")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.steps = args.steps or 60 * (args.trials + 1)
    act = soak if args.fault == "soak" else trials
    with tempfile.TemporaryDirectory() as folder:
        act(Path(folder), args, random.Random(args.seed))


if __name__ == "__main__":
    main()
