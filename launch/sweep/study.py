"""A study: the trials of a sweep, kept by optuna in a journal that outlives a kill.

runs/NAME/sweep.json      what is swept
runs/NAME/journal.log     every trial, a line an event
runs/NAME/trial-007/      a run, with all its files
runs/NAME/trial-007.log   what its process said
runs/NAME/sweep.html      the page
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.records import known_fields, parse_record
from jaxdist.core.validation import json_text, parse_json
from jaxdist.launch.config.tree import format_value
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    folder_lock,
    read_json_object,
    read_jsonl,
    read_run_file,
)
from jaxdist.launch.sweep.space import (
    Metric,
    Parameter,
    ParameterRange,
    SearchSpace,
    parse_space,
)

if TYPE_CHECKING:
    import optuna

SWEEP_FILE: Final = "sweep.json"
_STUDY_NAME: Final = "sweep"
PrunerName = Literal["median", "none"]
STARTUP_TRIALS: Final = 5
"""Trials that come to their end before any is pruned."""


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What a sweep was started with; `sweep.json` of its folder."""

    experiment: str
    """Name of the experiment, or path of its file."""
    words: tuple[str, ...]
    """Ranges, lists and overrides as they were typed."""
    trials: int = 20
    """How many trials there are in the end."""
    metric: Metric = "test_loss"
    """What is compared: the loss on held-out samples, or the share of right answers."""
    pruner: PrunerName = "median"
    """median: a trial that is worse than the median of the others at the same
    evaluation is ended there."""
    seed: int = 0
    """Source of what is drawn."""

    @property
    def maximizes(self) -> bool:
        """Whether more is better."""
        return self.metric == "accuracy"

    def to_json(self) -> str:
        """Write the settings; `from_json` reads the same value back."""
        return json_text(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "SweepSettings":
        """Read settings that `to_json` wrote.

        Raises:
            BadInput: a field is missing or of another type.
        """
        tree = parse_json(text)
        return parse_record(cls, known_fields(cls, tree), "the sweep")


TrialState = Literal["done", "pruned", "failed", "running", "stopped"]


FINAL_STATES: Final[tuple[TrialState, ...]] = ("done", "pruned", "failed")
"""States of trials that are not resumed."""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial, as the table and the page show it."""

    number: int
    """Counted from 0; its run is `trial-NUMBER`."""
    state: TrialState
    """done: trained to its end; pruned: ended early, for it was worse than others;
    stopped: under way when its sweep ended."""
    params: Mapping[str, Any]
    """The values that were drawn, by key."""
    value: float | None = None
    """The metric; of a trial that was pruned, the last one it had."""
    evaluations: Mapping[int, float] = field(default_factory=dict)
    """The metric by number of the evaluation, from 1."""
    reason: str = ""
    """Why it failed."""

    @property
    def name(self) -> str:
        """Name of its run."""
        return trial_name(self.number)


def trial_name(number: int) -> str:
    """Return the name of the run of a trial.

    >>> trial_name(7)
    'trial-007'
    """
    return f"trial-{number:03d}"


def check_optuna() -> None:
    """Refuse to sweep without the package that draws the trials.

    Raises:
        BadInput: it is not installed.
    """
    if find_spec("optuna") is None:
        raise BadInput(
            "a sweep needs a package that is not installed",
            rule="trials are drawn, compared and kept by optuna",
            values="no module optuna",
            remedy="pip install 'jaxdist[sweep]'",
        )


def check_sweep(folder: Path, settings: SweepSettings) -> SearchSpace:
    """Hold a sweep against its experiment, and against what its folder holds.

    Args:
        folder: of the sweep; it need not be there.
        settings: what is asked for.

    Raises:
        BadInput: the words are wrong, or the folder has another sweep or a run.
    """
    check_optuna()
    if settings.trials < 1:
        raise BadInput(
            "a sweep needs a trial",
            rule="--trials is above zero",
            values=f"--trials {settings.trials}",
            remedy="--trials 20",
        )
    space = parse_space(settings.experiment, settings.words)
    if RunFolder(folder).has_run:
        raise BadInput(
            f"{folder} is the folder of a run",
            rule="a sweep has a folder of its own",
            remedy=f"--name {folder.name}-sweep",
        )
    if not (folder / SWEEP_FILE).exists():
        return space
    before = read_settings(folder)
    # More trials may be asked for; all else would make one study of two.
    old, new = (asdict(replace(each, trials=1)) for each in (before, settings))
    changed = [key for key in old if old[key] != new[key]]
    if changed or settings.trials < before.trials:
        changed = changed or ["trials"]
        key = changed[0]
        shown = [format_value(getattr(each, key)) for each in (before, settings)]
        raise BadInput(
            f"{folder} has another sweep",
            rule="a sweep resumes as it was started; --trials may be larger",
            values=f"{key}: {shown[0]}, now {shown[1]}",
            remedy=(f"--name {folder.name}-2", f"jaxdist sweep {folder.name} --show"),
        )
    return space


def read_settings(folder: Path) -> SweepSettings:
    """Return what a sweep was started with.

    Raises:
        BadInput: the folder has no sweep, or its file is damaged.
    """
    if not (folder / SWEEP_FILE).is_file():
        raise BadInput(
            f"no sweep in {folder}",
            rule=f"the folder of a sweep has a {SWEEP_FILE}",
            remedy=f"jaxdist sweep digits optim.lr=1e-3..1e-1:log --name {folder.name}",
        )
    return read_run_file(folder / SWEEP_FILE, SweepSettings.from_json)


@contextmanager
def claim_sweep(folder: Path, settings: SweepSettings) -> Iterator[None]:
    """Hold the folder of a sweep for this process, and make its journal whole.

    Raises:
        BadInput: another process is at work there.
    """
    try:
        with folder_lock(RunFolder(folder)):
            write_atomic(folder / SWEEP_FILE, settings.to_json())
            repair_journal(folder / "journal.log")
            yield
    except BadInput as error:
        if "at work" not in error.what:
            raise
        raise BadInput(
            error.what,
            rule="one process at a time starts the trials of a sweep; --workers N has "
            "it start several at once",
            values=error.values,
            remedy=(f"--name {folder.name}-2", "or wait for it to end"),
        ) from error


def repair_journal(path: Path) -> None:
    """Take away what a kill has left of an event: a part of a line, and a lock.

    Args:
        path: the journal, which this process alone works on.
    """
    # optuna would wait for the lock for half a minute, and behind a part of a line it
    # would write the next one.
    for left in path.parent.glob(f"{path.name}.lock*"):
        left.unlink(missing_ok=True)
    if path.exists():
        whole = path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            with path.open("r+b") as file:
                file.truncate(end)


def open_study(folder: Path, settings: SweepSettings) -> "optuna.Study":
    """Open the study of a sweep, or make it."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    # It would say, beside our lines, that it has made a study.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    pruner = optuna.pruners.NopPruner()
    if settings.pruner == "median":
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS)
    try:
        return optuna.load_study(study_name=_STUDY_NAME, storage=storage, pruner=pruner)
    except KeyError:
        return optuna.create_study(
            study_name=_STUDY_NAME,
            storage=storage,
            direction="maximize" if settings.maximizes else "minimize",
            pruner=pruner,
        )


