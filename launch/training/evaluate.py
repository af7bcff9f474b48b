"""Evaluating a job, or a checkpoint of a run, on the held-out samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxdist.input.device_feed import eval_feed
from jaxdist.launch.distributed.preemption import never_stop
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.batch_spec import sample_spec
from jaxdist.launch.training.job.job import Job
from jaxdist.meshes.targets.compiler_options import program_options
from jaxdist.train.checkpoint.best import CheckpointStep
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
    # All batches have one shape, the last one padded, so that one program serves all.
    shapes = job.eval_shapes
    shardings = job.layout.batch_shardings(shapes)
    size = shapes["id"].shape[0]
    return Evaluator(
        layout=job.layout,
        batch_shapes=shapes,
        should_stop=should_stop,
        compiler_options=program_options(job.layout),
        # Each evaluation reads the held-out samples anew, from the first on.
        batches=lambda: eval_feed(
            validation,
            size,
            shardings,
            shapes=job.layout.padded_shapes(shapes),
            dtypes=sample_spec(job.config, job.layout),
        ),
    )


def evaluate_checkpoint(
    job: Job, folder: RunFolder, step: CheckpointStep
) -> tuple[int, dict[str, Any]]:
    """Score one checkpoint.

    Args:
        job: of the configuration that the run was trained with.
        folder: the run.
        step: its step, `best`, or None for the newest.

    Returns:
        The checkpoint's step, and loss, accuracy, correct and samples.

    Raises:
        BadInput: there is no such checkpoint, or it is damaged.
    """
    from jaxdist.train.checkpoint.checkpoints import Checkpoints

    checkpoints = Checkpoints(folder.checkpoints, read_only=True)
    # An evaluation needs the weights alone; the rest is most of the bytes.
    scored = replace(job.layout.stored, opt=None, feedback=None, replicas=None)
    try:
        restored = checkpoints.restore(step, scored)
    finally:
        checkpoints.close()
    evaluate = make_evaluator(job, job.sources[1])
    return int(restored.step), evaluate(job.layout.from_checkpoint(restored.state))
