"""Weights of Hugging Face as a run: a folder with one checkpoint, at step 0."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdist.core.errors import BadInput
from jaxdist.core.files import FolderMarker, delete_folder, marker_path, write_atomic
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.config.tree import format_value
from jaxdist.launch.devices.prepare import prepare_devices
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.folder import RunFolder, check_writable, run_folder
from jaxdist.launch.run_folder.lockfile import write_config_lock
from jaxdist.models.pretrained.config_json import architecture_of, read_config_json

if TYPE_CHECKING:
    from jaxdist.launch.config.resolve import ResolvedConfig


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run that was made of weights."""

    folder: RunFolder
    """Where it is."""
    experiment: str
    """The experiment that trains its network."""
    parameters: int
    """Numbers in its network."""
    model: str
    """The network."""
    companions: Sequence[str]
    """Files that were copied beside them."""


def import_weights(
    path: Path, overrides: Sequence[str], group: ProcessGroup, command: Sequence[str]
) -> ImportedRun:
    """Make a run of a folder of Hugging Face.

    Every process reads what its devices hold, as the plan says, and writes that.

    Args:
        path: the folder.
        overrides: `run.name=...` and other values of the run's configuration.
        group: the processes that import.
        command: what was typed.

    Raises:
        BadInput: weights that cannot be read, or a run of that name; nothing was
            written.
    """
    # One device, unless a plan is asked for: that of an experiment would have copies.
    words = [f"weights={path}", "plan.mesh.data=1", *overrides]
    # Both networks have an experiment of their name.
    model = architecture_of(read_config_json(path)).model
    resolved = resolve_config(model, words)
    folder = run_folder(resolved.config)
    with group.primary_first("folder"):
        check_writable(folder.path)
        if folder.path.exists():
            raise BadInput(
                f"{folder.path} is there already",
                rule="weights are imported into a run that is new",
                values=f"run.name = {folder.name}",
                remedy=f"--name {folder.name}-2",
            )
    devices = prepare_devices(resolved.config.plan, explicit=resolved.plan_is_explicit)
    # Built beside its place and renamed: a run is there whole or not at all.
    part = RunFolder(folder.path.with_name(f".{folder.name}.part"))
    marker = None
    if group.is_primary:
        folder.path.parent.mkdir(parents=True, exist_ok=True)
        marker = _take_part(part, folder)
    try:
        with group.primary_first("part"):
            part.path.mkdir(exist_ok=True)
        plan = devices.plan
        config = replace(resolved.config, plan=plan)
        made = _write_run(replace(resolved, config=config), part, group, command)
        if group.is_primary:
            part.path.rename(folder.path)
    finally:
        # After the rename nothing is there; this takes away what a failure has left.
        if marker is not None:
            delete_folder(part.path, marker)
            marker.release()
    return replace(made, folder=folder)


def _take_part(part: RunFolder, folder: RunFolder) -> FolderMarker:
    """Mark the unfinished folder as this process's; one of a dead process is deleted.

    Raises:
        BadInput: another process is importing under this name.
    """
    path = marker_path(part.path)
    taken = FolderMarker.take(path)
    if taken is not None:
        delete_folder(part.path, taken)
        taken.release()
    try:
        return FolderMarker.create(path)
    except FileExistsError as error:
        raise BadInput(
            f"another process imports {folder.name}",
            rule="one process writes a run",
            values=path.read_text(errors="replace")[:200],
            remedy=(f"--name {folder.name}-2", f"rm {path}, if that process is dead"),
        ) from error


def _write_run(
    resolved: "ResolvedConfig",
    part: RunFolder,
    group: ProcessGroup,
    command: Sequence[str],
) -> ImportedRun:
    """Read weights into the plan's layout, and write the folder of the run."""
    # From here on jax is imported.
    import jax
    import jax.numpy as jnp

    from jaxdist.launch.training.job.abstract_step import (
        fit_batch_shapes,
        make_abstract_task,
    )
    from jaxdist.launch.training.job.job import lay_out, make_model_spec
    from jaxdist.launch.training.start_weights import PRETRAINED_NOTE, open_weights
    from jaxdist.launch.training.train import checkpoint_metadata
    from jaxdist.meshes.build import build_mesh
    from jaxdist.train.checkpoint.checkpoints import Checkpoints
    from jaxdist.train.state import TrainState, named_leaves, replace_leaves

    config = resolved.config
    jax.config.update("jax_enable_x64", config.precision == "float64")
    with group.primary_first("weights"):
        sized, shapes, _ = fit_batch_shapes(config)
        task = make_abstract_task(sized)
        layout = lay_out(sized, task, config.plan, build_mesh(config.plan), shapes)
        weights = open_weights(sized, layout)
    assert weights is not None
    arrays, stored = weights.read(), layout.stored
    for name in layout.task.routing_stats:
        # No token was routed yet.
        x = named_leaves(stored.stats)[name]
        zeros = partial(jnp.zeros, x.shape, x.dtype)
        arrays[name] = jax.jit(zeros, out_shardings=x.sharding)()
    state = TrainState(
        # On the devices of all processes, which one of this process alone is not.
        step=jax.jit(
            lambda: jnp.zeros((), jnp.int32), out_shardings=stored.step.sharding
        )(),
        params=replace_leaves(stored.params, arrays),
        stats=replace_leaves(stored.stats, arrays),
        opt=None,
    )
    metadata = checkpoint_metadata(
        resolved.experiment, make_model_spec(sized), config.plan
    )
    # What turns text into tokens, and which of them ends one.
    ends = weights.origin["config"].get("eos_token_id")
    end = ends[0] if isinstance(ends, list) and ends else ends
    speaks = (weights.source / part.tokenizer.name).is_file() and isinstance(end, int)
    metadata |= {"end": end} if speaks else {}
    checkpoints = Checkpoints(part.checkpoints, exclusive=True)
    try:
        checkpoints.save(state, {**metadata, PRETRAINED_NOTE: dict(weights.origin)})
    finally:
        checkpoints.close()
    if group.is_primary:
        write_config_lock(part, resolved, command=command)
        write_atomic(part.plan, config.plan.to_json())
        weights.copy_companions(part)
        if speaks:
            shutil.copyfile(weights.source / part.tokenizer.name, part.tokenizer)
    return ImportedRun(
        folder=part,
        experiment=resolved.experiment,
        parameters=sum(x.size for x in arrays.values()),
        model=", ".join(
            f"{key} {format_value(getattr(config.model, key))}"
            for key in ("depth", "embed", "heads", "vocabulary")
        ),
        # Of the source: process 0 may have renamed the folder of the run by now.
        companions=weights.companions,
    )
