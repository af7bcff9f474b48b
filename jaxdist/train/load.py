"""Loading: the network of a run with its trained weights, on one device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.model_spec import ModelSpec
from jaxdist.train.state import TrainState
from jaxdist.train.task import Task


def load(run: str | Path, checkpoint: int | None = None) -> tuple[Any, TrainState]:
    """Return the network of a run and its state, whatever layout it was trained in.

    Args:
        run: a run folder, or its name inside `runs/`.
        checkpoint: step of the checkpoint; None takes the newest.

    Returns:
        The network in evaluation mode, an `nnx.Module` to be called on a batch, with
        averaged weights where the run kept them, and the state it was made of,
        without the optimizer's part.

    Raises:
        BadInput: no run or checkpoint, or a damaged one.
    """
    folder = _checkpoint_folder(run)
    notes = reader.read_manifest(reader.checkpoint_folder(folder, checkpoint))
    recipe = ModelSpec(**notes.about["recipe"])
    params = {leaf.dtype for name, leaf in notes.leaves.items() if "params/" in name}
    task = Task(
        model=recipe,
        optimizer=optax.identity(),
        average=float(any(name.startswith("average/") for name in notes.leaves)),
        param_dtype=params.pop(),
    )
    abstract = replace(_single_device_state(task.state), opt=None)
    restored = Checkpoints(folder).restore(checkpoint, abstract)
    network = nnx.merge(task.graph, *restored.state.evaluated)
    network.eval()
    return network, restored.state


def _checkpoint_folder(run: str | Path) -> Path:
    """Find the folder of checkpoints of a run given by path or by name."""
    for folder in (Path(run), Path("runs", run)):
        if (folder / "checkpoints").is_dir():
            return folder / "checkpoints"
    raise BadInput(
        f"no run {run}",
        rule="a run folder has a folder of checkpoints",
        values=f"looked in {Path(run)} and {Path('runs', run)}",
        remedy="jaxdist train digits makes runs/digits",
    )


def _single_device_state(state: TrainState) -> TrainState:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state
    )
