"""Loading a trained network from a run, on one device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

from jaxdist.core.dtypes import real_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.object_reference import check_trusted_references
from jaxdist.core.validation import parse_json
from jaxdist.train.checkpoint import reader
from jaxdist.train.checkpoint.best import CheckpointStep
from jaxdist.train.checkpoint.checkpoints import Checkpoints
from jaxdist.train.state import TrainState
from jaxdist.train.task import ModelSpec, Task


def load(
    run: str | Path, checkpoint: CheckpointStep = None, *, trust: bool = False
) -> tuple[Any, TrainState]:
    """Return the network of a run and its state, whatever layout it was trained in.

    Args:
        run: a run folder, or its name inside `runs/`.
        checkpoint: step of the checkpoint, `best`, or None for the newest.
        trust: whether any module that the files of the run name is imported; without
            it those of jaxdist and the file of its experiment, outside the run folder.

    Returns:
        The network in evaluation mode, an `nnx.Module` to be called on a batch, with
        averaged weights where the run has them, and the state behind it, without that
        of the optimizer.

    Raises:
        BadInput: no run or checkpoint, a damaged one, or one whose network is in a
            module that is not trusted.
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
    manifest = reader.find_manifest(folder, checkpoint)
    recipe = manifest.about["recipe"]
    own_name = recipe.get("settings", {}).get("name", "")
    check_trusted_references(
        (str(recipe["maker"]), str(own_name)),
        experiment=_experiment_of(folder.parent),
        folder=folder.parent,
        trust=trust,
        remedy="load(run, trust=True)",
    )
    dtypes = {leaf.dtype for name, leaf in manifest.leaves.items() if "params/" in name}
    rest = [n for n in manifest.leaves if n.startswith("stats/")]
    task = Task(
        model=ModelSpec(**recipe),
        # Its state is not read, so it need not be the one that trained.
        optimizer=optax.identity(),
        # Any number but 0 says that there is an average; its decay is not needed.
        average=float(any(name.startswith("average/") for name in manifest.leaves)),
        # Parameters that lie there were frozen; of other leaves this says nothing.
        frozen=tuple(n.removeprefix("stats/").replace("/", ".") for n in rest),
        param_dtype=real_dtype(dtypes.pop()),
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


def _experiment_of(run: Path) -> str:
    """Return name or file of a run's experiment; empty where the run does not say."""
    try:
        text = (run / "config.lock.json").read_text(encoding="utf-8")
        return str(parse_json(text)["experiment"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
