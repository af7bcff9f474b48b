"""The Python front: an experiment run or planned by a program, or in a notebook.

`jaxdist.run(experiment)` is `jaxdist train`, and `jaxdist.plan_for(experiment)` is
`jaxdist plan`, with values in place of words. Errors are exceptions of the house, and
nothing ends the program.
"""

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from jaxdist.core.plan import Plan
from jaxdist.core.run_record import Run
from jaxdist.launch.config import Experiment, RunConfig
from jaxdist.launch.config.plan_file import plan_to_overrides
from jaxdist.launch.distributed.environment import is_multi_process
from jaxdist.launch.distributed.jax_processes import (
    WATCHED_HEARTBEAT_TIMEOUT_S,
    initialize,
)
from jaxdist.launch.distributed.preemption import PreemptionHandler, never_stop
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.tracking.registry import make_trackers
from jaxdist.launch.tracking.run_tracking import RunTracking
from jaxdist.launch.tracking.tracker import Tracker
from jaxdist.launch.training.job.request import JobRequest, resolve_request
from jaxdist.launch.training.job.setup import settle
from jaxdist.launch.training.job.task_parts import (
    LossFunction,
    MetricFunction,
    RateFunction,
    TaskParts,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import optax

    from jaxdist.launch.run_folder.folder import RunFolder
    from jaxdist.launch.training.session import RunObserver, TrainingSession
    from jaxdist.train.callbacks import Callback, EvalMetrics
    from jaxdist.train.objective import Objective

_NO_METRICS: Final[Mapping[str, MetricFunction]] = MappingProxyType({})


def run(
    experiment: Experiment | str,
    *,
    plan: Plan | None = None,
    callbacks: "Sequence[Callback | Tracker]" = (),
    optimizer: "optax.GradientTransformation | Callable[[Any], Any] | None" = None,
    learning_rate: float | RateFunction | None = None,
    objective: "Objective | LossFunction | None" = None,
    metrics: Mapping[str, MetricFunction] = _NO_METRICS,
    overrides: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Train an experiment to its end, or resume its run.

    What `jaxdist train` does, in this process: it compiles and audits the step, trains,
    evaluates, saves, and writes the run folder with its report. Processes that a
    launcher has started call it alike. Values that are no settings are not in the run
    folder: whoever resumes a run hands them over again.

    Args:
        experiment: settings, or the name or file of an experiment.
        plan: how the work is split, in place of the experiment's; it is run as it is.
        callbacks: told what happens, in this order (`jaxdist.Callback`); trackers of
            one's own as well (`jaxdist.Tracker`).
        optimizer: a transform of optax in place of `optim`, or a function from the
            learning rate, a schedule, to one.
        learning_rate: a number or schedule by step, in place of that of `optim`; given
            to an optimizer that is a function, and recorded.
        objective: what is trained, in place of the network's: an `Objective`, or
            `loss(outputs, batch)`, to the loss of each sample, [B].
        metrics: `metric(outputs, batch)` by name, to one number a sample, [B]; their
            means over the held-out samples are in each evaluation.
        overrides: changed settings as on the command line: `["optim.lr=0.1"]`.
        quiet: print nothing.

    Returns:
        The record of the run: score, steps, seconds, bytes.

    Raises:
        BadInput: it cannot run as asked; nothing was written.
        AuditError: the compiled step is not what its plan says.
    """
    started, environ = time.time(), os.environ
    # Only the first of several runs of a program joins its processes.
    if is_multi_process(environ) and process_group().size == 1:
        initialize(WATCHED_HEARTBEAT_TIMEOUT_S)
    group = process_group()
    parts = TaskParts(
        optimizer=optimizer,
        learning_rate=learning_rate,
        objective=objective,
        metrics=metrics,
    )
    if isinstance(experiment, Experiment) and group.size == 1:
        experiment = _without_watchdog(experiment)
    # The last word for a key holds: overrides win over the plan.
    words = [*(plan_to_overrides(plan) if plan else ()), *overrides]
    # What a program says is what it wants, also where its run had other settings.
    request = JobRequest(
        experiment=experiment,
        overrides=words,
        parts=parts,
        accepts_changes=True,
        command=_program_command(),
    )
    own_trackers, told = split_callbacks(callbacks)
    # Trackers end last: they keep the report too.
    with ExitStack() as tracked, ExitStack() as stack:
        # Signals are the main thread's; a notebook may run its cells in another one.
        is_main = threading.current_thread() is threading.main_thread()
        stop = stack.enter_context(PreemptionHandler(group)) if is_main else never_stop
        with group.primary_first("request"):
            asked = resolve_request(request, for_training=True)
            # Process 0 alone calls trackers.
            trackers: dict[str, Tracker] = {}
            if group.is_primary:
                names = asked.resolved.config.track
                trackers = {**make_trackers(names), **own_trackers}
        if group.broadcast("finished", asked.is_finished):
            record = Run.from_json(asked.folder.summary.read_text())
            if group.is_primary and not quiet:
                _print_finished(record, asked.folder)
            return record
        job = settle(asked, group, for_training=True)

        # From here on jax is imported: it sees the devices that were just prepared.
        from jaxdist.launch.training.console_reporter import (
            ConsoleReporter,
            NullReporter,
        )
        from jaxdist.launch.training.train import train

        shows = group.is_primary and not quiet
        reporter: RunObserver = NullReporter()
        if shows:
            reporter = stack.enter_context(ConsoleReporter(quiet=False))
        observer = _CallbackObserver(reporter, told)
        tracking = tracked.enter_context(RunTracking(trackers))
        record, folder = train(
            job, observer, start_time=started, should_stop=stop, tracking=tracking
        )
        # The progress line ends, and signals are the program's again.
        stack.close()
        for callback in told:
            callback.on_end(record)
        if group.is_primary:
            _write_report(record, folder, shows=shows)
        tracking.end(record, folder)
    return record


def plan_for(
    experiment: Experiment | str,
    *,
    cluster: str,
    devices: int,
    overrides: Sequence[str] = (),
    compressors: Sequence[str] = (),
) -> Plan:
    """Choose the plan of an experiment on some devices of a cluster: the fastest.

    What `jaxdist plan` puts first; no device is used.

    Args:
        experiment: settings, or the name or file of an experiment.
        cluster: a name of docs/clusters.md, or a file.
        devices: how many of its devices.
        overrides: changed settings; a key of the plan that is given is not searched.
        compressors: lossy compressors that may be chosen: `["int8"]`.

    Raises:
        BadInput: no such cluster, or no layout can be run.

    >>> plan_for("digits", cluster="abci", devices=4).mesh.devices
    4
    """
    from jaxdist.launch.planning.layout_search import PlanQuery, search_layouts

    found = search_layouts(
        PlanQuery(
            experiment=experiment,
            overrides=overrides,
            cluster=cluster,
            devices=(devices,),
            compressors=",".join(compressors) or None,
        )
    )
    return found.ranking.plans[0].plan


def split_callbacks(
    callbacks: "Sequence[Callback | Tracker]",
) -> "tuple[dict[str, Tracker], list[Callback]]":
    """Tell trackers of one's own, by the names of their classes, from callbacks."""
    trackers: dict[str, Tracker] = {}
    told: list[Callback] = []
    for each in callbacks:
        # A callback may have methods of the same names for itself.
        if isinstance(each, Tracker) and not hasattr(each, "on_step"):
            name, count = type(each).__name__, len(trackers)
            trackers[f"{name} {count + 1}" if name in trackers else name] = each
        else:
            told.append(cast("Callback", each))
    return trackers, told


class _CallbackObserver:
    """Tells callbacks of a run, behind what is shown on the terminal."""

    def __init__(self, shown: "RunObserver", callbacks: "Sequence[Callback]") -> None:
        self._shown, self._callbacks = shown, callbacks

    def on_start(self, session: "TrainingSession") -> None:
        """Tell that the run begins."""
        from jaxdist.train.callbacks import RunStart

        self._shown.on_start(session)
        start = RunStart(
            name=session.folder.name,
            folder=session.folder.path,
            plan=session.job.plan,
            steps=session.job.run_schedule.steps,
            start_step=session.start_step,
        )
        for callback in self._callbacks:
            callback.on_begin(start)

    def on_step(self, *, step: int, loss: float, step_s: float) -> None:
        """Tell of a step."""
        self._shown.on_step(step=step, loss=loss, step_s=step_s)
        for callback in self._callbacks:
            callback.on_step(step=step, loss=loss, step_s=step_s)

    def on_scalars(self, *, step: int, scalars: "Mapping[str, float]") -> None:
        """Tell of what a step reports beside its loss."""
        for callback in self._callbacks:
            callback.on_scalars(step=step, scalars=scalars)

    def on_evaluation(self, *, step: int, metrics: "EvalMetrics") -> None:
        """Tell of an evaluation."""
        self._shown.on_evaluation(step=step, metrics=metrics)
        for callback in self._callbacks:
            callback.on_evaluation(step=step, metrics=metrics)

    def on_checkpoint(self, *, step: int) -> None:
        """Tell of a checkpoint."""
        for callback in self._callbacks:
            callback.on_checkpoint(step=step)

    def print_line(self, text: str) -> None:
        """Show a line."""
        self._shown.print_line(text)


def _program_command() -> tuple[str, ...]:
    """Return the command that started this program; where none did, the call's name.

    Values of a program cannot all be typed as settings of `jaxdist train`, so what
    starts its run again is the program.
    """
    _, *words = sys.orig_argv
    typed = not words or words[0] in ("-", "-c")
    if typed or "ipykernel" in sys.modules:
        return ("jaxdist.run",)
    return ("python", *words)


def _without_watchdog(experiment: Experiment) -> Experiment:
    """Return an experiment whose run is never ended as hung, unless it says when.

    The watchdog ends the process, which here is a notebook's or a program's own; and a
    callback may wait for a person.
    """
    if experiment.run.hang_timeout_s != RunConfig.hang_timeout_s:
        return experiment
    return replace(experiment, run=replace(experiment.run, hang_timeout_s=0))


def _print_finished(record: Run, folder: "RunFolder") -> None:
    """Say that a run which is started again was finished before."""
    from jaxdist.launch.terminal.console import console
    from jaxdist.launch.terminal.run_summary import finished_text, wrap_hanging

    out = console()
    text = finished_text(record, folder.path.name)
    out.print(wrap_hanging(text, 10, out.width), crop=False)
    out.print(f"\n  report   {folder.report}", soft_wrap=True)


def _write_report(record: Run, folder: "RunFolder", *, shows: bool) -> None:
    """Write the report, and print the summary of the run."""
    from jaxdist.launch.report import write_report
    from jaxdist.launch.run_folder.next_commands import suggest_commands
    from jaxdist.launch.terminal.console import console
    from jaxdist.launch.terminal.run_summary import run_summary

    write_report(folder.path)
    if shows:
        commands = suggest_commands(record, folder)
        console().print(run_summary(record, folder.path, commands), crop=False)
