"""Training: a resolved configuration run from its start, or its newest checkpoint."""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol

import jax
import numpy as np

from jaxdist.core.run import Run
from jaxdist.input.feed import Feed, eval_feed, train_feed
from jaxdist.input.kept import Keep
from jaxdist.input.registry import open_data
from jaxdist.launch.bulletin import Bulletin
from jaxdist.launch.changes import check_resume, check_samples
from jaxdist.launch.claim import claimed
from jaxdist.launch.company import Company, company
from jaxdist.launch.devices import Prepared
from jaxdist.launch.job import Job, make_job
from jaxdist.launch.kept import keep_for
from jaxdist.launch.lock import Data, read_lock, samples_of, write_lock
from jaxdist.launch.measuring import write_measured
from jaxdist.launch.preempted import never, until
from jaxdist.launch.preflight import check_lowered, check_program
from jaxdist.launch.provenance import Resolved
from jaxdist.launch.runs import RunFolder, check_writable, folder_of, write_whole
from jaxdist.launch.samples import wanted
from jaxdist.launch.settle import recorded, settled
from jaxdist.launch.shuffling import shuffle_line
from jaxdist.launch.stragglers import Stragglers
from jaxdist.launch.watch import Watch
from jaxdist.partition.audit import let_pass, stop
from jaxdist.train import program as programs
from jaxdist.train.evaluate import Evaluator
from jaxdist.train.loop import Outcome, Watcher, fit
from jaxdist.train.metrics import Recorder
from jaxdist.train.nonfinite import skipped_steps
from jaxdist.train.program import Program
from jaxdist.train.state import TrainState

if TYPE_CHECKING:
    from jaxdist.input.sources import Source
    from jaxdist.launch.config import Experiment
    from jaxdist.train.checkpoint import Checkpoints
    from jaxdist.train.restore import Restored

