"""The record: what came of a run, from its loop, its phases and its program."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import numpy as np

from jaxdist.core.run_record import Run
from jaxdist.launch.run_folder.folder import RunFolder, write_atomic
from jaxdist.launch.training.job.shuffle_quality import (
    measure_shuffle_quality,
    shuffle_line,
)
from jaxdist.launch.training.session import TrainingSession
from jaxdist.train.loop import FitResult
from jaxdist.train.metrics import Recorder
from jaxdist.train.nonfinite import count_skipped_steps

if TYPE_CHECKING:
    from jaxdist.input.sources import Source

_NOT_EVALUATED: Final = {
    **{"accuracy": None, "loss": None},
    **{"correct": 0, "answers": 0, "samples": 0},
}


def summarize_run(
    session: TrainingSession,
    outcome: FitResult,
    recorder: Recorder,
    *,
    checkpoint: int | None,
    sample_exchange: Mapping[str, int],
) -> Run:
    """Write down what happened.

    Args:
        session: how the sitting began.
        outcome: what the loop saw.
        recorder: the seconds of its steps and phases.
        checkpoint: step of the newest one.
        sample_exchange: what was exchanged of samples, counted.
    """
    job, plan = session.job, session.job.layout.plan
    low, median, high = _step_time_percentiles(recorder)
    phases = recorder.phase_seconds()
    score = _NOT_EVALUATED | dict(outcome.eval_metrics)
    return Run(
        name=session.folder.name,
        experiment=session.resolved.experiment,
        status="stopped" if outcome.stopped_early else "done",
        plan=asdict(plan),
        devices=plan.mesh.devices,
        platform=session.prepared.platform,
        parameters=session.program.num_params,
        steps=int(outcome.state.step),
        skipped=count_skipped_steps(outcome.state.opt),
        accuracy=score["accuracy"],
        loss=score["loss"],
        correct=score["correct"],
        answers=score["answers"],
        held_out=score["samples"],
        shuffle=shuffle_line(job.order, job.config.epochs),
        samples_per_s=job.order.batch / median if median else 0.0,
        step_s=median,
        step_s_p5=low,
        step_s_p95=high,
        wall_s=sum(phases.values()),
        first_step_s=outcome.first_step_s,
        phases_s=phases,
        bytes_by_collective=job.layout.ledger.sent_bytes_by_term(),
        collectives=[asdict(row) for row in session.program.audit_rows],
        memory_bytes=session.program.memory_bytes,
        resumed_at=session.start_step if session.restored is not None else None,
        checkpoint=checkpoint,
        exchange=sample_exchange,
    )


def _step_time_percentiles(recorder: Recorder) -> tuple[float, float, float]:
    """Return the seconds of a step: 5th percentile, median, 95th; the first apart."""
    seconds = np.array(recorder.step_seconds[1:] or recorder.step_seconds or [0.0])
    low, median, high = np.percentile(seconds, [5, 50, 95])
    return float(low), float(median), float(high)


def write_shuffle_quality(
    local_folder: RunFolder, session: TrainingSession, source: "Source", steps: int
) -> None:
    """Write down how well samples were mixed, where a part of them was exchanged."""
    order = session.job.order
    found = measure_shuffle_quality(order, source, steps * order.batch / len(source))
    if found is not None:
        write_atomic(local_folder.shuffle_quality, json.dumps(found, indent=2) + "\n")
