"""What the terminal shows while a run goes: the opening and the progress line."""

import contextlib
from collections.abc import Sequence
from statistics import fmean
from typing import Final, Self

from rich.console import Console

from jaxdist.core.text.formatting import format_count, format_percent
from jaxdist.launch.distributed.process_group import process_group
from jaxdist.launch.terminal.console import console
from jaxdist.launch.terminal.progress_bar import (
    PHASE_TEXTS,
    ProgressBar,
    StageProgress,
)
from jaxdist.launch.terminal.run_summary import TerminalRunHeader, pluralize
from jaxdist.launch.training.job.optimizer_schedule import schedule_from_task
from jaxdist.launch.training.job.shuffle_quality import shuffle_line
from jaxdist.launch.training.session import TrainingSession
from jaxdist.train.callbacks import EvalMetrics
from jaxdist.train.optimizers import RunSchedule
from jaxdist.train.program import Program

_EMA_WEIGHT: Final = 0.1
NO_CHAIN_WARNING: Final = (
    "{} has no chain() of named blocks: no pipeline stages, no splits of a range of "
    "blocks, and nothing is computed again block by block"
)
"""What a network that is no chain misses."""


class ConsoleReporter:
    """Shows a run on the terminal: facts on standard output, progress on error.

    Args:
        quiet: keep standard output for the one object of `--json`.
        stages: says what is under way until the run begins; None: nothing does.
    """

    def __init__(self, *, quiet: bool, stages: StageProgress | None = None) -> None:
        # With --json standard output has the one JSON object and nothing else.
        self._console: Console = console(error=quiet)
        self._quiet, self._stack = quiet, contextlib.ExitStack()
        # It is made when the run begins: until then nothing can be shown.
        self._progress_bar: ProgressBar | None = None
        self._stages, self._losses = stages, list[float]()
        self._schedule: RunSchedule | None = None
        self._batch, self._mean_step_s = 0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def on_start(self, session: TrainingSession) -> None:
        """Print the opening and start the progress line."""
        course = session.job.run_schedule
        self._schedule = course
        if self._stages is not None:
            self._stages.close()
        if not self._quiet:
            self._console.print(make_run_header(session), crop=False)
            self._console.print()
        self._batch = session.job.order.batch
        self._progress_bar = self._stack.enter_context(
            ProgressBar(
                steps=course.steps,
                epochs=session.job.config.epochs,
                start_step=session.start_step,
                # On standard error, so that the facts can be piped without the progress
                # line.
                console=console(error=True),
            )
        )

    def on_step(self, *, step: int, loss: float, step_s: float) -> None:
        """Move the progress line; the pace is a running mean of step times."""
        # Exponential smoothing: the pace follows a change within some ten steps, and
        # one slow step hardly moves it.
        self._losses.append(loss)
        old = self._mean_step_s or step_s
        self._mean_step_s = old + _EMA_WEIGHT * (step_s - old)
        if self._progress_bar is not None:
            self._progress_bar.update(
                step, loss, self._batch / max(self._mean_step_s, 1e-9)
            )

    def on_evaluation(self, *, step: int, metrics: EvalMetrics) -> None:
        """Print the line of an epoch: its training loss, test loss and test score."""
        losses, self._losses = self._losses, []
        if self._progress_bar is not None and self._schedule is not None:
            course = self._schedule
            # An epoch ends within a step, which has samples of the next one as well.
            done = max(step * course.batch_size // course.samples, 1)
            epoch = done + (step >= course.steps)
            self._progress_bar.print_epoch(epoch, epoch_line(losses, metrics))

    def on_phase(self, phase: str, step: int) -> None:
        """Show which phase begins, where it may take long."""
        if self._progress_bar is not None:
            self._progress_bar.show_phase(PHASE_TEXTS.get(phase, ""))
        elif self._stages is not None:
            self._stages.on_phase(phase, step)

    def print_line(self, text: str) -> None:
        """Show a line above the progress line."""
        if self._progress_bar is not None:
            self._progress_bar.print_line(text)

    def ends(self) -> None:
        """Take the progress line away."""
        self._stack.close()


class NullReporter(contextlib.nullcontext["NullReporter"]):
    """Shows nothing: process 0 of a run shows it for all."""

    def __enter__(self) -> "NullReporter":
        return self

    def on_start(self, session: TrainingSession) -> None:
        """Show nothing."""

    def on_step(self, *, step: int, loss: float, step_s: float) -> None:
        """Show nothing."""

    def on_evaluation(self, *, step: int, metrics: EvalMetrics) -> None:
        """Show nothing."""

    def on_phase(self, phase: str, step: int) -> None:
        """Show nothing."""

    def print_line(self, text: str) -> None:
        """Show nothing."""


def make_run_header(session: TrainingSession) -> TerminalRunHeader:
    """Return the facts of a beginning, as the opening shows them."""
    job, config, program = session.job, session.job.config, session.program
    plan = job.plan
    schedule = schedule_from_task(config, plan, job.layout.task, job.run_schedule)
    shuffle, data = shuffle_line(job.order, config.epochs), config.data
    if data.cache != "none":
        place = {"memory": "in memory", "disk": "on disk"}[data.cache]
        source = {"origin": "the data set", "peers": "peers"}[data.exchange]
        shuffle += f"; kept {place}, brought by {source}"

    # What was measured and chosen has a line of its own; all other changes of the plan
    # are warnings, before what is wrong with checkpoints and the compiled step.
    chosen = [a.text for a in job.adjustments if a.key == "plan.reduce.algorithm"]
    changed = [a.text for a in job.adjustments if a.key != "plan.reduce.algorithm"]
    warnings = [*job.warnings, *changed]
    if not job.is_chain:
        warnings.append(NO_CHAIN_WARNING.format(config.model.name))
    skipped = session.restored.skipped_checkpoints if session.restored else ()
    warnings += [f"checkpoint {s.step} skipped: {s.reason}" for s in skipped]
    warnings += [" ".join(str(error).split()) for error in program.differences]
    every, steps = plan.outer.sync_interval, job.run_schedule.steps
    if plan.replicas > 1 and steps % every:
        # Replicas train on their own between two outer steps, which average them.
        warnings.append(
            f"{pluralize(steps % every, 'step')} behind the last outer step: what "
            "they learn is in no replica's parameters but its own "
            f"(plan.outer.sync_interval={every})"
        )
    return TerminalRunHeader(
        experiment=job.resolved.experiment,
        plan=plan,
        platform=job.platform,
        is_virtual=job.platform == "cpu" and plan.mesh.devices > 1,
        processes=process_group().size,
        model=config.model.name,
        parameter_count=program.num_params,
        frozen_count=program.num_frozen,
        data=config.data.name,
        train_samples=len(job.sources[0]),
        test_samples=len(job.sources[1]),
        batch=job.order.batch,
        epochs=config.epochs,
        steps=job.run_schedule.steps,
        folder=session.folder.path,
        resumed_at=session.start_step if session.restored is not None else None,
        value_sources=job.resolved.count_sources(),
        audit=audit_line(program),
        memory_bytes=program.memory_bytes,
        attention=program.attention,
        has_logit_chunks=bool(program.layout.logits_product),
        learning_rate=f"{schedule.peak_rate_text}, warm-up "
        f"{pluralize(schedule.ramp.steps, 'step')}"
        if job.parts.optimizer is None and job.parts.learning_rate is None
        else "a value of the program that runs",
        weight_decay=schedule.weight_decay_text
        if job.parts.optimizer is None
        else "the optimizer's own",
        shuffle=shuffle,
        all_reduce="".join(chosen),
        warnings=warnings,
    )


def audit_line(program: Program) -> str:
    """Write what the audit of a compiled step found in one line."""
    made, differ = len(program.collectives), len(program.differences)
    found = (
        pluralize(differ, "difference") + " from the plan" if differ else "as planned"
    )
    return f"{pluralize(made, 'collective')}, {found}"


def epoch_line(losses: Sequence[float], metrics: EvalMetrics) -> str:
    """Write what an epoch came to in one line.

    Args:
        losses: of its steps; empty where none was made.
        metrics: of the evaluation after it.

    >>> epoch_line([0.5, 0.3], {"loss": 0.38, "accuracy": 0.886})
    'training loss 0.400  test loss 0.380  test accuracy 88.60 %'
    """
    parts = [f"training loss {fmean(losses):.3f}"] if losses else []
    if metrics.get("loss") is not None:
        parts.append(f"test loss {metrics['loss']:.3f}")
    if metrics.get("accuracy") is not None:
        parts.append(f"test accuracy {format_percent(metrics['accuracy'], 2)}")
    return "  ".join(parts)


def accuracy_line(score: EvalMetrics) -> str:
    """Write a score in one line.

    >>> accuracy_line({"accuracy": 0.75, "correct": 3, "answers": 4, "loss": 0.03})
    'test accuracy 75.00 % (3 of 4), loss 0.030'
    """
    if score["accuracy"] is None:  # an objective without answers
        return f"test loss {score['loss']:.3f}"
    share = format_percent(score["accuracy"], 2)
    of = f"{format_count(score['correct'])} of {format_count(score['answers'])}"
    return f"test accuracy {share} ({of}), loss {score['loss']:.3f}"
