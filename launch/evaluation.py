"""Evaluating a run that was trained: one of its checkpoints on the held-out samples."""

from dataclasses import replace
from typing import Any

import jax

from jaxdist.core.plan import Plan
from jaxdist.input.registry import open_data
from jaxdist.launch.config import Experiment
from jaxdist.launch.job import make_job
from jaxdist.launch.runs import RunFolder
from jaxdist.launch.samples import wanted
from jaxdist.launch.training import evaluator, open_checkpoints


def evaluate(
    config: Experiment, plan: Plan, folder: RunFolder, checkpoint: int | None
) -> tuple[int, dict[str, Any]]:
    """Score one checkpoint.

    Args:
        config: configuration of the run.
        plan: layout to evaluate on.
        folder: the run.
        checkpoint: its step; None takes the newest.

    Returns:
        The checkpoint's step, and loss, accuracy, correct and samples.

    Raises:
        BadInput: there is no such checkpoint, or it is damaged.
    """
    jax.config.update("jax_enable_x64", config.precision == "float64")
    train, test = open_data(config.data, wanted(config))
    job = make_job(config, plan, train)
    checkpoints = open_checkpoints(folder, config.checkpoint.keep)
    scored = replace(job.layout.stored, opt=None, feedback=None, replicas=None)
    try:
        restored = checkpoints.restore(checkpoint, scored)
    finally:
        checkpoints.close()
    return int(restored.step), evaluator(job, test)(job.layout.take(restored.state))
