"""Training: a job, run from its start or from its newest checkpoint to its end."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.core.plan import Plan
from jaxdist.core.run_record import Run
from jaxdist.core.validation import json_text
from jaxdist.input.device_feed import local_rows, train_feed
from jaxdist.input.local_shuffle.setup import Keep, check_local_rows, check_no_workers
from jaxdist.input.registry import augmentation_of
from jaxdist.input.tokenizer import TOKENIZER_FILE
from jaxdist.input.tokens import TokenSource
from jaxdist.launch.config.tree import flatten_config
from jaxdist.launch.distributed.jax_processes import peer_facing_address
from jaxdist.launch.distributed.preemption import batches_until, never_stop
from jaxdist.launch.distributed.process_group import ProcessGroup, process_group
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    check_writable,
    folder_lock,
    read_json_object,
    run_folder,
)
from jaxdist.launch.run_folder.lockfile import write_config_lock
from jaxdist.launch.tracking.run_tracking import NO_TRACKING, RunTracking
from jaxdist.launch.tracking.tracker import TrackedRun
from jaxdist.launch.training.evaluate import make_evaluator
from jaxdist.launch.training.job.batch_spec import sample_spec
from jaxdist.launch.training.job.job import Job
from jaxdist.launch.training.job.shuffle_quality import measure_shuffle_quality
from jaxdist.launch.training.monitor.stragglers import StragglerMonitor
from jaxdist.launch.training.monitor.watchdog import HangWatchdog, StatusWriter
from jaxdist.launch.training.preflight import check_lowered, check_program
from jaxdist.launch.training.profiler import write_step_breakdown
from jaxdist.launch.training.readable_samples import (
    BatchIterator,
    ReadableEvaluator,
    ReadableSamples,
)
from jaxdist.launch.training.session import (
    RunObserver,
    TrainingSession,
    summarize_run,
)
from jaxdist.launch.training.start_weights import PRETRAINED_NOTE
from jaxdist.meshes.targets.compiler_options import program_options
from jaxdist.train.callbacks import EvalMetrics
from jaxdist.train.loop import fit
from jaxdist.train.metrics import Recorder
from jaxdist.train.program import Program, initial_state, lower_program
from jaxdist.train.state import TrainState
from jaxdist.train.task import ModelSpec

if TYPE_CHECKING:
    from jaxdist.launch.config.experiment import Experiment
    from jaxdist.train.checkpoint.checkpoints import Checkpoints
    from jaxdist.train.checkpoint.remote_copies import RemoteCopies
    from jaxdist.train.checkpoint.restore import RestoredState


def train(
    job: Job,
    observer: RunObserver,
    *,
    start_time: float,
    wrap_batches: Callable[
        [BatchIterator, int], BatchIterator
    ] = lambda batches, start: batches,
    should_stop: Callable[[], bool] = never_stop,
    set_abort: Callable[[Callable[[], None]], None] = lambda action: None,
    on_phase: Callable[[str, int], None] = lambda phase, step: None,
    tracking: RunTracking = NO_TRACKING,
) -> tuple[Run, RunFolder]:
    """Run a job to its end, or until asked to end.

    Args:
        job: settled for training.
        observer: is shown what happens.
        start_time: when the command started, Unix seconds.
        wrap_batches: wraps the batches, to profile some steps for example.
        should_stop: whether to end here, and from then on; asked between steps.
        set_abort: is given what to call where the process is ended at once.
        on_phase: called with name and step of each phase that begins, and with an empty
            name where one ends.
        tracking: is told what is logged; the caller ends it, once there is a report.

    Raises:
        BadInput: it cannot run as asked; nothing was written.
    """
    group, folder, config = process_group(), run_folder(job.config), job.config
    source, held_out = job.sources
    sample_store = _sample_store(job, group, folder)
    # Before the run has a folder: a store may be mistyped.
    copies = _remote_copies(config, group, folder)
    with ExitStack() as stack:
        # Process 0 alone writes the run. The others write the same files, so that no
        # code has to ask, into a folder that is deleted in the end.
        own = (
            folder
            if group.is_primary
            else RunFolder(Path(stack.enter_context(TemporaryDirectory())))
        )
        # Process 0 first: a folder that another run holds is refused once.
        with group.primary_first("claim"):
            stack.enter_context(folder_lock(own))

        # Observers end in reverse order. The recorder is told of each phase and tells
        # the others; it ends last, since they write while they end.
        watchdog = HangWatchdog(group, config.run.hang_timeout_s, folder.stacks)
        stragglers = StragglerMonitor(
            group,
            config.run.straggler_interval,
            observer.print_line,
            own.stragglers,
            on_cpu=job.platform == "cpu",
        )

        def on_any_phase(phase: str, step: int) -> None:
            watchdog.on_phase(phase, step)
            stragglers.on_phase(phase, step)
            on_phase(phase, step)

        recorder = Recorder(
            *(own.metrics, own.spans, start_time, on_any_phase),
            stragglers.on_input_starvation,
            tracking.log_row,
        )
        stack.callback(recorder.close)
        stack.enter_context(watchdog)
        stack.enter_context(stragglers)
        status = StatusWriter(
            own.status, job.run_schedule.steps, group, watchdog.heartbeats
        )
        # Before the first word: whoever ends the process has one to correct.
        set_abort(lambda: status.finish("stopped"))
        stack.enter_context(status)

        checkpoints = _open_checkpoints(config, group, folder, copies, observer)
        stack.callback(checkpoints.close)
        program, state, restored = _compile_and_restore(
            job, checkpoints, recorder, group
        )
        # Text that was lowered alike may be compiled otherwise, by another compiler or
        # flags.
        check_program(group, program)
        session = TrainingSession(
            job=job, program=program, folder=folder, restored=restored
        )
        start = session.start_step

        # The run is accepted. Its settings are written only now: a run that is refused
        # keeps the values that it was trained with.
        status.mark_accepted()
        _write_settings(job, own, start)
        _begin_logging(session, own, recorder, tracking)
        observer.on_start(session)

        # An earlier attempt may have been asked to end during the evaluation after its
        # last step. Process 0 has the record of it, so it decides for all.
        schedule = job.run_schedule
        was_missed = group.broadcast(
            "missed evaluation",
            start > 0
            and schedule.is_evaluation_step(start)
            and not recorder.was_evaluated(start),
        )
        feed = stack.enter_context(
            train_feed(
                source,
                job.order,
                program.batch_shardings,
                shapes=job.layout.padded_shapes(job.layout.batch_shapes),
                dtypes=sample_spec(config, job.layout),
                augmentation=augmentation_of(config.data, source),
                start=start,
                threads=config.data.prefetch_workers,
                sample_store=sample_store,
            )
        )
        readable = ReadableSamples()
        outcome = fit(
            program,
            state,
            # The poll is outermost: every process makes it as often, whatever wraps the
            # batches.
            batches_until(readable.batches(wrap_batches(feed, start)), should_stop),
            schedule=replace(schedule, resume_evaluation=was_missed),
            evaluate=ReadableEvaluator(
                make_evaluator(job, held_out, should_stop), readable
            ),
            checkpointer=RunCheckpointer(
                checkpoints, job, _pretrained_note(job, restored)
            ),
            recorder=recorder,
            callback=observer,
            learning_rates=job.learning_rates,
        )

        # What is under way is waited for: saves, and the exchange of samples, which
        # would be counted in parts.
        with recorder.phase("checkpoint", int(outcome.state.step)):
            checkpoints.wait()
        # Raised only here, once the state is saved: after a repair the same command
        # goes on from there.
        readable.raise_error()
        feed.close()
        store = feed.store_runtime
        run = summarize_run(
            session,
            outcome,
            recorder,
            checkpoint=max(checkpoints.steps(), default=None),
            best=checkpoints.best(),
            sample_exchange={} if store is None else store.sample_counts(),
            earlier=_earlier_record(folder),
        )
        write_atomic(own.summary, run.to_json())
        # A pass over the samples, which one process makes for all.
        if group.is_primary:
            _write_shuffle_quality(job, own, run)
        write_step_breakdown(program, own.traces, start_time, own.step_breakdown)
        status.finish(run.status)
    return run, folder


def _remote_copies(
    config: "Experiment", group: ProcessGroup, folder: RunFolder
) -> "RemoteCopies | None":
    """Return where checkpoints are copied to, which can be written; None: nowhere."""
    from jaxdist.train.checkpoint.remote_copies import RemoteCopies

    if not (store := config.checkpoint.store.rstrip("/")):
        return None
    run_files = folder.config_lock, folder.plan, folder.tokenizer
    copies = RemoteCopies(f"{store}/{folder.name}", run_files)
    # Process 0 copies for all: it reads what each of them has written.
    with group.primary_first("store"):
        if group.is_primary:
            copies.check(write=True)
    return copies


def _open_checkpoints(
    config: "Experiment",
    group: ProcessGroup,
    folder: RunFolder,
    copies: "RemoteCopies | None",
    observer: RunObserver,
) -> "Checkpoints":
    """Open the checkpoints of a run, with those that the store alone has."""
    from jaxdist.train.checkpoint.checkpoints import Checkpoints

    # In the folder of the run: each process writes its part of a checkpoint.
    checkpoints = Checkpoints(
        folder.checkpoints,
        max_to_keep=config.checkpoint.keep,
        exclusive=True,
        copies=copies,
    )
    if copies is not None:
        with group.primary_first("copies"):
            skipped = checkpoints.fetch_newest()
        for skip in skipped:
            observer.print_line(f"copy of {skip.text()}")
    return checkpoints


def _write_settings(job: Job, folder: RunFolder, start: int) -> None:
    """Write the configuration and the plan, and the files beside its first weights."""
    write_config_lock(
        folder,
        job.resolved,
        job.sample_fingerprints,
        command=job.command,
        options=job.options,
        step=start,
    )
    write_atomic(folder.plan, job.plan.to_json())
    if job.weights is not None:
        job.weights.copy_companions(folder)
    train, *_ = job.sources
    if isinstance(train, TokenSource):
        # So that checkpoints write text where the data is no more.
        text = (train.folder / TOKENIZER_FILE).read_text(encoding="utf-8")
        write_atomic(folder.tokenizer, text)


def _begin_logging(
    session: TrainingSession,
    folder: RunFolder,
    recorder: Recorder,
    tracking: RunTracking,
) -> None:
    """Drop what is logged of steps that are made again, and begin with the trackers."""
    job = session.job
    recorder.resume_from(session.start_step)
    tracking.start(
        TrackedRun(
            name=session.folder.name,
            experiment=job.config.name,
            folder=folder.path,
            config=flatten_config(job.config),
            plan=job.plan.to_json(),
            steps=job.run_schedule.steps,
            start_step=session.start_step,
        )
    )


def _write_shuffle_quality(job: Job, folder: RunFolder, run: Run) -> None:
    """Write how well the samples were mixed, where each epoch exchanged a part."""
    source = job.sources[0]
    epochs = run.steps * job.order.batch / len(source)
    quality = measure_shuffle_quality(job.order, source, epochs)
    if quality is not None:
        write_atomic(folder.shuffle_quality, json_text(quality, indent=2) + "\n")


def _earlier_record(folder: RunFolder) -> Run | None:
    """Return the record of a run's earlier attempts; None where it cannot be read."""
    tree = read_json_object(folder.summary)
    with suppress(BadInput):
        return None if tree is None else Run.from_tree(tree)
    return None


