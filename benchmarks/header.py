"""Seconds from `jaxdist train digits` to the first line that it writes, warm.

    python benchmarks/header.py

The command runs once before, so that its files are in the page cache; each round starts
a process of its own and ends it at its first line.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

from record import add_record_option, row, write_result

ROUNDS = 15


def seconds_to_header(folder: str, number: int) -> float:
    """Start a run; return the seconds to its first line on standard error."""
    words = ["train", "digits", f"run.dir={folder}", f"run.name=r{number}"]
    begun = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "jaxdist", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stderr is not None
        line = child.stderr.readline()
        took = time.perf_counter() - begun
        child.kill()
    if b"resnet8 on digits" not in line:
        raise SystemExit(f"no header: {line!r}")
    return took


def main() -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_record_option(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        readings = [seconds_to_header(folder, n) for n in range(ROUNDS + 1)][1:]
    median = statistics.median(readings)
    rows = [row("jaxdist train digits, to its header", median, "s", readings=readings)]
    print(f"{median:.2f} s ({min(readings):.2f} to {max(readings):.2f})")
    if args.record:
        write_result(
            "header",
            [each | {"goal": "within 1 s"} for each in rows],
            title="From a command to its first line",
            measures="Seconds from the start of the process to the line that says "
            "what is trained, on standard error; median and range of "
            f"{ROUNDS} warm starts.",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
