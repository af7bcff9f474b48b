"""A 3-D U-Net on volumes that one chip cannot hold, compiled for chips that do.

    python benchmarks/volumes.py                      # with jaxdist[tpu]
    python benchmarks/volumes.py --only 4x4x4

A volume of 512 x 512 x 512 voxels, float32, one a step, is cut along all three axes.
The compiler of the target says memory, bytes and cycles. One device that could hold the
whole volume does not exist, so its cycles are those of all blocks, each compiled as a
volume of its own on four chips that split nothing but samples: without halos, and with
padding at all six faces. Memory of layouts without a spatial split is predicted.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from record import add_record_option, row, write_result

CHIP, SIZE = "tpu-v5p", 512
WORDS = ("unet3d", "data.name=synthetic", "model.channels=1")
ONE = ("data.samples=1", "data.batch=1", "plan.mesh.data=1")
"""One volume."""
FOUR = ("data.samples=4", "data.batch=4", "plan.mesh.data=4")
"""Four, one a chip."""
CUTS = {"4x4x4": 4, "2x2x2": 2}
"""Slice of the machine, and into how many parts each axis is cut."""
WHOLE = {
    "one chip": (),
    "8 chips, pairs of layers split": ("plan.mesh.tensor=8",),
}
"""Layouts that cut no volume: a batch of one is not split over data or fsdp, and the
three filters of its head not over eight chips."""


def command(verb: str, words: Sequence[str]) -> dict[str, Any]:
    """Return what a command of jaxdist says with `--json`."""
    line = [sys.executable, "-m", "jaxdist.launch", verb, *words, "--json"]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    if not done.stdout:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def spatial(parts: int) -> list[str]:
    """Return the keys that cut all three axes into so many parts."""
    return [f"plan.mesh.spatial_{axis}={parts}" for axis in "dhw"]


def rows_of(slice_: str, parts: int) -> tuple[list[dict[str, Any]], int]:
    """Return the figures of one cut, and how many of them are beyond their goal."""
    cut = [*WORDS, *ONE, f"data.size={SIZE}", *spatial(parts)]
    found = command("compile", [*cut, "--target", f"{CHIP}:{slice_}"])
    case = f"{SIZE}^3 on {slice_}, blocks of {SIZE // parts}^3"
    figures = [
        ("memory a chip", found["memory_bytes"] / 1e9, "GB"),
        ("of", found["capacity_bytes"] / 1e9, "GB"),
        ("differences from the plan", len(found["differences"]), ""),
    ]
    wrong = [not found["fits"], bool(found["differences"])]
    # The compiler says nothing of layers and cycles of a program that it refuses.
    if found["cycles"]:
        alone = [*WORDS, *FOUR, f"data.size={SIZE // parts}", *spatial(1)]
        block = command("compile", [*alone, "--target", f"{CHIP}:2x2x1"])
        halos = sum(
            each["sent_bytes"]
            for each in found["collectives"]
            if each["kind"] == "collective-permute"
        )
        moved = sum(layer["bytes"] for layer in found["layers"])
        share, cycles = 100 * halos / moved, found["cycles"] / block["cycles"]
        figures += [
            ("halos that a chip sends", halos / 1e6, "MB"),
            ("bytes that its layers read and write", moved / 1e9, "GB"),
            ("halos over these", share, "%"),
            ("cycles of all chips over those of one that holds all", cycles, ""),
            ("estimated step", 1e3 * found["step_s"], "ms"),
            ("estimated step of a block alone", 1e3 * block["step_s"], "ms"),
            ("compilation", found["compile_s"], "s"),
        ]
        wrong += [share > 2, cycles > 1.15]
    return [row(case, value, unit, figure=name) for name, value, unit in figures], sum(
        wrong
    )


def row_of(case: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the memory that a layout without a spatial split is predicted to take."""
    words = [*WORDS, *ONE, f"data.size={SIZE}", *spatial(1), *keys]
    found = command("predict", [*words, "--cluster", CHIP])
    case = f"{SIZE}^3 on {case}, predicted"
    return row(case, found["memory_bytes"] / 1e9, "GB", figure="memory a chip")


def main() -> int:
    """Compile, predict, print, and fail where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="slices with this in their name")
    add_record_option(parser)
    args = parser.parse_args()
    rows, wrong = [], 0
    for slice_, parts in CUTS.items():
        if args.only in slice_:
            found, beyond = rows_of(slice_, parts)
            rows += found
            wrong += beyond
    rows += [row_of(case, keys) for case, keys in WHOLE.items() if not args.only]
    if args.record:
        write_result("volumes", rows)
    for each in rows:
        print(each["case"], each["figure"], each["value"], each["unit"])
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