def _sample_store(job: Job, group: ProcessGroup, folder: RunFolder) -> Keep | None:
    """Return how this process stores samples; None where it stores none.

    Every process of the run calls it at the same time, before anything is written.

    Raises:
        BadInput: samples that these processes cannot store, a folder that cannot be
            written, or no such interface.
    """
    data = job.config.data
    if data.cache == "none":
        return None
    check_no_workers(data.prefetch_workers)
    shardings = job.layout.batch_shardings(job.layout.batch_shapes)
    rows = local_rows(shardings.values(), job.order.batch)
    check_local_rows(job.sources[0], job.order, rows)
    # Runs on one machine have a folder each.
    own = Path(data.cache_dir) / folder.name if data.cache == "disk" else None
    if own is not None:
        check_writable(own, key="data.cache_dir")
    with_peers = data.exchange == "peers"
    address = peer_facing_address(group, data.interface) if with_peers else ""
    return Keep(folder=own, interface=address)


def _compile_and_restore(
    job: Job, checkpoints: "Checkpoints", recorder: Recorder, group: ProcessGroup
) -> "tuple[Program, TrainState, RestoredState | None]":
    """Compile the step, and compute the first state or read the newest one."""
    with recorder.phase("compile", 0), ThreadPoolExecutor(1) as pool:
        # XLA compiles without the interpreter lock, so a fresh state is computed
        # meanwhile. A checkpoint is read afterwards, in a phase of its own.
        fresh = not checkpoints.steps()
        start = job.weights.read() if fresh and job.weights else None
        first = pool.submit(initial_state, job.layout, start) if fresh else None
        lowered = lower_program(job.layout)
        # Compared before compiling: processes with different programs would meet in no
        # collective, and hang minutes later.
        check_lowered(group, lowered)
        program = lowered.compile(program_options(job.layout))
        if job.config.audit == "fail":
            program.raise_difference()
        if first is not None:
            return program, first.result(), None
    with recorder.phase("checkpoint", 0):
        restored = checkpoints.restore_newest(job.layout.stored)
    if restored is None:
        raise RuntimeError("the checkpoints vanished while the run started")
    return program, job.layout.from_checkpoint(restored.state), restored


