"""The loop: steps, evaluations and checkpoints in their order, until the plan's end."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxdist.train.async_metrics import LossQueue
from jaxdist.train.callbacks import (
    CheckpointerProtocol,
    EvalMetrics,
    EvaluatorProtocol,
    PausingCallback,
    TrainingCallback,
)
from jaxdist.train.metrics import Recorder
from jaxdist.train.nonfinite import count_skipped_steps
from jaxdist.train.program import Program
from jaxdist.train.run_schedule import RunSchedule
from jaxdist.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What the loop saw."""

    state: TrainState
    """The state after the last step."""
    eval_metrics: EvalMetrics
    """The last evaluation: loss, accuracy, correct, samples."""
    first_step_s: float
    """Seconds from the start of the command to the first finished step."""
    stopped_early: bool = False
    """Whether it was asked to end before the course did; the state is saved."""


def fit(
    program: Program,
    state: TrainState,
    batches: Iterable[Mapping[str, jax.Array]],
    *,
    course: RunSchedule,
    evaluate: EvaluatorProtocol,
    saver: CheckpointerProtocol,
    recorder: Recorder,
    watcher: TrainingCallback,
    rates: Callable[[np.ndarray], Any],
) -> FitResult:
    """Train from `state` to the end of the course, or of the batches.

    Args:
        program: the compiled step.
        state: donated; its `step` says how far it is.
        batches: global batches from that step on, placed as `program.batch` says; they
            end early where the run is asked to end, in all processes alike.
        course: when to evaluate, to save and to end.
        evaluate: scores a state on the held-out samples.
        saver: keeps states.
        recorder: writes what happens.
        watcher: is shown what happens; one that is `PausingCallback` is asked before
        each step. rates: learning rates of an array of steps, from 0.
    """
    start = int(state.step)
    ledger = LossQueue(course, recorder, watcher, rates, count_skipped_steps(state.opt))
    score: EvalMetrics = {}
    feed = iter(batches)
    if course.resume_evaluation and start < course.steps:
        score = _run_evaluation(evaluate, state, course, recorder, watcher)
    for step in range(start + 1, course.steps + 1):
        if isinstance(watcher, PausingCallback) and watcher.due(step):
            ledger.pause(watcher)
        batch = _next_batch(feed, ledger, recorder, step)
        if batch is None:
            break
        with recorder.phase("compute", step):
            state, loss = program.run(step, state, batch)
            ledger.push(step, loss)
        if course.is_evaluation_step(step):
            ledger.drain()
            score = _run_evaluation(evaluate, state, course, recorder, watcher)
        if course.is_checkpoint_step(step):
            _save_checkpoint(saver, state, ledger, recorder)
        ledger.restart_clock(
            course.is_evaluation_step(step) or course.is_checkpoint_step(step)
        )
    ended = int(state.step)
    # A run that was longer before is past the end of a shorter course.
    finished = ended >= course.steps
    if finished and not score:
        score = _run_evaluation(evaluate, state, course, recorder, watcher)
    elif ended > start and not course.is_checkpoint_step(ended):
        _save_checkpoint(saver, state, ledger, recorder)
    return FitResult(
        state=state,
        eval_metrics=score if finished or course.is_evaluation_step(ended) else {},
        first_step_s=ledger.first_step_s,
        stopped_early=not (finished and score),
    )


def _save_checkpoint(
    saver: CheckpointerProtocol,
    state: TrainState,
    ledger: LossQueue,
    recorder: Recorder,
) -> None:
    ledger.drain()
    with recorder.phase("checkpoint", int(state.step)):
        saver.save(state)


def _next_batch(
    feed: Iterator[Mapping[str, jax.Array]],
    ledger: LossQueue,
    recorder: Recorder,
    step: int,
) -> Mapping[str, jax.Array] | None:
    """Return the next batch; None where the run is asked to end."""
    with recorder.phase("input", step):
        batch = next(feed, None)
    if ledger.devices_idle:
        recorder.on_starvation()
    return batch


def _run_evaluation(
    evaluate: EvaluatorProtocol,
    state: TrainState,
    course: RunSchedule,
    recorder: Recorder,
    watcher: TrainingCallback,
) -> EvalMetrics:
    step = int(state.step)
    if not evaluate.ready:
        with recorder.phase("compile", step):
            evaluate.prepare()
    with recorder.phase("evaluation", step):
        score = evaluate(state)
    if not score:
        return score
    recorder.tested(step=step, epoch=course.epoch_of(max(step, 1)), metrics=score)
    watcher.tested(step=step, metrics=score)
    return score
