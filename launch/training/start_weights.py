"""Weights that a run starts from: opened and checked, then read into its layout."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.start_weights import weights_folder
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.models.pretrained.folder import COMPANION_FILES, PretrainedFolder
from jaxdist.models.pretrained.tensor_names import LeafTensor
from jaxdist.train.checkpoint import orbax_store, reader
from jaxdist.train.checkpoint.checksum import sum_over_hosts
from jaxdist.train.checkpoint.manifest import (
    CheckpointManifest,
    CorruptCheckpointError,
)
from jaxdist.train.checkpoint.restore import verify_arrays
from jaxdist.train.layout import Layout
from jaxdist.train.lora import adapter_kernels, is_adapter
from jaxdist.train.state import named_leaves

PRETRAINED_NOTE: Final = "pretrained"
"""Key of a checkpoint's metadata: the `config.json` and dtypes of what it began as."""


@dataclass(frozen=True, kw_only=True)
class StartWeights:
    """Weights that fit a layout, not read yet."""

    targets: Mapping[str, Any]
    """Shape, dtype and sharding by name of the network's leaf."""
    source: Path
    """Folder with the files that go where the network goes."""
    origin: Mapping[str, Any]
    """What an export gives back: `config` and `dtypes`; empty for a run's own."""
    pretrained: PretrainedFolder | None = None
    """Files of Hugging Face; None: a checkpoint."""
    places: Mapping[str, LeafTensor] = field(default_factory=dict)
    """Tensor of each leaf."""
    manifest: CheckpointManifest | None = None
    """Of the checkpoint of a run."""
    stored: Mapping[str, str] = field(default_factory=dict)
    """Name in the checkpoint of each leaf."""

    def read(self) -> dict[str, jax.Array]:
        """Read every leaf into its sharding; each process reads what its devices hold.

        Raises:
            BadInput: numbers that are not finite.
        """
        if self.pretrained is None:
            return self._read_checkpoint()
        arrays = {
            name: self.pretrained.read(self.places[name], target)
            for name, target in self.targets.items()
        }
        # One host may have met what the others have not.
        own = self.pretrained.nonfinite
        count = int(sum_over_hosts(np.array([sum(own.values())], np.uint32))[0])
        if count:
            raise BadInput(
                f"the weights in {self.source} have numbers that are not finite",
                rule="every weight is a number",
                values=f"{count:,} that are not, on this host in "
                f"{', '.join(own) or 'none of its tensors'}",
                remedy="other weights: these were damaged, or diverged",
            )
        return arrays

    def _read_checkpoint(self) -> dict[str, jax.Array]:
        """Read the leaves of a run's checkpoint, each one verified."""
        assert self.manifest is not None
        folder = RunFolder(self.source.parent).checkpoints / str(self.manifest.step)
        targets = {self.stored[name]: x for name, x in self.targets.items()}
        try:
            found = orbax_store.read_arrays(folder, targets)
            verify_arrays(self.manifest, found, tuple(targets))
        except Exception as damage:  # Orbax raises the class itself, too
            if not isinstance(damage, CorruptCheckpointError):
                reader.reraise_unless_corrupt(damage)
            raise BadInput(
                f"checkpoint {folder} is damaged",
                rule="every leaf is what was saved",
                values=str(damage).splitlines()[0],
                remedy="jaxdist ckpt verify RUN says which are whole",
            ) from damage
        return {name: found[self.stored[name]] for name in self.targets}

    @property
    def companions(self) -> tuple[str, ...]:
        """Names of the tokenizer and of other files that are beside the weights."""
        return tuple(
            sorted(name for name in COMPANION_FILES if (self.source / name).is_file())
        )

    def copy_companions(self, folder: RunFolder) -> None:
        """Copy the files beside the weights into a run's folder."""
        for name in self.companions:
            folder.pretrained.mkdir(exist_ok=True)
            shutil.copyfile(self.source / name, folder.pretrained / name)