def _pretrained_note(job: Job, restored: "RestoredState | None") -> Mapping[str, Any]:
    """Return what is noted of the weights that a run has started from, at any time."""
    if restored is not None:
        return restored.metadata.get(PRETRAINED_NOTE) or {}
    return job.weights.origin if job.weights else {}


def checkpoint_metadata(
    experiment: str, spec: ModelSpec, plan: Plan, vocabulary: Sequence[str] = ""
) -> dict[str, Any]:
    """Return what a reader of a checkpoint needs to know of its run.

    Args:
        experiment: name of the experiment, or its file.
        spec: how the network is made.
        plan: that the state was saved under.
        vocabulary: what tokens stand for.
    """
    return {
        "experiment": experiment,
        "recipe": asdict(spec),
        "plan": json.loads(plan.to_json()),
        "vocabulary": vocabulary,
    }


class RunCheckpointer:
    """Saves states, each with what a reader needs to know of its run.

    Args:
        checkpoints: where.
        job: what runs.
        pretrained: what an export gives back of the weights that it started from.
    """

    def __init__(
        self,
        checkpoints: "Checkpoints",
        job: Job,
        pretrained: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._checkpoints, self._layout = checkpoints, job.layout
        self._goal = job.config.checkpoint.goal
        self._metadata = checkpoint_metadata(
            job.resolved.experiment, job.model_spec, job.plan, job.vocabulary
        )
        if pretrained:
            self._metadata[PRETRAINED_NOTE] = dict(pretrained)
        if job.sources and isinstance(job.sources[0], TokenSource):
            self._metadata["end"] = job.sources[0].about.end

    def is_best(self, metrics: EvalMetrics) -> bool:
        """Whether the metric that `checkpoint.best` names is better than ever."""
        value = metrics.get(self._goal.metric) if self._goal else None
        if self._goal is None or value is None:
            return False
        best = self._checkpoints.best()
        # A run may be resumed with another metric: then no value of before compares.
        # Nothing is better than nan, so a first value that is nan would stay for ever.
        if best is None or best.metric != self._goal.metric:
            return not math.isnan(value)
        return self._goal.is_better(value, than=best.value)

    def save(self, state: TrainState, metrics: EvalMetrics) -> None:
        """Save a state; returns before it is on disk."""
        best = None
        if self._goal is not None and self.is_best(metrics):
            metric = self._goal.metric
            value = float(metrics[metric])
            best = BestCheckpoint(step=int(state.step), metric=metric, value=value)
        self._checkpoints.save(
            self._layout.to_checkpoint(state), self._metadata, best=best
        )
