"""Evaluating a job, or a checkpoint of a run, on the held-out samples."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.augmentation import Augmentation
from jaxdist.input.device_feed import (
    BatchGeometry,
    device_put_batch,
    eval_feed,
    local_rows,
)
from jaxdist.input.sample_validation import SampleSpec, cast_checked, check_source
from jaxdist.input.sources import SlabSource, sample_template
from jaxdist.launch.distributed.preemption import never_stop
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.training.job.batch_spec import sample_spec
from jaxdist.launch.training.job.job import Job
from jaxdist.meshes.targets.compiler_options import program_options
from jaxdist.train.build_layout import build_layout
from jaxdist.train.checkpoint.best import CheckpointStep
from jaxdist.train.evaluate import Evaluator
from jaxdist.train.sliding_window import SlidingWindow
from jaxdist.train.window_evaluate import Cut, Read, WindowEvaluator

if TYPE_CHECKING:
    from jaxdist.input.sources import Source

AnyEvaluator = Evaluator | WindowEvaluator
"""What `fit` and `jaxdist eval` score a state with."""


def make_evaluator(
    job: Job, validation: "Source", should_stop: Callable[[], bool] = never_stop
) -> AnyEvaluator:
    """Return the evaluation of a job on its held-out samples.

    Args:
        job: what was trained.
        validation: the held-out samples.
        should_stop: whether to end here, and from then on; asked after every batch.

    Raises:
        BadInput: windows that its samples or its layout cannot have.
    """
    window = evaluation_window(job)
    if window is not None:
        return _window_evaluator(job, validation, window, should_stop)
    # All batches have one shape, the last one padded, so that one program serves all.
    shapes = job.eval_shapes
    shardings = job.layout.batch_shardings(shapes)
    size = shapes["id"].shape[0]
    crop = Augmentation(crop=Augmentation.parse(job.config.data.augment).crop)
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
            crop=crop,
        ),
    )


def evaluation_window(job: Job) -> SlidingWindow | None:
    """Return the windows by which images of a job are evaluated; None: whole.

    Raises:
        BadInput: windows of other dims, or of samples that have one answer each.
    """
    data, objective = job.config.data, job.layout.task.objective
    asked = data.eval_window
    cropped = Augmentation.parse(data.augment).crop if objective.is_dense else ()
    if not asked and not cropped:
        return None
    image = job.layout.batch_shapes[objective.inputs[0][0]].shape[1:-1]
    sides = asked * len(image) if len(asked) == 1 else asked or image
    if not objective.is_dense or len(sides) != len(image):
        raise BadInput(
            "these samples are not evaluated by windows",
            rule="data.eval_window is for networks that say something of each pixel, "
            "and has a number for each dim of an image, or one for all",
            values=f"window {','.join(map(str, asked))}, an image has "
            f"{len(image)} dims, the network is scored by {type(objective).__name__}",
            remedy=f"data.eval_window={','.join(['64'] * len(image))}"
            if objective.is_dense
            else "data.eval_window=",
        )
    return SlidingWindow(sides=sides, overlap=data.eval_overlap, blend=data.eval_blend)


def _window_evaluator(
    job: Job,
    validation: "Source",
    window: SlidingWindow,
    should_stop: Callable[[], bool],
) -> WindowEvaluator:
    """Return the evaluation by windows, laid out as a job is."""
    objective, whole = job.layout.task.objective, dict(job.layout.batch_shapes)
    key, _ = objective.inputs[0]
    for name in (key, objective.targets[0][0]):
        old = whole[name]
        sides = old.shape[0], *window.sides, *old.shape[1 + len(window.sides) :]
        whole[name] = jax.ShapeDtypeStruct(sides, old.dtype)
    layout = job.layout
    # For images of a window's size; the state lies the same.
    if whole != layout.batch_shapes:
        plan = job.plan
        if layout.slot_layout is not None:
            # Stages are cut by FLOPs, which are others of images of another size.
            _, *later = layout.slot_layout.stages.blocks
            cuts = tuple(blocks[0] for blocks in later)
            plan = replace(plan, pipe=replace(plan.pipe, cuts=cuts))
        layout = build_layout(layout.task, plan, layout.mesh, whole)
    shards = job.plan.mesh.size(*job.plan.sample_axes)
    size = -(-job.config.data.eval_batch_size // shards) * shards
    shapes = {
        name: jax.ShapeDtypeStruct(
            (size, *layout.batch_shapes[name].shape[1:]), x.dtype
        )
        for name, x in layout.batch_shapes.items()
        if name in (key, "id")
    }
    shardings = layout.batch_shardings(shapes)
    rows = local_rows(shardings.values(), size)
    geometry = BatchGeometry(shapes=layout.padded_shapes(shapes))
    source = check_source(validation)

    def place(cut: Cut) -> Mapping[str, jax.Array]:
        # A process cuts the windows of which its devices hold a part.
        return device_put_batch(cut(rows), rows, size, shardings, geometry)

    return WindowEvaluator(
        layout=layout,
        batch_shapes=shapes,
        window=window,
        samples=len(source),
        image=sample_template(source)[key].shape[1:-1],
        read=_read_planes(source, sample_spec(job.config, layout)),
        place=place,
        should_stop=should_stop,
        compiler_options=program_options(layout),
    )


def _read_planes(source: "Source", spec: SampleSpec) -> Read:
    """Return what reads planes of samples; of a source without slabs, of whole ones."""
    checks, template = spec.of(source), sample_template(source)

    @lru_cache(1)
    def whole(number: int) -> Mapping[str, NDArray[Any]]:
        return source.get(np.array([number]))

    def read(number: int, key: str, planes: slice) -> NDArray[Any]:
        if isinstance(source, SlabSource):
            rest = template[key].shape[2:]
            slab = planes, *map(slice, (0,) * len(rest), rest)
            found = source.slab({key: slab}).get(np.array([number]))[key]
        else:
            found = whole(number)[key][:, planes]
        floats = checks.checks_floats(number)
        ids = np.array([number])
        return cast_checked(key, found, spec.dtypes[key], ids, checks, floats)[0]

    return read


def evaluate_checkpoint(
    job: Job, folder: RunFolder, step: CheckpointStep
) -> tuple[int, dict[str, Any], AnyEvaluator]:
    """Score one checkpoint.

    Args:
        job: of the configuration that the run was trained with.
        folder: the run.
        step: its step, `best`, or None for the newest.

    Returns:
        The checkpoint's step; loss, accuracy, correct and samples; and what scored it.

    Raises:
        BadInput: there is no such checkpoint, or it is damaged.
    """
    from jaxdist.train.checkpoint.checkpoints import Checkpoints

    evaluate = make_evaluator(job, job.sources[1])
    checkpoints = Checkpoints(folder.checkpoints, read_only=True)
    # An evaluation needs the weights alone; the rest is most of the bytes.
    scored = replace(job.layout.stored, opt=None, feedback=None, replicas=None)
    try:
        restored = checkpoints.restore(step, scored)
    finally:
        checkpoints.close()
    score = evaluate(job.layout.from_checkpoint(restored.state))
    return int(restored.step), score, evaluate
