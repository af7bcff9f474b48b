"""Evaluating: a job, or a checkpoint of a run that was trained, on held-out samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from jaxdist.core.plan import Plan
from jaxdist.input.device_feed import eval_feed
from jaxdist.input.registry import open_data
from jaxdist.launch.config import Experiment
from jaxdist.launch.distributed.preemption import never_stop
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.checkpoints import open_checkpoints
from jaxdist.launch.training.job.batch_spec import feature_spec
from jaxdist.launch.training.job.job import Job, make_job
from jaxdist.train.evaluate import Evaluator

if TYPE_CHECKING:
    from jaxdist.input.sources import Source


def make_evaluator(
    job: Job, validation: "Source", should_stop: Callable[[], bool] = never_stop
) -> Evaluator:
    """Return the evaluation of a job on its held-out samples.

    Args:
        job: what was trained.
        validation: the held-out samples.
        should_stop: whether to end here, and from then on; asked after every batch.
    """
    shapes = job.eval_shapes
    shardings = job.layout.batch_shardings(shapes)
    size = shapes["id"].shape[0]
    return Evaluator(
        layout=job.layout,
        batch_shapes=shapes,
        should_stop=should_stop,
        batches=lambda: eval_feed(
            validation,
            size,
            shardings,
            shapes=job.layout.padded_shapes(shapes),
            dtypes=job.layout.task.objective.dtypes,
        ),
    )


def evaluate_checkpoint(
    config: Experiment, plan: Plan, folder: RunFolder, step: int | None
) -> tuple[int, dict[str, Any]]:
    """Score one checkpoint.

    Args:
        config: configuration of the run.
        plan: layout to evaluate on.
        folder: the run.
        step: its step; None takes the newest.

    Returns:
        The checkpoint's step, and loss, accuracy, correct and samples.

    Raises:
        BadInput: there is no such checkpoint, or it is damaged.
    """
    jax.config.update("jax_enable_x64", config.precision == "float64")
    train, test = open_data(config.data, feature_spec(config))
    job = make_job(config, plan, train)
    checkpoints = open_checkpoints(folder, config.checkpoint.keep)
    scored = replace(job.layout.stored, opt=None, feedback=None, replicas=None)
    try:
        restored = checkpoints.restore(step, scored)
    finally:
        checkpoints.close()
    return int(restored.step), make_evaluator(job, test)(
        job.layout.from_checkpoint(restored.state)
    )