def next_trial(
    study: "optuna.Study", settings: SweepSettings, space: SearchSpace
) -> "optuna.Trial | None":
    """Draw the next trial; None where all have been drawn."""
    import optuna

    number = len(study.get_trials(deepcopy=False))
    if number >= settings.trials:
        return None
    # A source of its own for each trial: one for the whole sweep would begin again
    # with the process, and draw the same values twice.
    digest = hashlib.sha256(f"{settings.seed} {number}".encode()).digest()
    study.sampler = optuna.samplers.TPESampler(seed=int.from_bytes(digest[:4], "big"))
    trial = study.ask()
    # At once: the study has another sampler as soon as the next trial is drawn.
    draw_values(trial, space)
    return trial


def running_trials(study: "optuna.Study", space: SearchSpace) -> "list[optuna.Trial]":
    """Return the trials that had not ended when the sweep did."""
    import optuna

    waiting = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING])
    # `Study.ask` makes new trials alone: one that runs is opened by its key there.
    found = [optuna.Trial(study, trial._trial_id) for trial in waiting]
    for trial in found:
        # A kill may have come before all values were drawn; the others stay.
        draw_values(trial, space)
    return found


def draw_values(trial: "optuna.Trial", space: SearchSpace) -> dict[str, Any]:
    """Return the values of a trial by key; those that it lacks are drawn."""
    return {each.key: _draw(trial, each) for each in space.parameters}


