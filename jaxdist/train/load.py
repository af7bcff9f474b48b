"""Loading a trained network from a run, on one device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.state import TrainState
from jaxdist.train.task import ModelSpec, Task


def load(run: str | Path, checkpoint: int | None = None) -> tuple[Any, TrainState]:
    """Return the network of a run and its state, whatever layout it was trained in.

    Args:
        run: a run folder, or its name inside `runs/`.
        checkpoint: step of the checkpoint; None for the newest.

    Returns:
        The network in evaluation mode, an `nnx.Module` to be called on a batch, with
        averaged weights where the run has them, and the state behind it, without that
        of the optimizer.

    Raises:
        BadInput: no run or checkpoint, or a damaged one.
    """
    named = (Path(run), Path("runs", run))
    folders = [path / "checkpoints" for path in named]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise BadInput(
            f"no run {run}",
            rule="a run folder has a folder of checkpoints",
            values=f"looked in {named[0]} and {named[1]}",
            remedy="jaxdist train digits makes runs/digits",
        )

    # The manifest says all that is needed to build the task: how the network is made,
    # in which dtype its parameters are, and whether there is a moving average.
    manifest = reader.read_manifest(reader.checkpoint_folder(folder, checkpoint))
    dtypes = {leaf.dtype for name, leaf in manifest.leaves.items() if "params/" in name}
    task = Task(
        model=ModelSpec(**manifest.about["recipe"]),
        optimizer=optax.identity(),
        average=float(any(name.startswith("average/") for name in manifest.leaves)),
        param_dtype=dtypes.pop(),
    )
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), task.state
    )
    # Only what evaluation needs is read.
    restored = Checkpoints(folder, read_only=True).restore(
        checkpoint, replace(shapes, opt=None)
    )
    network = nnx.merge(task.graph, *restored.state.evaluated)
    network.eval()
    return network, restored.state
