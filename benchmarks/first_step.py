"""From the command to the first finished step: jaxdist against a hand-written loop.

    python benchmarks/first_step.py --json

Each round starts four processes in turn: the hand-written loop and `jaxdist train
digits` with an empty compile cache (and, for jaxdist, no prepared data set: the worst
first run), then both again with what the first two left behind.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import add_record_option, row, write_result

HERE = Path(__file__).resolve().parent


def environment(cache: Path) -> dict[str, str]:
    """Give a process its compile cache and eight fake devices."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def by_hand(folder: Path) -> float:
    """Seconds to the hand-written loop's first step."""
    command = [sys.executable, str(HERE / "handwritten.py"), str(time.time())]
    done = subprocess.run(
        command,
        env=environment(folder / "hand"),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def by_jaxdist(folder: Path, name: str) -> float:
    """Seconds to jaxdist's first step, counted from the start of its process."""
    command = [sys.executable, "-m", "jaxdist.launch", "train", "digits", "--json"]
    words = [f"data.dir={folder / 'data'}", f"run.dir={folder}", f"run.name={name}"]
    done = subprocess.run(
        [*command, *words, "epochs=0.1"],
        env=environment(folder / "ours"),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout)["first_step_s"])


def one_round() -> list[float]:
    """Return (cold by hand, cold ours, warm by hand, warm ours)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cold = [by_hand(folder), by_jaxdist(folder, "cold")]
        return [*cold, by_hand(folder), by_jaxdist(folder, "warm")]


def result_rows(rows: list[list[float]]) -> list[dict[str, Any]]:
    """Return the rows that are recorded."""
    made = []
    cold_hand, cold, warm_hand, warm = map(list, zip(*rows))
    for case, ours, hand in (("cold", cold, cold_hand), ("warm", warm, warm_hand)):
        ratios = [a / b for a, b in zip(ours, hand)]
        figures = (
            ("ratio", "", ratios),
            ("jaxdist", "s", ours),
            ("by hand", "s", hand),
        )
        for figure, unit, readings in figures:
            middle = statistics.median(readings)
            made.append(row(case, middle, unit, figure=figure, readings=readings))
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    add_record_option(parser)
    args = parser.parse_args()
    rows = [one_round() for _ in range(args.rounds)]
    if args.record:
        write_result("first_step", result_rows(rows))
    names = ("cold_hand_s", "cold_s", "warm_hand_s", "warm_s")
    result = {n: statistics.median(c) for n, c in zip(names, zip(*rows))}
    result["cold_ratio"] = statistics.median(b / a for a, b, _, _ in rows)
    result["warm_ratio"] = statistics.median(d / c for _, _, c, d in rows)
    result["rounds"] = args.rounds
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    for kind in ("cold", "warm"):
        ours, hand = result[f"{kind}_s"], result[f"{kind}_hand_s"]
        ratio = result[f"{kind}_ratio"]
        sys.stdout.write(
            f"{kind}  jaxdist {ours:.1f} s, by hand {hand:.1f} s, ratio {ratio:.2f}\n"
        )


if __name__ == "__main__":
    main()
