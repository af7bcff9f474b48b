"""A session: one attempt of a run, how it begins and what came of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from jaxdist.core.metric_goal import BestCheckpoint
from jaxdist.core.run_record import Run
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.job import Job
from jaxdist.launch.training.job.shuffle_quality import shuffle_line
from jaxdist.train.callbacks import TrainingCallback
from jaxdist.train.loop import FitResult
from jaxdist.train.metrics import Recorder
from jaxdist.train.nonfinite import count_skipped_steps
from jaxdist.train.program import Program

if TYPE_CHECKING:
    from jaxdist.train.checkpoint.restore import RestoredState

_NOT_EVALUATED: Final[Mapping[str, Any]] = {
    **{"accuracy": None, "loss": None},
    **{"correct": 0, "answers": 0, "samples": 0},
}


@dataclass(frozen=True, kw_only=True)
class TrainingSession:
    """How an attempt begins."""

    job: Job
    """What runs."""
    program: Program
    """The compiled step."""
    folder: RunFolder
    """Where its files go."""
    restored: "RestoredState | None"
    """The checkpoint that it continues from, with those that were skipped."""

    @property
    def start_step(self) -> int:
        """Steps done before."""
        return 0 if self.restored is None else int(self.restored.step)


class RunObserver(TrainingCallback, Protocol):
    """A training callback that is told how an attempt begins, too."""

    def on_start(self, session: TrainingSession) -> None:
        """See the beginning, before the first step."""

    def print_line(self, text: str) -> None:
        """See a line that is meant for a person."""


def summarize_run(
    session: TrainingSession,
    outcome: FitResult,
    recorder: Recorder,
    *,
    checkpoint: int | None,
    best: BestCheckpoint | None = None,
    sample_exchange: Mapping[str, int],
    earlier: Run | None = None,
) -> Run:
    """Return the record of a run, as `summary.json` has it.

    Args:
        session: how the attempt began.
        outcome: what the loop saw.
        recorder: the seconds of its steps and phases.
        checkpoint: step of the newest one.
        best: the best one, if one is kept.
        sample_exchange: what was exchanged of samples, counted.
        earlier: the record that the run had before this attempt.
    """
    job, plan = session.job, session.job.plan
    # The first step sets up links and caches; it has a number of its own.
    seconds = recorder.step_seconds[1:] or recorder.step_seconds or [0.0]
    low, median, high = map(float, np.percentile(np.array(seconds), [5, 50, 95]))
    first_step_s = outcome.first_step_s
    if earlier is not None and not recorder.step_seconds:
        # No step was made, so those of the attempt before are the newest.
        low, median, high = earlier.step_s_p5, earlier.step_s, earlier.step_s_p95
        first_step_s = earlier.first_step_s
    phases = recorder.phase_seconds()
    # A run that was stopped early may have evaluated nothing.
    score = {**_NOT_EVALUATED, **outcome.eval_metrics}
    return Run(
        name=session.folder.name,
        experiment=job.resolved.experiment,
        # A run that was asked to end is `stopped`: it can be resumed.
        status="stopped" if outcome.stopped_early else "done",
        plan=asdict(plan),
        devices=plan.mesh.devices,
        platform=job.platform,
        parameters=session.program.num_params,
        frozen_parameters=session.program.num_frozen,
        steps=int(outcome.state.step),
        skipped=count_skipped_steps(outcome.state.opt),
        accuracy=score["accuracy"],
        loss=score["loss"],
        correct=score["correct"],
        answers=score["answers"],
        held_out=score["samples"],
        metrics={k: v for k, v in score.items() if k not in _NOT_EVALUATED},
        shuffle=shuffle_line(job.order, job.config.epochs),
        # The median: a checkpoint or an evaluation between two steps must not count.
        samples_per_s=job.order.batch / median if median else 0.0,
        step_s=median,
        step_s_p5=low,
        step_s_p95=high,
        wall_s=sum(phases.values()),
        first_step_s=first_step_s,
        phases_s=phases,
        bytes_by_collective=job.layout.ledger.sent_bytes_by_term(),
        collectives=[asdict(row) for row in session.program.audit_rows],
        memory_bytes=session.program.memory_bytes,
        resumed_at=session.start_step if session.restored is not None else None,
        checkpoint=checkpoint,
        best=best,
        exchange=sample_exchange,
    )