def _draw(trial: "optuna.Trial", parameter: Parameter) -> Any:
    if isinstance(parameter, ParameterRange):
        key, low, high = parameter.key, parameter.low, parameter.high
        if parameter.whole:
            return trial.suggest_int(key, int(low), int(high), log=parameter.log)
        return trial.suggest_float(key, low, high, log=parameter.log)
    return trial.suggest_categorical(parameter.key, parameter.choices)


def trial_overrides(space: SearchSpace, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the overrides of a trial, as `jaxdist train` takes them."""
    drawn = (
        f"{each.key}={format_value(values[each.key])}" for each in space.parameters
    )
    return (*space.fixed, *drawn)


def run_evaluations(run: RunFolder, metric: Metric) -> dict[int, float]:
    """Return the metric of each evaluation of a run so far, by its number from 1."""
    key = "loss" if metric == "test_loss" else metric
    # A run that was resumed may have made an evaluation twice: the later one holds.
    by_step = {
        row["step"]: row[key]
        for row in read_jsonl(run.metrics).rows
        if row.get("kind") == "test" and isinstance(row.get(key), int | float)
    }
    # By number: steps differ with the batch size, and optuna compares equal ones alone.
    return {n: float(by_step[step]) for n, step in enumerate(sorted(by_step), 1)}


def run_outcome(run: RunFolder, metric: Metric) -> float | None:
    """Return the metric of a run that has ended; None where it has not, or has none."""
    record = read_json_object(run.summary) or {}
    value = record.get("loss" if metric == "test_loss" else metric)
    is_done = record.get("status") == "done"
    return float(value) if is_done and isinstance(value, int | float) else None


def report_evaluations(trial: "optuna.Trial", values: Mapping[int, float]) -> None:
    """Tell the study of the evaluations that it does not know yet."""
    known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    for number, value in values.items():
        # optuna keeps the first value of a number, and warns of another.
        if number not in known:
            trial.report(value, number)


def read_trials(study: "optuna.Study") -> tuple[TrialRecord, ...]:
    """Return every trial, the best first; then those pruned, running and failed."""
    from optuna.trial import TrialState as State

    names: dict[State, TrialState] = {
        State.COMPLETE: "done",
        State.PRUNED: "pruned",
        State.FAIL: "failed",
    }
    found = []
    for trial in study.get_trials(deepcopy=False):
        seen = trial.intermediate_values
        last = seen[max(seen)] if seen else None
        found.append(
            TrialRecord(
                number=trial.number,
                state=names.get(trial.state, "running"),
                params=dict(trial.params),
                value=trial.value if trial.state is State.COMPLETE else last,
                evaluations=dict(seen),
                reason=str(trial.user_attrs.get("reason", "")),
            )
        )
    sign = -1 if study.direction.name == "MAXIMIZE" else 1
    order: tuple[TrialState, ...] = ("done", "pruned", "running", "failed")
    found.sort(
        key=lambda each: (
            order.index(each.state),
            float("inf") if each.value is None else sign * each.value,
            each.number,
        )
    )
    return tuple(found)
