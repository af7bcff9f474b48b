"""A record: everything the files of a run folder say, however early the run ended."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.run_record import Run
from jaxdist.launch.report.drift_log import PlanChange, read_plan_changes
from jaxdist.launch.run_folder.goodput import (
    Goodput,
    RunAttempt,
    compute_goodput,
    list_attempts,
)
from jaxdist.launch.run_folder.jsonl import JsonRow, read_json_object, read_jsonl
from jaxdist.launch.run_folder.perfetto_trace import complete_spans


@dataclass(frozen=True, kw_only=True)
class RunData:
    """A run folder, read once."""

    folder: Path
    """Where it is."""
    run: Run
    """The summary; without one, what the other files allow to say."""
    summarised: bool
    """Whether the run wrote its summary: without one it runs, or it was killed."""
    plan: Plan | None
    """The layout; None where no file says it."""
    train: tuple[JsonRow, ...]
    """A row a step, each step once: the newest where a resumed run did it again."""
    tests: tuple[JsonRow, ...]
    """A row an evaluation, each step once."""
    resumes: tuple[JsonRow, ...]
    """A row a resume: the step it went on from, the time, the steps done again."""
    spans: tuple[JsonRow, ...]
    """A row a span, each with an end."""
    values: Mapping[str, Mapping[str, Any]]
    """Configuration: `value` of each key, and `by` whom it was set."""
    packages: Mapping[str, str]
    """Versions of the packages that ran."""
    command: str
    """The command that started it."""
    unreadable: int
    """Lines that were cut off."""
    compared: JsonRow | None = None
    """The run beside its prediction; None where it was not compared as it is now."""
    goodput: Goodput = field(default_factory=lambda: Goodput(attempts=0, wall_s=0.0))
    """Where the time of all its sittings went."""
    sittings: tuple[RunAttempt, ...] = ()
    """Each time that it was started."""
    changes: tuple[PlanChange, ...] = ()
    """Drifts of its steps, and what came of them."""
    mixed: JsonRow | None = None
    """How well its samples were mixed; None where each epoch drew from all."""
    study: JsonRow | None = None
    """The newest scaling study of its experiment; None where there is none."""

    def value(self, key: str, default: Any = None) -> Any:
        """Look up a configuration value."""
        return self.values.get(key, {}).get("value", default)


def read_run_data(folder: Path) -> RunData:
    """Read a run folder; a file that is missing or cut off leaves its part empty.

    Raises:
        BadInput: the folder does not exist.
    """
    if not folder.is_dir():
        raise BadInput(
            f"no run folder {folder}",
            rule="a report is made from the files of a run folder",
            remedy="jaxdist train digits",
        )
    metrics = read_jsonl(folder / "metrics.jsonl")
    spans = read_jsonl(folder / "spans.jsonl")
    lock = read_json_object(folder / "config.lock.json") or {}
    summary = read_json_object(folder / "summary.json")
    rows = [row for row in metrics.rows if isinstance(row.get("step"), int)]
    steps = [row for row in rows if row.get("kind") == "train"]
    train = _latest_by_step(steps)
    tests = _latest_by_step([row for row in rows if row.get("kind") == "test"])
    ended = tuple(complete_spans(spans.rows))
    values = _config_values(lock)
    plan = _read_plan(
        read_json_object(folder / "plan.json"), (summary or {}).get("plan")
    )
    seen = {} if summary else _estimate_summary(train, tests, ended, values)
    seen |= {"devices": plan.mesh.devices} if plan else {}
    run = _make_run(folder, lock, seen | (summary or {}))
    return RunData(
        folder=folder,
        run=run,
        summarised=summary is not None,
        plan=plan,
        train=train,
        tests=tests,
        resumes=_find_resumes(steps),
        spans=ended,
        values=values,
        packages={k: str(v) for k, v in (lock.get("packages") or {}).items()},
        command=_start_command(lock, values),
        unreadable=metrics.unreadable + spans.unreadable,
        compared=_current_comparison(read_json_object(folder / "compared.json"), run),
        goodput=compute_goodput(spans.rows),
        sittings=list_attempts(spans.rows),
        changes=read_plan_changes(read_jsonl(folder / "drift.jsonl").rows),
        mixed=read_json_object(folder / "shuffle.json"),
        study=_latest_scaling_study(folder, run),
    )


def _current_comparison(found: JsonRow | None, run: Run) -> JsonRow | None:
    """Leave out a comparison from before the run went on."""
    if not found or (found.get("step") or {}).get("measured") != run.step_s:
        return None
    return found


def _latest_scaling_study(folder: Path, run: Run) -> JsonRow | None:
    """Find the newest study of the same experiment, in the folder of the runs."""
    around = folder.resolve().parent
    files = [around / "scale.json", *around.glob("*/scale.json")]
    found = [(file.stat().st_mtime, file) for file in files if file.is_file()]
    read = ((file, read_json_object(file)) for _, file in sorted(found, reverse=True))
    of_ours = (
        (f, row) for f, row in read if row and row.get("experiment") == run.experiment
    )
    newest = next(of_ours, None)
    return newest and newest[1] | {"folder": newest[0].parent.name}


def _make_run(folder: Path, lock: JsonRow, found: JsonRow) -> Run:
    known = {f.name for f in fields(Run)}
    named = {
        "name": folder.resolve().name,
        "experiment": str(lock.get("experiment") or ""),
        "status": "stopped",
    }
    return Run(**named | {k: v for k, v in found.items() if k in known})


def _read_plan(*trees: JsonRow | None) -> Plan | None:
    for tree in filter(None, trees):
        with suppress(BadInput, TypeError):
            return Plan.from_json(json.dumps(tree))
    return None


def _estimate_summary(
    train: Sequence[JsonRow],
    tests: Sequence[JsonRow],
    spans: Sequence[JsonRow],
    values: Mapping[str, Mapping[str, Any]],
) -> JsonRow:
    """Say what a summary would, from the lines of a run that never wrote one."""
    times = sorted(row["step_s"] for row in train if row.get("step_s"))
    phases: dict[str, float] = {}
    for span in spans:
        phases[span["name"]] = phases.get(span["name"], 0.0) + span["seconds"]
    found: JsonRow = {"phases_s": phases, "wall_s": sum(phases.values())}
    found["steps"] = train[-1]["step"] if train else 0
    if times:
        middle = median(times)
        batch = values.get("data.batch", {}).get("value") or 0
        found |= {"step_s": middle, "samples_per_s": batch / middle}
        found |= {
            "step_s_p5": _percentile(times, 0.05),
            "step_s_p95": _percentile(times, 0.95),
        }
    if tests:
        last = tests[-1]
        found |= {key: last.get(key) for key in ("accuracy", "loss")}
        found |= {"correct": last.get("correct", 0), "held_out": last.get("samples", 0)}
        found |= {"answers": last.get("answers", 0)}
    return found


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


def _latest_by_step(rows: list[JsonRow]) -> tuple[JsonRow, ...]:
    by_step = {row["step"]: row for row in rows}
    return tuple(by_step[step] for step in sorted(by_step))


def _find_resumes(steps: list[JsonRow]) -> tuple[JsonRow, ...]:
    """Find where step numbers start again: what follows was done a second time."""
    return tuple(
        {
            "step": after["step"] - 1,
            "time": after.get("time"),
            "again": before["step"] - after["step"] + 1,
        }
        for before, after in pairwise(steps)
        if after["step"] <= before["step"]
    )


def _config_values(lock: JsonRow) -> Mapping[str, Mapping[str, Any]]:
    """Bring the values of a lock file to one form: key to `value` and `by`."""
    found = {}
    for key, entry in (lock.get("values") or {}).items():
        row = entry if isinstance(entry, dict) else {"value": entry}
        by = row.get("by") or row.get("set_by") or "default"
        found[key] = {"value": row.get("value"), "by": str(by)}
    return found


def _start_command(lock: JsonRow, values: Mapping[str, Mapping[str, Any]]) -> str:
    """Give the command as typed, or one that sets the same values."""
    command = lock.get("command")
    if command:
        return shlex.join(command) if isinstance(command, list) else str(command)
    typed = [
        f"{key}={row['value']}"
        for key, row in values.items()
        if row["by"] == "command line"
    ]
    experiment = lock.get("experiment")
    return shlex.join(["jaxdist", "train", experiment, *typed]) if experiment else ""
