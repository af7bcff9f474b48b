"""Execution: the trials of a sweep, each a run in a process of its own."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Final

from jaxdist.core.errors import FatalError
from jaxdist.launch.distributed.exit_codes import EXIT_BAD_INPUT, EXIT_RESTART
from jaxdist.launch.launchers.processes.group import (
    ProcessFailure,
    ProcessSpec,
    exit_on_signals,
    run_and_stream,
)
from jaxdist.launch.launchers.program import our_command
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.sweep.space import SearchSpace
from jaxdist.launch.sweep.study import (
    SweepSettings,
    TrialRecord,
    claim_sweep,
    draw_values,
    next_trial,
    open_study,
    read_trials,
    report_evaluations,
    run_evaluations,
    run_outcome,
    running_trials,
    trial_name,
    trial_overrides,
)

if TYPE_CHECKING:
    import optuna

_MAX_STARTS: Final = 3
"""Starts of a run that is ended by somebody else."""
_POLL_S: Final = 0.2
_ERROR_LINE: Final = re.compile(r"^(error: |\w*Error: )")

TrialCallback = Callable[[TrialRecord, tuple[TrialRecord, ...]], None]
"""Is called as a trial ends, with it and with all of them, the best first."""


def run_sweep(
    folder: Path,
    settings: SweepSettings,
    space: SearchSpace,
    *,
    workers: int,
    on_trial: TrialCallback,
) -> tuple[TrialRecord, ...]:
    """Make the trials that are not there yet, and return all of them, the best first.

    Trials that were under way as the sweep ended go on from their checkpoints.

    Args:
        folder: of the sweep.
        settings: what is swept.
        space: its words, checked.
        workers: trials that run at once.
        on_trial: called as a trial ends; never in two threads at once.

    Raises:
        BadInput: another process is at work in the folder.
        FatalError: the first trial was refused, as others would be.
    """
    with claim_sweep(folder, settings):
        study = open_study(folder, settings)
        sweep = _Sweep(folder, settings, space, study, on_trial)
        # This process alone is at work here: what counts as running was under way when
        # a sweep before was ended.
        sweep.waiting = running_trials(study, space)
        with exit_on_signals(), ThreadPoolExecutor(workers) as pool:
            running = [pool.submit(sweep.work) for _ in range(workers)]
            try:
                while wait(running, _POLL_S).not_done:
                    pass
            finally:
                # However this ends, processes save and end before it does.
                sweep.stop.set()
        # Raises here what was raised in a thread.
        for each in running:
            each.result()
        return read_trials(study)


@dataclass
class _Sweep:
    """What the threads of a sweep share; the study is asked by one at a time."""

    folder: Path
    settings: SweepSettings
    space: SearchSpace
    study: "optuna.Study"
    on_trial: TrialCallback
    waiting: "list[optuna.Trial]" = field(default_factory=list)
    stop: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)

    def work(self) -> None:
        """Make trials until all are made."""
        try:
            while not self.stop.is_set() and (trial := self._next()) is not None:
                self._make(trial)
        except BaseException:
            self.stop.set()
            raise

    def _next(self) -> "optuna.Trial | None":
        with self.lock:
            if self.waiting:
                return self.waiting.pop(0)
            return next_trial(self.study, self.settings, self.space)

    def _make(self, trial: "optuna.Trial") -> None:
        """Train a trial to its end, or until it is worse than others."""
        run = RunFolder(self.folder / trial_name(trial.number))
        failure: ProcessFailure | None = None
        prunes = False
        for _ in range(_MAX_STARTS):
            prunes = self._should_prune(trial, run)
            # A sweep that was killed may have a run that has ended meanwhile.
            if run_outcome(run, self.settings.metric) is not None or prunes:
                break
            watch = _PruningWatch(self, trial, run)
            failure = self._train(trial, run, watch)
            prunes = watch.prunes
            if failure is None or prunes:
                break
            if self.stop.is_set():
                return  # it goes on with the sweep
            # Below zero a signal ended it, sent by somebody else: it is started again.
            if failure.returncode != EXIT_RESTART and failure.returncode > 0:
                break
        self._tell(trial, run, failure, prunes=prunes)

    def _train(
        self, trial: "optuna.Trial", run: RunFolder, watch: "_PruningWatch"
    ) -> ProcessFailure | None:
        with self.lock:
            words = trial_overrides(self.space, draw_values(trial, self.space))
        place = (f"run.dir={self.folder}", f"run.name={run.name}")
        command = our_command(["train", self.settings.experiment, *words, *place])
        path = self.folder / f"{run.name}.log"
        with path.open("a", encoding="utf-8", buffering=1) as log:
            return run_and_stream(
                [ProcessSpec(command=command, env=dict(os.environ))],
                lambda rank, line, error: print(line, file=log),
                should_recall=lambda: self.stop.is_set() or watch(),
            )

    def _should_prune(self, trial: "optuna.Trial", run: RunFolder) -> bool:
        with self.lock:
            values = run_evaluations(run, self.settings.metric)
            report_evaluations(trial, values)
            return bool(values) and trial.should_prune()

    def _tell(
        self,
        trial: "optuna.Trial",
        run: RunFolder,
        failure: ProcessFailure | None,
        *,
        prunes: bool,
    ) -> None:
        """Keep what came of a trial.

        Raises:
            FatalError: it was refused before any other had an outcome.
        """
        from optuna.trial import TrialState as State

        self._should_prune(trial, run)  # the last evaluation is kept as well
        value = run_outcome(run, self.settings.metric)
        with self.lock:
            states = {each.state for each in self.study.get_trials(deepcopy=False)}
            # A run that came to its end counts, also where it was about to be pruned.
            if value is not None:
                self.study.tell(trial, value)
            elif prunes:
                self.study.tell(trial, state=State.PRUNED)
            else:
                reason = _failure_text(failure, self.settings)
                refused = failure is not None and failure.returncode == EXIT_BAD_INPUT
                if refused and not states & {State.COMPLETE, State.PRUNED}:
                    # It stays to be made: what is wrong may be put right.
                    log = self.folder / f"{run.name}.log"
                    raise FatalError(f"{run.name} was refused: {reason} ({log})")
                trial.set_user_attr("reason", reason)
                self.study.tell(trial, state=State.FAIL)
            trials = read_trials(self.study)
            mine = next(each for each in trials if each.number == trial.number)
            self.on_trial(mine, trials)


class _PruningWatch:
    """Looks at the evaluations of a run as they are written."""

    def __init__(self, sweep: _Sweep, trial: "optuna.Trial", run: RunFolder) -> None:
        self._sweep, self._trial, self._run = sweep, trial, run
        self._size, self.prunes = 0, False

    def __call__(self) -> bool:
        """Tell whether the run is worse than others, and is to end."""
        try:
            size = self._run.metrics.stat().st_size
        except FileNotFoundError:
            return False
        # Polled while the run goes: the file is read only where it has grown.
        if size != self._size and not self.prunes:
            self._size = size
            self.prunes = self._sweep._should_prune(self._trial, self._run)
        return self.prunes


def _failure_text(failure: ProcessFailure | None, settings: SweepSettings) -> str:
    if failure is None:
        return f"the run has no {settings.metric}"
    said = [line.strip() for line in failure.last_lines if line.strip()]
    # The last line is often of a traceback or of a runtime that shuts down.
    errors = [line for line in said if _ERROR_LINE.match(line)]
    line = (errors or said or ["it said nothing"])[-1]
    return f"its process {failure.exit_description}: {line}"


def print_trial(
    trial: TrialRecord, trials: Sequence[TrialRecord], settings: SweepSettings
) -> None:
    """Print what came of a trial, a line on standard error."""
    ended = sum(each.state != "running" for each in trials)
    came = trial.reason or f"{settings.metric} {format_metric(trial.value)}"
    drawn = " ".join(f"{k}={format_drawn(v)}" for k, v in trial.params.items())
    best = trials[0]
    ahead = f"; best {format_metric(best.value)}, {best.name}"
    sys.stderr.write(
        f"{ended} of {settings.trials}: {trial.name} {trial.state}, {came} ({drawn})"
        f"{ahead if best.state == 'done' and best != trial else ''}\n"
    )
    sys.stderr.flush()


def format_metric(value: float | None) -> str:
    """Write a metric, or that there is none.

    >>> format_metric(0.123456), format_metric(None)
    ('0.1235', 'none')
    """
    return "none" if value is None else f"{value:.4g}"


def format_drawn(value: object) -> str:
    """Write a value that was drawn, to four digits.

    >>> format_drawn(0.00123456), format_drawn(3), format_drawn("sgd")
    ('0.001235', '3', 'sgd')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)
