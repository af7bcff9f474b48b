"""The training loop: steps, evaluations and checkpoints, until a run ends."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxdist.train.callbacks import (
    CheckpointerProtocol,
    EvalMetrics,
    EvaluatorProtocol,
    PausingCallback,
    TrainingCallback,
    notify_checkpoint,
)
from jaxdist.train.metrics import LossQueue, Recorder
from jaxdist.train.nonfinite import count_skipped_steps
from jaxdist.train.optimizers import RunSchedule
from jaxdist.train.program import Program
from jaxdist.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Result of the training loop."""

    state: TrainState
    """State after the last step."""
    eval_metrics: EvalMetrics
    """Last evaluation: loss, accuracy, correct, samples."""
    first_step_s: float
    """Seconds from the start of the command to the first finished step."""
    stopped_early: bool = False
    """Whether the run was stopped before its last step; the state is saved."""


def fit(
    program: Program,
    state: TrainState,
    batches: Iterable[Mapping[str, jax.Array]],
    *,
    schedule: RunSchedule,
    evaluate: EvaluatorProtocol,
    checkpointer: CheckpointerProtocol,
    recorder: Recorder,
    callback: TrainingCallback,
    learning_rates: Callable[[np.ndarray], Any],
) -> FitResult:
    """Train from `state` to the end of the schedule, or of the batches.

    Args:
        program: compiled step.
        state: state to start from, which is donated; its `step` is the number of steps
            already done.
        batches: global batches from that step on, sharded as `program.batch_shardings`
            says. A run is stopped by their end, which all processes must reach alike.
        schedule: when to evaluate, to save and to end.
        evaluate: evaluates a state on the held-out samples.
        checkpointer: saves states.
        recorder: writes metrics and time spans.
        callback: called after steps and evaluations; a `PausingCallback` also between
            steps.
        learning_rates: function from an array of steps, from 0, to learning rates.
    """

    def evaluation(state: TrainState) -> EvalMetrics:
        step = int(state.step)
        if not evaluate.ready:
            with recorder.phase("compile", step):
                evaluate.prepare()
        with recorder.phase("evaluation", step):
            metrics = evaluate(state)
        # An interrupted evaluation has no metrics: it is done again when a run resumes.
        if metrics:
            recorder.log_evaluation(
                step=step, epoch=schedule.epoch_of(max(step, 1)), metrics=metrics
            )
            callback.on_evaluation(step=step, metrics=metrics)
        return metrics

    # Losses are fetched a few steps late (see LossQueue). Before anything that takes
    # time they are all fetched, so that it is not counted as a step's own.
    start, skipped = int(state.step), count_skipped_steps(state.opt)
    losses = LossQueue(schedule, recorder, callback, learning_rates, skipped)

    def save(state: TrainState, metrics: EvalMetrics) -> None:
        losses.drain()
        with recorder.phase("checkpoint", int(state.step)):
            checkpointer.save(state, metrics)
        notify_checkpoint(callback, int(state.step))

    metrics: EvalMetrics = {}
    feed = iter(batches)
    if schedule.resume_evaluation and start < schedule.steps:
        metrics = evaluation(state)
        if checkpointer.is_best(metrics):
            save(state, metrics)
    for step in range(start + 1, schedule.steps + 1):
        if isinstance(callback, PausingCallback) and callback.is_due(step):
            losses.pause(callback)
        with recorder.phase("input", step):
            # Fetched before the device is waited for: two steps are under way
            # meanwhile.
            batch = next(feed, None)
        if losses.devices_idle:
            recorder.on_starvation()
        if batch is None:
            break
        with recorder.phase("compute", step):
            state, step_metrics = program.run(step, state, batch)
            ids = batch.get("id") if isinstance(batch, Mapping) else None
            losses.push(step, step_metrics, state, ids)
        evaluates = schedule.is_evaluation_step(step)
        if evaluates:
            losses.drain()
        # Those of this state alone: an earlier one may have been better.
        metrics = evaluation(state) if evaluates else {}
        saves = schedule.is_checkpoint_step(step) or checkpointer.is_best(metrics)
        if saves:
            save(state, metrics)
        losses.restart_clock(evaluates or saves)

    # A run that was longer before is past the end of a shorter schedule.
    ended = int(state.step)
    finished = ended >= schedule.steps
    if finished and not metrics:
        metrics = evaluation(state)
    # Stopped early: the steps since the last checkpoint are saved, too.
    elif ended > start and not schedule.is_checkpoint_step(ended):
        save(state, {})
    return FitResult(
        state=state,
        eval_metrics=metrics,
        first_step_s=losses.first_step_s,
        stopped_early=not (finished and metrics),
    )
