"""Training: a resolved configuration run from its start, or its newest checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import jax

from jaxdist.core.run_record import Run
from jaxdist.input.device_feed import Feed, train_feed
from jaxdist.launch.config.provenance import ResolvedConfig
from jaxdist.launch.devices.prepare import PreparedDevices
from jaxdist.launch.distributed.preemption import batches_until, never_stop
from jaxdist.launch.distributed.process_group import ProcessGroup, process_group
from jaxdist.launch.run_folder.folder import RunFolder, write_atomic
from jaxdist.launch.run_folder.folder_lock import folder_lock
from jaxdist.launch.training.checkpoints import RunCheckpointer, open_checkpoints
from jaxdist.launch.training.evaluate import make_evaluator
from jaxdist.launch.training.job.job import Job
from jaxdist.launch.training.observers import run_observers
from jaxdist.launch.training.preflight import check_lowered, check_program
from jaxdist.launch.training.prepare import PreparedRun, prepare_run
from jaxdist.launch.training.profiler import write_step_breakdown
from jaxdist.launch.training.session import RunObserver, TrainingSession
from jaxdist.launch.training.summary import summarize_run, write_shuffle_quality
from jaxdist.partition.audit import ignore_difference, raise_difference
from jaxdist.train import program as programs
from jaxdist.train.loop import FitResult, fit
from jaxdist.train.metrics import Recorder
from jaxdist.train.program import Program
from jaxdist.train.run_schedule import RunSchedule
from jaxdist.train.state import TrainState

if TYPE_CHECKING:
    from jaxdist.train.checkpoint.checkpoints import Checkpoints
    from jaxdist.train.checkpoint.restore import RestoredState

BatchIterator = Iterator[Mapping[str, jax.Array]]


def train(
    resolved: ResolvedConfig,
    prepared: PreparedDevices,
    observer: RunObserver,
    *,
    start_time: float,
    wrap_batches: Callable[
        [BatchIterator, int], BatchIterator
    ] = lambda batches, start: batches,
    should_stop: Callable[[], bool] = never_stop,
) -> tuple[Run, RunFolder]:
    """Run a configuration to its end, or until asked to end.

    Args:
        resolved: checked settings.
        prepared: the plan fitted to the devices.
        observer: is shown what happens.
        start_time: when the command started, Unix seconds.
        wrap_batches: wraps the batches, to profile some steps for example.
        should_stop: whether to end here, and from then on; asked between steps.

    Raises:
        BadInput: it cannot run as asked; nothing was written.
    """
    jax.config.update("jax_enable_x64", resolved.config.precision == "float64")
    mine = process_group()
    work = prepare_run(resolved, prepared, mine)
    with ExitStack() as stack:
        own = work.folder if mine.is_primary else _temporary_folder(stack)
        with mine.primary_first("claim"):
            stack.enter_context(folder_lock(own))
        to = stack.enter_context(
            run_observers(
                work.job,
                mine,
                work.folder,
                own,
                print_line=observer.print_line,
                on_cpu=work.auto_reduce.prepared.platform == "cpu",
                start_time=start_time,
            )
        )
        checkpoints = open_checkpoints(work.folder, work.job.config.checkpoint.keep)
        stack.callback(checkpoints.close)
        start, state = _start_session(work, checkpoints, to.recorder, mine)
        check_program(mine, start.program)
        to.status_writer.mark_accepted()
        work.write_config(own)
        to.recorder.resume_from(start.start_step)
        observer.on_start(start)
        feed = stack.enter_context(_train_feed(start, work))
        batches = batches_until(wrap_batches(feed, start.start_step), should_stop)
        judge = make_evaluator(work.job, work.sources[1], should_stop)
        outcome = fit(
            start.program,
            state,
            batches,
            course=_run_schedule(start, to.recorder, mine),
            evaluate=judge,
            saver=RunCheckpointer(checkpoints, start.resolved, work.job),
            recorder=to.recorder,
            watcher=observer,
            rates=work.job.learning_rates,
        )
        run = _finish_session(start, outcome, to.recorder, checkpoints, feed)
        write_atomic(own.summary, run.to_json())
        if mine.is_primary:
            write_shuffle_quality(own, start, work.sources[0], run.steps)
        write_step_breakdown(start.program, own.traces, start_time, own.step_breakdown)
        to.status_writer.finish(run.status)
    return run, work.folder


def _temporary_folder(stack: ExitStack) -> RunFolder:
    """Return a folder for what process 0 alone writes of a run; it goes in the end."""
    return RunFolder(Path(stack.enter_context(TemporaryDirectory())))


def _start_session(
    work: PreparedRun,
    checkpoints: "Checkpoints",
    recorder: Recorder,
    mine: ProcessGroup,
) -> tuple[TrainingSession, TrainState]:
    """Compile the step, and compute or read the first state."""
    program, state, restored = _compile_and_restore(
        work.job, checkpoints, recorder, mine
    )
    start = TrainingSession(
        job=work.job,
        program=program,
        folder=work.folder,
        prepared=work.auto_reduce.prepared,
        resolved=work.auto_reduce.resolved,
        sample_counts=(len(work.sources[0]), len(work.sources[1])),
        restored=restored,
        all_reduce_choice=work.auto_reduce.message,
    )
    return start, state


def _compile_and_restore(
    job: Job, checkpoints: "Checkpoints", recorder: Recorder, mine: ProcessGroup
) -> "tuple[Program, TrainState, RestoredState | None]":
    """Compile the step while the first state is computed or read."""
    fresh = not checkpoints.steps()
    with recorder.phase("compile", 0), ThreadPoolExecutor(1) as pool:
        first = pool.submit(programs.initial_state, job.layout) if fresh else None
        differs = raise_difference if job.config.audit == "fail" else ignore_difference
        seen = partial(check_lowered, mine, job.layout)
        program = programs.compile_program(job.layout, differs, seen)
        if first is not None:
            return program, first.result(), None
    with recorder.phase("checkpoint", 0):
        restored = checkpoints.restore_newest(job.layout.stored)
    if restored is None:
        raise RuntimeError("the checkpoints vanished while the run started")
    return program, job.layout.from_checkpoint(restored.state), restored


def _train_feed(start: TrainingSession, work: PreparedRun) -> Feed:
    layout, data = start.job.layout, start.job.config.data
    return train_feed(
        work.sources[0],
        start.job.order,
        start.program.batch_shardings,
        shapes=layout.padded_shapes(layout.batch_shapes),
        dtypes=layout.task.objective.dtypes,
        max_shift=data.shift,
        start=start.start_step,
        threads=data.prefetch_workers,
        sample_store=work.sample_store,
    )


def _run_schedule(
    start: TrainingSession, recorder: Recorder, mine: ProcessGroup
) -> RunSchedule:
    """Return the course; all processes owe the evaluation that process 0 misses."""
    step, course = start.start_step, start.job.run_schedule
    # The sitting before was asked to end in an evaluation.
    owed = (
        step > 0
        and course.is_evaluation_step(step)
        and not recorder.was_evaluated(step)
    )
    return replace(course, resume_evaluation=mine.broadcast("owed evaluation", owed))


def _finish_session(
    start: TrainingSession,
    outcome: FitResult,
    recorder: Recorder,
    checkpoints: "Checkpoints",
    feed: Feed,
) -> Run:
    """Wait for what is under way, and write down what happened."""
    with recorder.phase("checkpoint", start.job.run_schedule.steps):
        checkpoints.wait()
    feed.close()  # what is under way would be counted in parts
    return summarize_run(
        start,
        outcome,
        recorder,
        checkpoint=max(checkpoints.steps(), default=None),
        sample_exchange={}
        if feed.store_runtime is None
        else feed.store_runtime.sample_counts(),
    )
