"""Results of benchmarks as data: one file a benchmark in benchmarks/results.

A benchmark that was given `--record` hands its rows to `write_result`. What the file
said before about the benchmark (its title, what it measures, goals and notes) stays;
rows, date, machine and command are those of the run. `make results` makes the pages of
docs/results from the files.

A row has a `case`, the `figure` that was taken of it (null where there is only one),
its `value` (a number, a text, or null where only a range is known) and `unit`, a
`spread` ({"range": [least, most]} or {"interval_95": half-width}, null where none was
taken), `n` readings behind it, and a `goal` as text.
"""

import argparse
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
ROW_FIELDS = ("case", "figure", "value", "unit", "spread", "n", "goal")
FIELDS = {
    "title": str,
    "measures": str,
    "command": str,
    "not_run": str | None,  # why `make commands` does not run the command
    "date": str,
    "conditions": str | None,  # what else the machine did
    "machine": dict,
    "goal": str | None,
    "notes": list,
    "rows": list,
}
MACHINE_FIELDS = ("cpu", "cores", "memory_gb", "python", "jax")
LOAD_BEFORE = os.getloadavg()[0]
"""Read as the benchmark starts: later it is the load of the benchmark itself."""


def add_record_option(parser: argparse.ArgumentParser) -> None:
    """Give a benchmark the option `--record`."""
    help_ = "write what was measured to benchmarks/results"
    parser.add_argument("--record", action="store_true", help=help_)


def row(
    case: str,
    value: float | str,
    unit: str,
    *,
    figure: str | None = None,
    readings: Iterable[float] = (),
    interval_95: float | None = None,
    n: int | None = None,
) -> dict[str, Any]:
    """Return one row of a result.

    Args:
        case: what was measured.
        value: the figure; it is kept to five significant digits.
        unit: of the value and its spread.
        figure: which figure of the case, where there are several.
        readings: all that the value stands for; their range is the spread.
        interval_95: half-width of the mean's interval, in place of a range.
        n: number of readings, where they are not handed over.
    """
    taken = [rounded(x) for x in readings]
    spread: dict[str, Any] | None = None
    if interval_95 is not None:
        spread = {"interval_95": rounded(interval_95)}
    elif taken:
        spread = {"range": [min(taken), max(taken)]}
    return {
        "case": case,
        "figure": figure,
        "value": value if isinstance(value, str) else rounded(value),
        "unit": unit,
        "spread": spread,
        "n": n if n is not None else len(taken) or None,
        "goal": None,
    }


def rounded(value: float) -> float:
    """Keep five significant digits, which tell simulated times apart."""
    return value if isinstance(value, int) else float(f"{value:.5g}")


def this_machine() -> dict[str, Any]:
    """Describe the machine that measures."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*: (.+)", info.read_text())):
        cpu = found[1]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "python": platform.python_version(),
        "jax": version("jax"),
    }


def write_result(
    name: str,
    rows: list[dict[str, Any]],
    *,
    folder: Path = RESULTS,
    **described: Any,
) -> Path:
    """Write benchmarks/results/NAME.json and return its path.

    Args:
        name: of the file; a benchmark with several tables has a file for each.
        rows: what was measured.
        folder: where the files are.
        described: `title`, `measures` and other texts, in place of those in the file.
            A new file needs these two.
    """
    path = folder / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    goals = {(r["case"], r["figure"]): r["goal"] for r in before.get("rows", ())}
    # A goal that the file has stays; where it has none, that of the benchmark is set.
    rows = [
        r | {"goal": goals.get((r["case"], r["figure"])) or r["goal"]} for r in rows
    ]
    for case, figure in sorted(goals.keys() - {(r["case"], r["figure"]) for r in rows}):
        if goals[case, figure]:
            what = f"{case}, {figure}" if figure else case
            print(f"no figure any more for a goal: {what}", file=sys.stderr)
    script = Path(sys.argv[0]).name
    words = [word for word in sys.argv[1:] if word != "--record"]
    result = {"not_run": None, "goal": None, "notes": [], **before, **described}
    result |= {
        "command": shlex.join(["python", f"benchmarks/{script}", *words]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "conditions": f"load {LOAD_BEFORE:.1f} before it began",
        "machine": this_machine(),
        "rows": rows,
    }
    check_result(result)
    path.write_text(format_result(result), encoding="utf-8")
    return path


def format_result(result: dict[str, Any]) -> str:
    """Write a result as JSON with a row a line, so that changes are read row by row."""
    head = {key: result[key] for key in FIELDS if key != "rows"}
    head |= {key: value for key, value in result.items() if key not in FIELDS}
    text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    rows = ",\n".join("  " + json.dumps(r, ensure_ascii=False) for r in result["rows"])
    return f'{text},\n "rows": [\n{rows}\n ]\n}}\n'


def check_result(result: dict[str, Any]) -> None:
    """Raise ValueError, with the reason, if a result has not the form of its kind."""
    for key, kind in FIELDS.items():
        if key not in result or not isinstance(result[key], kind):
            raise ValueError(f"{key} must be {kind}, not {result.get(key)!r}")
    if missing := set(MACHINE_FIELDS) - set(result["machine"]):
        raise ValueError(f"machine has no {', '.join(sorted(missing))}")
    time.strptime(result["date"], "%Y-%m-%d")
    if not result["rows"]:
        raise ValueError("no rows")
    seen = set()
    for one in result["rows"]:
        if missing := set(ROW_FIELDS) - set(one):
            raise ValueError(f"{one} has no {', '.join(sorted(missing))}")
        if (place := (one["case"], one["figure"])) in seen:
            raise ValueError(f"{place} is there twice")
        seen.add(place)
        if one["value"] is None and "range" not in (one["spread"] or {}):
            raise ValueError(f"{place} has neither a value nor a range")
        match one["spread"]:
            case None | {"interval_95": int() | float()}:
                pass
            case {"range": [int() | float() as low, int() | float() as high]}:
                if low > high:
                    raise ValueError(f"{place}: {low} to {high} is no range")
            case other:
                raise ValueError(f"{place}: {other} is no spread")
