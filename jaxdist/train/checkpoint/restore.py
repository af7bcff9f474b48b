"""Restore: a stored checkpoint into the layout of the current mesh, verified.

Each host reads the blocks it needs and none waits for another while reading, so that a
host that fails cannot leave the others hanging; then all add up what they found and
come to one verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import orbax_store
from jaxdist.train.checkpoint.checksum import local_fingerprint, sum_over_hosts
from jaxdist.train.checkpoint.manifest import (
    CheckpointManifest,
    CorruptCheckpointError,
    LeafMetadata,
    first_difference,
    is_prng_key,
    leaf_metadata,
    prng_key_impl,
)
from jaxdist.train.checkpoint.reader import (
    SkippedCheckpoint,
    check_fingerprint,
    read_manifest,
    reraise_unless_corrupt,
)
from jaxdist.train.checkpoint.reshard_residuals import reshard_arrays, stored_shapes
from jaxdist.train.state import TrainState, named_leaves, replace_leaves


@dataclass(frozen=True, kw_only=True)
class RestoredState:
    """A state as it was saved, in the layout that was asked for."""

    state: TrainState
    """The state, bit for bit."""
    step: int
    """Steps done since the very start."""
    metadata: Mapping[str, Any]
    """What the run added when it saved."""
    skipped_checkpoints: tuple[SkippedCheckpoint, ...] = ()
    """Newer checkpoints that were damaged, newest first; now moved aside."""


def restore_checkpoint(folder: Path, state_shapes: TrainState) -> RestoredState:
    """Read a checkpoint into an abstract state.

    Args:
        folder: a stored checkpoint.
        state_shapes: a `jax.ShapeDtypeStruct` with a sharding for each array; a field
        that
            is None is not read.

    Raises:
        Damaged: it does not hold what was saved, on this host or another.
        BadInput: it is of another model or precision.
    """
    wanted, notes = named_leaves(state_shapes), _read_manifest_everywhere(folder)
    read = stored_shapes(wanted, notes.leaves)
    _check_same_model(folder, notes, state_shapes, read)
    targets = {name: _restore_target(name, leaf) for name, leaf in read.items()}
    arrays = reshard_arrays(_read_verified_arrays(folder, notes, targets), wanted)
    leaves = {name: _wrap_prng_key(arrays[name], leaf) for name, leaf in wanted.items()}
    state = replace_leaves(state_shapes, leaves)
    return RestoredState(state=state, step=notes.step, metadata=notes.about)


def _read_manifest_everywhere(folder: Path) -> CheckpointManifest:
    notes: CheckpointManifest | CorruptCheckpointError
    try:
        notes = read_manifest(folder)
    except CorruptCheckpointError as damage:
        notes = damage
    failed = sum_over_hosts(
        np.array([isinstance(notes, CorruptCheckpointError)], np.uint32)
    )
    if isinstance(notes, CorruptCheckpointError):
        raise notes
    if failed[0]:
        raise CorruptCheckpointError("notes, cannot be read by another host")
    return notes


def _read_verified_arrays(
    folder: Path,
    manifest: CheckpointManifest,
    targets: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, jax.Array]:
    """Read the arrays, and hold their fingerprints against the notes on all hosts."""
    arrays = _read_arrays(folder, targets)
    missing = [name not in arrays for name in targets]
    shares = [
        local_fingerprint(arrays[name]) if name in arrays else 0 for name in targets
    ]
    totals = sum_over_hosts(np.array([*missing, *shares], np.uint32)).tolist()
    for name, failed in zip(targets, totals[: len(targets)], strict=True):
        if failed:
            raise CorruptCheckpointError(f"{name}, cannot be read")
    for name, total in zip(targets, totals[len(targets) :], strict=True):
        check_fingerprint(name, manifest.leaves[name], total)
    return arrays


def _read_arrays(
    folder: Path, targets: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Read all at once; if that fails, one by one, leaving out what cannot be read."""
    try:
        return orbax_store.read_arrays(folder, targets)
    except Exception as error:
        reraise_unless_corrupt(error)
    arrays: dict[str, jax.Array] = {}
    for name, target in targets.items():
        try:
            arrays |= orbax_store.read_arrays(folder, {name: target})
        except Exception as error:
            reraise_unless_corrupt(error)
    return arrays


def _restore_target(name: str, leaf: Any) -> jax.ShapeDtypeStruct:
    """Say in which layout a leaf is read, as it is stored."""
    if getattr(leaf, "sharding", None) is None:
        raise TypeError(f"the abstract state has no sharding for {name}")
    stored = jax.eval_shape(jax.random.key_data, leaf) if is_prng_key(leaf) else leaf
    return jax.ShapeDtypeStruct(stored.shape, stored.dtype, sharding=leaf.sharding)


def _wrap_prng_key(array: jax.Array, leaf: Any) -> jax.Array:
    """Turn what is stored of a leaf back into it."""
    if not is_prng_key(leaf):
        return array
    return jax.random.wrap_key_data(array, impl=prng_key_impl(leaf))


def _check_same_model(
    folder: Path,
    manifest: CheckpointManifest,
    state_shapes: TrainState,
    read: Mapping[str, Any],
) -> None:
    fields = [
        f for f in ("params", "stats", "opt") if not _is_requested(state_shapes, f)
    ]
    # Who reads no optimizer trains no further, and needs nothing that is still to send.
    with_opt = ["feedback", "replicas"] * (
        state_shapes.opt is state_shapes.replicas is None
    )
    unread = tuple(f"{f}/" for f in [*fields, *with_opt])
    held = {n: note for n, note in manifest.leaves.items() if not n.startswith(unread)}
    wanted = {name: leaf_metadata(leaf) for name, leaf in read.items()}
    difference = first_difference(held, wanted)
    if difference is None:
        return
    _check_replica_count(folder, held, wanted)
    other = "precision" if _leaf_shapes(held) == _leaf_shapes(wanted) else "model"
    raise BadInput(
        f"checkpoint {folder.name} in {folder.parent} is of another {other}",
        rule="a run goes on only with the leaves, shapes and dtypes it was saved with",
        values=difference,
        remedy=(
            "run.name=another-name starts a run beside it",
            f"or give the values of the saved run back, its {other} first",
        ),
    )


def _is_requested(abstract: TrainState, name: str) -> bool:
    return getattr(abstract, name) is not None


def _check_replica_count(
    folder: Path, held: Mapping[str, LeafMetadata], wanted: Mapping[str, LeafMetadata]
) -> None:
    """Say so where nothing but the number of replicas differs for a person."""
    saved, here = _count_replicas(held), _count_replicas(wanted)
    if saved != here:
        raise BadInput(
            f"checkpoint {folder.name} in {folder.parent} is of {saved} replicas",
            rule="replicas go on as many as they are: each has an optimizer's state "
            "of its own",
            values=f"{saved} in the checkpoint, {here} in this run",
            remedy=(
                f"plan.mesh.replica={saved}",
                "run.name=another-name starts a run beside it",
            ),
        )


def _count_replicas(leaves: Mapping[str, LeafMetadata]) -> int:
    """Read how many replicas a state has from its arrays; 1 without an outer loop."""
    found = (x for name, x in leaves.items() if name.startswith("replicas/params/"))
    return next((leaf.shape[0] for leaf in found), 1)


def _leaf_shapes(leaves: Mapping[str, LeafMetadata]) -> dict[str, tuple[int, ...]]:
    return {name: leaf.shape for name, leaf in leaves.items()}