def open_weights(config: Experiment, layout: Layout) -> StartWeights | None:
    """Return the weights that a configuration starts from; None without any.

    Raises:
        BadInput: they are not there, damaged, or of another network.
    """
    if not config.weights:
        return None
    state = layout.stored
    # One tree of both: a leaf is a parameter or a statistic, so that their names do not
    # meet once the first part is gone.
    targets = {
        name: leaf
        for name, leaf in named_leaves({"p": state.params, "s": state.stats}).items()
        # Counters and keys of random streams are no weights.
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    }
    targets = {name.partition("/")[2]: leaf for name, leaf in targets.items()}
    path, is_run = weights_folder(config.weights, config.run.dir)
    if is_run:
        return _open_run(RunFolder(path), targets)
    found = PretrainedFolder.open(path)
    # Adapters are new, and so is how experts were chosen: no file has them.
    own = layout.task.routing_stats
    targets = {k: x for k, x in targets.items() if not (k in own or is_adapter(k))}
    return StartWeights(
        targets=targets,
        source=found.path,
        origin={"config": dict(found.config), "dtypes": found.dtypes},
        pretrained=found,
        places=found.check(config.model.name, targets),
    )


def _check_adapters(
    run: RunFolder, manifest: CheckpointManifest, targets: Mapping[str, Any]
) -> None:
    """Refuse adapters of a run that would not fit, or would be left out.

    Raises:
        BadInput: naming both ranks.
    """

    def ranks(leaves: Mapping[str, Any]) -> dict[str, int]:
        found = {name: leaves[name].shape[-1] for name in adapter_kernels(leaves)}
        return {name.removeprefix("params/"): rank for name, rank in found.items()}

    own = {k: x for k, x in manifest.leaves.items() if k.startswith("params/")}
    had, has = ranks(own), ranks(targets)
    if not had or had == has:
        return
    here = f"of rank {max(has.values())} on {len(has)}" if has else "on none"
    raise BadInput(
        f"run {run.name} has other adapters",
        rule="a run that starts from one with adapters keeps them, or starts from its "
        "export, in which they are merged",
        values=f"adapters of rank {max(had.values())} on {len(had)} layers there, "
        f"{here} here",
        remedy=(
            f"no lora.* keys: those of {run.name} are taken",
            f"jaxdist export hf {run.name} {run.name}-merged, then "
            f"weights={run.name}-merged",
        ),
    )


def _open_run(run: RunFolder, targets: Mapping[str, Any]) -> StartWeights:
    """Return the weights of a run's newest checkpoint, averages where it has them."""
    manifest = reader.find_manifest(run.checkpoints, None)
    averaged = any(name.startswith("average/") for name in manifest.leaves)
    roots = ("average/params/", "average/stats/") if averaged else ("params/", "stats/")
    names = {
        leaf: root + leaf
        for leaf in targets
        for root in roots
        if root + leaf in manifest.leaves
    }
    _check_adapters(run, manifest, targets)
    # New adapters begin as they do on any network.
    targets = {k: x for k, x in targets.items() if k in names or not is_adapter(k)}
    errors = []
    for leaf, target in targets.items():
        has = manifest.leaves.get(names.get(leaf, ""))
        if has is None or has.shape != tuple(target.shape):
            there = "is absent" if has is None else f"is {[*has.shape]}"
            errors.append(f"{leaf} {there}, {[*target.shape]} in this run")
    if errors:
        settings = manifest.about.get("recipe", {}).get("settings", {})
        keys = ("vocabulary", "context", "depth", "heads", "embed")
        told = [f"model.{k}={settings[k]}" for k in keys if settings.get(k)]
        raise BadInput(
            f"run {run.name} is of another network",
            rule="a network has the leaves and shapes of the weights that it starts "
            "from",
            values="; ".join(errors[:3]),
            remedy=" ".join(told) or "the model of that run",
        )
    return StartWeights(
        targets=targets,
        source=run.pretrained,
        origin=manifest.about.get(PRETRAINED_NOTE) or {},
        manifest=manifest,
        stored=names,
    )