Batches = Iterator[Mapping[str, jax.Array]]
_NOT_EVALUATED: Final = {
    **{"accuracy": None, "loss": None},
    **{"correct": 0, "answers": 0, "samples": 0},
}


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a sitting begins."""

    job: Job
    """What runs."""
    program: Program
    """The compiled step."""
    folder: RunFolder
    """Where its files go."""
    prepared: Prepared
    """The devices."""
    resolved: Resolved
    """The configuration and who set it."""
    samples: tuple[int, int]
    """Training and held-out samples."""
    restored: "Restored | None"
    """The checkpoint it goes on from, with those that were skipped."""
    chosen: str = ""
    """How gradients are summed, where that was measured, as one line."""

    @property
    def step(self) -> int:
        """Steps done before."""
        return 0 if self.restored is None else int(self.restored.step)


class Onlooker(Watcher, Protocol):
    """Someone who is told how a sitting begins, too."""

    def begins(self, start: Start) -> None:
        """See the beginning, before the first step."""

    def note(self, text: str) -> None:
        """See a line that is meant for a person."""


def train(
    resolved: Resolved,
    prepared: Prepared,
    onlooker: Onlooker,
    *,
    started: float,
    through: Callable[[Batches, int], Batches] = lambda batches, start: batches,
    ends: Callable[[], bool] = never,
) -> tuple[Run, RunFolder]:
    """Run a configuration to its end, or until asked to end.

    Args:
        resolved: checked settings.
        prepared: the plan fitted to the devices.
        onlooker: is shown what happens.
        started: when the command started, Unix seconds.
        through: wraps the batches, to profile some steps for example.
        ends: whether to end here, and from then on; asked between steps.

    Raises:
        BadInput: it cannot run as asked; nothing was written.
    """
    config = resolved.config
    jax.config.update("jax_enable_x64", config.precision == "float64")
    folder, mine = run_folder(resolved), company()
    with mine.in_turn("folder and samples"):
        check_writable(folder.path)
        now = recorded(resolved, prepared, folder)
        sources, samples = _opened(now.resolved.config, folder)
    now = settled(now, sources[0])
    resolved, prepared, config = now.resolved, now.prepared, now.resolved.config
    job = make_job(config, prepared.plan, sources[0])
    keep = keep_for(job, sources[0], mine, folder.name)
    with ExitStack() as stack:
        own = folder if mine.leads else _aside(stack)
        with mine.in_turn("claim"):
            stack.enter_context(claimed(own))
        watch = Watch(mine, config.run.hang_s, folder.stacks)
        slow = Stragglers(
            mine,
            config.run.straggler_every,
            onlooker.note,
            own.slow,
            on_processor=prepared.platform == "cpu",
        )

        def enters(phase: str, step: int) -> None:
            watch.enters(phase, step)
            slow.enters(phase, step)

        recorder = Recorder(own.metrics, own.spans, started, enters, slow.starved)
        stack.callback(recorder.close)
        stack.enter_context(watch)
        stack.enter_context(slow)
        news = Bulletin(own.status, job.course.steps, mine, watch.places)
        stack.enter_context(news)
        checkpoints = open_checkpoints(folder, config.checkpoint.keep)
        stack.callback(checkpoints.close)
        begin = _begin(job, checkpoints, recorder, mine)
        check_program(mine, begin[0])
        news.accept()
        # Only now: a run that cannot go on keeps the values it was trained with.
        write_lock(own, resolved, samples)
        write_whole(own.plan, prepared.plan.to_json())
        start = Start(
            job=job,
            program=begin[0],
            folder=folder,
            prepared=prepared,
            resolved=resolved,
            samples=(len(sources[0]), len(sources[1])),
            restored=begin[2],
            chosen=now.said,
        )
        recorder.goes_on_from(start.step)
        onlooker.begins(start)
        feed = stack.enter_context(_train_feed(start, sources[0], keep))
        outcome = fit(
            start.program,
            begin[1],
            until(through(feed, start.step), ends),
            course=replace(job.course, owed=mine.told("test", _owed(start, recorder))),
            evaluate=evaluator(job, sources[1], ends),
            saver=_Notes(checkpoints, resolved, job),
            recorder=recorder,
            watcher=onlooker,
            rates=job.rates,
        )
        with recorder.phase("checkpoint", job.course.steps):
            checkpoints.wait()
        feed.close()  # what is under way would be counted in parts
        run = replace(
            _record(start, outcome, recorder, checkpoints),
            exchange={} if feed.kept is None else feed.kept.counts(),
        )
        write_whole(own.summary, run.to_json())
        write_measured(start.program, own.traces, started, own.measured)
        news.ends(run.status)
    return run, folder


def _opened(
    config: "Experiment", folder: RunFolder
) -> "tuple[tuple[Source, Source], Data]":
    """Open the samples of a run; refuse what does not go on with the run of before."""
    before = read_lock(folder) if folder.exists else None
    if before is not None:
        check_resume(before.resolved.config, config)
    sources = open_data(config.data, wanted(config))
    samples = samples_of(*sources)
    if before is not None:
        check_samples(before.data, samples)
    return sources, samples


def _owed(start: Start, recorder: Recorder) -> bool:
    """Whether the sitting before was asked to end in an evaluation."""
    step = start.step
    tests = step > 0 and start.job.course.tests(step)
    return tests and not recorder.was_tested(step)


def _aside(stack: ExitStack) -> RunFolder:
    """Return a folder for what process 0 alone writes of a run; it goes in the end."""
    return RunFolder(Path(stack.enter_context(TemporaryDirectory())))


def run_folder(resolved: Resolved) -> RunFolder:
    """Return the folder that a configuration's run has."""
    return folder_of(resolved.config)


def open_checkpoints(folder: RunFolder, keep: int) -> "Checkpoints":
    """Open the checkpoints of a run; nothing is made before the first save."""
    from jaxdist.train.checkpoint import Checkpoints

    return Checkpoints(folder.checkpoints, keep=keep)


