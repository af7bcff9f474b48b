"""A record: everything the files of a run folder say, however early the run ended."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.core.records import is_scalar, known_fields, parse_record
from jaxdist.core.run_record import Run
from jaxdist.launch.config.aliases import current_key
from jaxdist.launch.config.tree import format_value
from jaxdist.launch.run_folder.folder import (
    METRIC_KEYS,
    SPAN_KEYS,
    JsonRow,
    RunFolder,
    complete_spans,
    read_json_object,
    read_jsonl,
    read_rows,
    run_file_errors,
)
from jaxdist.launch.run_folder.goodput import (
    Goodput,
    RunAttempt,
    compute_goodput,
    list_attempts,
)
from jaxdist.launch.run_folder.lockfile import AttemptRecord
from jaxdist.launch.run_folder.sample_evaluation import (
    SampleEvaluation,
    read_sample_evaluation,
)
from jaxdist.launch.training.adapt.plan_search import RestartDecision
from jaxdist.models.config import ModelConfig
from jaxdist.models.registry import is_user_model, takes_tokens


@dataclass(frozen=True, kw_only=True)
class PlanChange:
    """A drift of the step time, and what came of it."""

    step: int
    """Steps that were done when it was decided."""
    time: float
    """When, Unix seconds."""
    pace_s: float | None = None
    """Median step before the drift; None where processes were lost or came back."""
    drifted_s: float | None = None
    """Step while it drifted."""
    why: str = ""
    """What had changed; empty where nothing was found."""
    old: str = ""
    """Label of the plan until then; empty where no other one was sought."""
    new: str = ""
    """Label of the plan that was found."""
    changed: bool = False
    """Whether the run went on under it."""
    text: str = ""
    """What was decided, for a person."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Everything that the files of a run folder say."""

    folder: Path
    """Where it is."""
    run: Run
    """The summary; without one, an estimate from the other files."""
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
    """The command that started it, as it was typed."""
    unreadable: int
    """Lines that were cut off."""
    compared: JsonRow | None = None
    """The run compared with its prediction; None where it has gone on since."""
    goodput: Goodput = field(default_factory=lambda: Goodput(attempts=0, wall_s=0.0))
    """Where the time of all its attempts went."""
    attempts: tuple[RunAttempt, ...] = ()
    """Each time that the run was started."""
    changes: tuple[PlanChange, ...] = ()
    """Drifts of its step time, and what came of them."""
    mixed: JsonRow | None = None
    """How well its samples were mixed; None where each epoch drew from all."""
    history: tuple[AttemptRecord, ...] = ()
    """Each start of the run, with what was changed for it; empty: not recorded."""
    study: JsonRow | None = None
    """The newest scaling study of its experiment; None where there is none."""

    compiled: JsonRow | None = None
    """The step as it was compiled for a target; None: not asked."""
    sample_evaluation: SampleEvaluation | None = None
    """What a checkpoint says of held-out samples one by one; None: not asked."""
    train_samples: int = 0
    """Training samples of an epoch; 0: not recorded."""

    def value(self, key: str, default: Any = None) -> Any:
        """Look up a configuration value."""
        return self.values.get(key, {}).get("value", default)

    @property
    def last_step(self) -> float:
        """The last step that rows are of."""
        return float(max(row["step"] for row in (*self.train, *self.tests)))

    @property
    def batch_changed(self) -> bool:
        """Whether it went on with another batch: then no row says which it had."""
        return any("data.batch" in each.changes for each in self.history)

    @property
    def epoch_steps(self) -> float | None:
        """Steps of an epoch; None where that is not known."""
        batch = self.value("data.batch")
        if not self.train_samples or not is_scalar(int, batch) or self.batch_changed:
            return None
        return self.train_samples / batch

    @property
    def is_language_model(self) -> bool:
        """Whether it predicts tokens of a text."""
        # A network of one's own would have to be imported to be asked.
        model = ModelConfig(name=str(self.value("model.name", "")))
        return self.value("data.name") == "text" or (
            not is_user_model(model) and takes_tokens(model)
        )

    @property
    def answer_noun(self) -> str:
        """What an accuracy is a share of: samples, pixels or tokens."""
        last: Mapping[str, Any] = self.tests[-1] if self.tests else {}
        answers = last.get("answers", self.run.answers)
        if answers in (0, last.get("samples", self.run.held_out)):
            return "samples"
        return "pixels" if "mean_iou" in last else "tokens"

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sample of a language model; 0 of any other, or not known."""
        counts = [(row.get("answers"), row.get("samples")) for row in self.tests[-1:]]
        return sum(
            answers // samples
            for answers, samples in counts
            if self.is_language_model and answers and samples
        )


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
    files = RunFolder(folder)
    # Whatever is drawn is drawn over steps: lines without one are of no use.
    metrics = read_rows(files.metrics, METRIC_KEYS)
    spans = read_rows(files.spans, SPAN_KEYS)
    rows = metrics.rows
    steps = [row for row in rows if row["kind"] == "train"]
    # A run that resumed wrote some steps twice: the newest line of each is what counts.
    train, tests = (
        tuple(row for _, row in sorted({row["step"]: row for row in kind}.items()))
        for kind in (steps, [row for row in rows if row["kind"] == "test"])
    )
    attempts = list_attempts(spans.rows)
    lock = _read_lock(files.config_lock)
    # The plan file is written before the first step, the summary after the last one:
    # of each the other may be missing, or cut off by the end of the process.
    summary, plan = read_json_object(files.summary), None
    for tree in (read_json_object(files.plan), (summary or {}).get("plan")):
        with suppress(BadInput):
            plan = plan or (Plan.from_tree(tree) if tree else None)
    ended = tuple(complete_spans(spans.rows))
    told = summary or _estimate_summary(train, tests, ended, lock.values)
    # The plan knows the number of devices before any summary does. Without a summary a
    # run counts as stopped: its command may be typed again.
    told = ({"devices": plan.mesh.devices} if plan else {}) | told
    name, experiment = folder.resolve().name, lock.experiment
    told = {"name": name, "experiment": experiment, "status": "stopped"} | told
    with run_file_errors(files.summary):
        run = Run.from_tree(told)

    # A comparison from before the run went on is of other steps than the run now has.
    compared = read_json_object(files.comparison) or {}
    step = compared.get("step")
    current = isinstance(step, Mapping) and step.get("measured") == run.step_s
    with run_file_errors(files.drift_log):
        changes = _read_plan_changes(read_jsonl(files.drift_log).rows)
    return RunData(
        folder=folder,
        run=run,
        summarised=summary is not None,
        plan=plan,
        train=train,
        tests=tests,
        resumes=_find_resumes(attempts, steps),
        spans=ended,
        values=lock.values,
        packages=lock.packages,
        command=lock.command,
        unreadable=metrics.unreadable + spans.unreadable,
        compared=compared if current else None,
        goodput=compute_goodput(spans.rows),
        attempts=attempts,
        history=lock.attempts,
        changes=changes,
        mixed=read_json_object(files.shuffle_quality),
        study=_latest_scaling_study(folder, run),
        compiled=read_json_object(files.compiled_step),
        sample_evaluation=read_sample_evaluation(files.sample_evaluation),
        train_samples=lock.train_samples,
    )


@dataclass(frozen=True, kw_only=True)
class _Lock:
    """What a report takes from a lock file, which may be of another version."""

    experiment: str
    values: Mapping[str, Mapping[str, Any]]
    packages: Mapping[str, str]
    command: str
    attempts: tuple[AttemptRecord, ...]
    train_samples: int


def _read_lock(path: Path) -> _Lock:
    lock = read_json_object(path) or {}
    with run_file_errors(path):
        values: dict[str, dict[str, Any]] = {}
        for key, entry in (lock.get("values") or {}).items():
            row = entry if isinstance(entry, dict) else {"value": entry}
            by = str(row.get("by") or "default")
            values[current_key(key)] = {"value": row.get("value"), "by": by}
        experiment = str(lock.get("experiment") or "")
        command = lock.get("command") or []
        if not command and experiment:
            # A lock file without the command still allows one that sets the same
            # values.
            typed = [k for k, row in values.items() if row["by"] == "command line"]
            found = ((key, values[key]["value"]) for key in typed)
            # JSON has lists in the place of tuples.
            words = [
                f"{key}={format_value(tuple(x) if isinstance(x, list) else x)}"
                for key, x in found
            ]
            command = ["jaxdist", "train", experiment, *words]
        return _Lock(
            experiment=experiment,
            values=values,
            packages={k: str(v) for k, v in (lock.get("packages") or {}).items()},
            command=shlex.join(command) if isinstance(command, list) else str(command),
            attempts=tuple(
                parse_record(AttemptRecord, known_fields(AttemptRecord, row), "a start")
                for row in lock.get("attempts") or ()
            ),
            train_samples=_sample_count(str((lock.get("data") or {}).get("train"))),
        )


def _sample_count(fingerprint: str) -> int:
    """Read how many samples a fingerprint in a lock file is of; 0 where it is none.

    >>> _sample_count("1,437 samples, 0123456789abcdef")
    1437
    """
    found = re.match(r"([\d,]+) samples", fingerprint)
    return int(found[1].replace(",", "")) if found else 0


def _find_resumes(
    attempts: Sequence[RunAttempt], steps: Sequence[JsonRow]
) -> tuple[JsonRow, ...]:
    """Return a row a resume: the step it went on from, the time, the steps done again.

    Args:
        attempts: each time that the run was started.
        steps: rows of the steps, in the order of the file.
    """
    # A run that resumes drops the rows of the steps that it does again: only its spans
    # keep both. A run without spans is known by step numbers that fall back.
    if len(attempts) > 1:
        return tuple(
            {
                "step": after.first_step - 1,
                "time": after.start,
                "again": before.lost_steps,
            }
            for before, after in pairwise(attempts)
            if after.first_step is not None
        )
    return tuple(
        {
            "step": after["step"] - 1,
            "time": after.get("time"),
            "again": before["step"] - after["step"] + 1,
        }
        for before, after in pairwise(steps)
        if after["step"] <= before["step"]
    )


def change_texts(attempt: AttemptRecord) -> list[str]:
    """Say what was changed for a start of a run: `optim.lr 0.2, now 0.1`."""
    return [change.text for change in attempt.all_changes]


def _estimate_summary(
    train: Sequence[JsonRow],
    tests: Sequence[JsonRow],
    spans: Sequence[JsonRow],
    values: Mapping[str, Mapping[str, Any]],
) -> JsonRow:
    """Say what a summary would, from the lines of a run that never wrote one."""
    # Of all attempts: a summary, which has those of the last one, was never written.
    phases: dict[str, float] = {}
    for span in spans:
        phases[span["name"]] = phases.get(span["name"], 0.0) + span["seconds"]
    found: JsonRow = {"phases_s": phases, "wall_s": sum(phases.values())}
    found["steps"] = train[-1]["step"] if train else 0
    times = sorted(row["step_s"] for row in train if row.get("step_s"))
    if times:
        # Throughput is that of the median step, as in a summary: a mean would include
        # evaluations that delayed single steps.
        middle, last = median(times), len(times) - 1
        batch = values.get("data.batch", {}).get("value")
        batch = batch if is_scalar(int, batch) else 0
        found |= {"step_s": middle, "samples_per_s": batch / middle}
        found |= {"step_s_p5": times[round(0.05 * last)]}
        found |= {"step_s_p95": times[round(0.95 * last)]}
    if tests:
        row = tests[-1]
        found |= {key: row.get(key) for key in ("accuracy", "loss")}
        found |= {"correct": row.get("correct", 0), "held_out": row.get("samples", 0)}
        found |= {"answers": row.get("answers", 0)}
    return found


def _read_plan_changes(rows: Iterable[JsonRow]) -> tuple[PlanChange, ...]:
    """Join the lines of `drift.jsonl`: a drift, its reason, and the plan for it.

    A change has up to three lines in this order. One without a drift, where processes
    were lost or came back, begins with its reason.
    """
    found: list[JsonRow] = []
    for row in rows:
        kind = row.get("kind")
        told = found[-1] if found else {}
        complete = "old" in told or bool(told.get("why"))
        if not found or kind == "drift" or (kind == "reason" and complete):
            found.append({})
        found[-1] |= {key: row[key] for key in ("step", "time") if key in row}
        if kind == "drift":
            found[-1] |= {"pace_s": row.get("before"), "drifted_s": row.get("seconds")}
        elif kind == "reason":
            found[-1]["why"] = row.get("why", "")
        elif kind == "plan":
            known = (one.name for one in fields(RestartDecision))
            choice = RestartDecision(**{name: row[name] for name in known})
            labels = {"old": choice.stays, "new": choice.other}
            found[-1] |= labels | {"changed": choice.changes, "text": choice.text}
    return tuple(PlanChange(**one) for one in found if {"step", "time"} <= one.keys())


def _latest_scaling_study(folder: Path, run: Run) -> JsonRow | None:
    """Find the newest study of the same experiment, in the folder of the runs."""
    # A study has its own folder in that of the runs, or was written there itself.
    around = folder.resolve().parent
    files = [around / "scale.json", *around.glob("*/scale.json")]
    dated = [(file.stat().st_mtime, file) for file in files if file.is_file()]
    for _, file in sorted(dated, reverse=True):
        study = read_json_object(file)
        if study and study.get("experiment") == run.experiment:
            return study | {"folder": file.parent.name, "path": str(file)}
    return None