def evaluator(job: Job, test: "Source", ends: Callable[[], bool] = never) -> Evaluator:
    """Return the evaluation of a job on its held-out samples.

    Args:
        job: what was trained.
        test: the held-out samples.
        ends: whether to end here, and from then on; asked after every batch.
    """
    shapes = job.test_shapes
    shardings = job.layout.batch(shapes)
    size = shapes["id"].shape[0]
    return Evaluator(
        layout=job.layout,
        shapes=shapes,
        ends=ends,
        batches=lambda: eval_feed(
            test,
            size,
            shardings,
            shapes=job.layout.padded(shapes),
            dtypes=job.layout.task.objective.dtypes,
        ),
    )


def _begin(
    job: Job, checkpoints: "Checkpoints", recorder: Recorder, mine: Company
) -> "tuple[Program, TrainState, Restored | None]":
    """Compile the step while the first state is computed or read."""
    fresh = not checkpoints.steps()
    with recorder.phase("compile", 0), ThreadPoolExecutor(1) as pool:
        first = pool.submit(programs.initial_state, job.layout) if fresh else None
        differs = stop if job.config.audit == "fail" else let_pass
        seen = partial(check_lowered, mine, job.layout)
        program = programs.compile_program(job.layout, differs, seen)
        if first is not None:
            return program, first.result(), None
    with recorder.phase("checkpoint", 0):
        restored = checkpoints.restore_newest(job.layout.stored)
    if restored is None:
        raise RuntimeError("the checkpoints vanished while the run started")
    return program, job.layout.take(restored.state), restored


def _train_feed(start: Start, source: "Source", keep: Keep | None) -> Feed:
    data = start.job.config.data
    return train_feed(
        source,
        start.job.order,
        start.program.batch,
        shapes=start.job.layout.padded(start.job.layout.shapes),
        dtypes=start.job.layout.task.objective.dtypes,
        shift=data.shift,
        start=start.step,
        threads=data.readers,
        keep=keep,
    )


class _Notes:
    """Saves states with what a reader needs to know of their run."""

    def __init__(
        self, checkpoints: "Checkpoints", resolved: Resolved, job: Job
    ) -> None:
        self._checkpoints, self._layout = checkpoints, job.layout
        self._about = {
            "experiment": resolved.source,
            "recipe": asdict(job.recipe),
            "plan": json.loads(job.layout.plan.to_json()),
            "vocabulary": job.vocabulary,
        }

    def save(self, state: TrainState) -> None:
        """Keep a state; returns before it is on disk."""
        self._checkpoints.save(self._layout.store(state), self._about)


def _record(
    start: Start, outcome: Outcome, recorder: Recorder, checkpoints: "Checkpoints"
) -> Run:
    """Write down what happened."""
    job, plan = start.job, start.job.layout.plan
    seconds = np.array(recorder.step_seconds[1:] or recorder.step_seconds or [0.0])
    low, median, high = np.percentile(seconds, [5, 50, 95])
    phases = recorder.phases()
    score = _NOT_EVALUATED | dict(outcome.score)
    return Run(
        name=start.folder.name,
        experiment=start.resolved.source,
        status="stopped" if outcome.stopped else "done",
        plan=asdict(plan),
        devices=plan.mesh.devices,
        platform=start.prepared.platform,
        parameters=start.program.parameters,
        steps=int(outcome.state.step),
        skipped=skipped_steps(outcome.state.opt),
        accuracy=score["accuracy"],
        loss=score["loss"],
        correct=score["correct"],
        answers=score["answers"],
        held_out=score["samples"],
        shuffle=shuffle_line(job.order, job.config.epochs),
        samples_per_s=job.order.batch / float(median) if median else 0.0,
        step_s=float(median),
        step_s_p5=float(low),
        step_s_p95=float(high),
        wall_s=sum(phases.values()),
        first_step_s=outcome.first_step_s,
        phases_s=phases,
        bytes_by_collective=job.layout.ledger.by_term(),
        memory_bytes=start.program.memory_bytes,
        resumed_at=start.step if start.restored is not None else None,
        checkpoint=max(checkpoints.steps(), default=None),
    )
