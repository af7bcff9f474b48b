"""Restoring a checkpoint into the layout of the current mesh, verified.

Each host reads the blocks it needs and none waits for another while reading, so that a
host that fails cannot leave the others hanging; then all add up their results and come
to one verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.core.errors import BadInput
from jaxdist.train.checkpoint import orbax_store
from jaxdist.train.checkpoint.checksum import (
    has_nonfinite,
    local_fingerprint,
    sum_over_hosts,
)
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
    check_finite,
    read_manifest,
    reraise_unless_corrupt,
)
from jaxdist.train.state import TrainState, named_leaves, replace_leaves

_REPLICA_PARAMS: Final = "replicas/params/"
_SUMMED_PREFIXES: Final = ("feedback/residual/", "feedback/velocity/")
_RESET_PREFIX: Final = "feedback/memory/"


@dataclass(frozen=True, kw_only=True)
class RestoredState:
    """A restored state, in the requested layout."""

    state: TrainState
    """The state, bit for bit."""
    step: int
    """Steps done since initialization."""
    metadata: Mapping[str, Any]
    """Metadata that the run stored with it."""
    skipped_checkpoints: tuple[SkippedCheckpoint, ...] = ()
    """Newer checkpoints that were damaged, newest first; now moved aside."""


def restore_checkpoint(folder: Path, state_shapes: TrainState) -> RestoredState:
    """Read a checkpoint into an abstract state.

    Args:
        folder: folder of the checkpoint.
        state_shapes: a `jax.ShapeDtypeStruct` with a sharding for each array; a field
            that is None is not read.

    Raises:
        CorruptCheckpointError: it is damaged, on this host or another.
        BadInput: it is of another model or precision.
    """
    manifest: CheckpointManifest | None = None
    damage = CorruptCheckpointError("notes, cannot be read by another host")
    try:
        manifest = read_manifest(folder)
    except CorruptCheckpointError as error:
        damage = error
    # All hosts take part, whatever they have read: one that raised alone would leave
    # the others waiting.
    failed = sum_over_hosts(np.array([manifest is None], np.uint32))
    if manifest is None or failed[0]:
        raise damage

    # Arrays are read in the shapes that are stored, which of error feedback may be
    # those of another number of devices; they are made to fit afterwards.
    wanted = named_leaves(state_shapes)
    stored = {
        name: _stored_shape(name, leaf, manifest.leaves[name])
        if name in manifest.leaves
        else leaf
        for name, leaf in wanted.items()
    }
    _check_same_model(folder, manifest, state_shapes, stored)
    targets = {}
    for name, leaf in stored.items():
        if getattr(leaf, "sharding", None) is None:
            raise TypeError(f"the abstract state has no sharding for {name}")
        # PRNG keys are stored as their numbers.
        data = jax.eval_shape(jax.random.key_data, leaf) if is_prng_key(leaf) else leaf
        targets[name] = jax.ShapeDtypeStruct(
            data.shape, data.dtype, sharding=leaf.sharding
        )

    # All arrays at once; if that fails, one by one, leaving out what cannot be read.
    # All hosts learn of missing arrays and of fingerprints in one sum.
    arrays: dict[str, jax.Array] = {}
    try:
        arrays = orbax_store.read_arrays(folder, targets)
    except Exception as error:
        reraise_unless_corrupt(error)
        for name, target in targets.items():
            try:
                arrays |= orbax_store.read_arrays(folder, {name: target})
            except Exception as error:
                reraise_unless_corrupt(error)
    verify_arrays(manifest, arrays, tuple(targets))

    leaves = {}
    for name, leaf in wanted.items():
        array = _reshard_array(name, arrays[name], leaf)
        if is_prng_key(leaf):
            array = jax.random.wrap_key_data(array, impl=prng_key_impl(leaf))
        leaves[name] = array
    state = replace_leaves(state_shapes, leaves)
    return RestoredState(state=state, step=manifest.step, metadata=manifest.about)


def verify_arrays(
    manifest: CheckpointManifest, arrays: Mapping[str, jax.Array], names: Sequence[str]
) -> None:
    """Hold what was read against the manifest, on all hosts at once.

    Args:
        manifest: of the checkpoint.
        arrays: those that could be read, by the name of the leaf.
        names: all that were wanted.

    Raises:
        CorruptCheckpointError: a leaf is missing, changed, or not finite.
    """
    missing = [name not in arrays for name in names]
    shares = [
        local_fingerprint(arrays[name]) if name in arrays else 0 for name in names
    ]
    # A flag of the manifest says it; checkpoints of older versions are looked at.
    bad = [
        manifest.finite is not True
        and name in arrays
        and has_nonfinite(name, arrays[name])
        for name in names
    ]
    totals = sum_over_hosts(np.array([*missing, *bad, *shares], np.uint32)).tolist()
    for name, absent in zip(names, totals[: len(names)], strict=True):
        if absent:
            raise CorruptCheckpointError(f"{name}, cannot be read")
    for name, total in zip(names, totals[2 * len(names) :], strict=True):
        check_fingerprint(name, manifest.leaves[name], total)
    found = totals[len(names) : 2 * len(names)]
    for name, count in zip(names, found, strict=True):
        check_finite(name, bool(count))
    # Of leaves that are not read here, as those of an optimizer, only the flag is left.
    if manifest.finite is False:
        raise CorruptCheckpointError("state, numbers that are not finite")


def _check_same_model(
    folder: Path,
    manifest: CheckpointManifest,
    state_shapes: TrainState,
    read: Mapping[str, Any],
) -> None:
    fields = [f for f in ("params", "stats", "opt") if getattr(state_shapes, f) is None]
    # Who reads no optimizer trains no further, and needs no gradient that is still to
    # send.
    if state_shapes.opt is state_shapes.replicas is None:
        fields += ["feedback", "replicas"]
    unread = tuple(f"{field}/" for field in fields)
    held = {n: leaf for n, leaf in manifest.leaves.items() if not n.startswith(unread)}
    wanted = {name: leaf_metadata(leaf) for name, leaf in read.items()}
    difference = first_difference(held, wanted)
    if difference is None:
        return

    # Replicas have a leading dim in every array: a difference in their number alone
    # would be reported as one of the model.
    saved, here = (
        next((x.shape[0] for n, x in tree.items() if n.startswith(_REPLICA_PARAMS)), 1)
        for tree in (held, wanted)
    )
    if saved != here:
        raise BadInput(
            f"checkpoint {folder.name} in {folder.parent} is of {saved} replicas",
            rule="replicas stay as many as they are: each has an optimizer's state "
            "of its own",
            values=f"{saved} in the checkpoint, {here} in this run",
            remedy=(
                f"plan.mesh.replica={saved}",
                "run.name=another-name starts a run beside it",
            ),
        )
    shapes = [{name: x.shape for name, x in tree.items()} for tree in (held, wanted)]
    other = "precision" if shapes[0] == shapes[1] else "model"
    raise BadInput(
        f"checkpoint {folder.name} in {folder.parent} is of another {other}",
        rule="a run resumes only with the leaves, shapes and dtypes it was saved with",
        values=difference,
        remedy=(
            "run.name=another-name, or another folder, starts a run beside it",
            f"or give the values of the saved run back, its {other} first",
        ),
    )


def _stored_shape(name: str, leaf: Any, metadata: LeafMetadata) -> Any:
    """Return the shape in which a leaf is read: as stored, where it can be made to fit.

    Error feedback of another number of devices is read with its first dim whole.
    """
    summed = name.startswith(_SUMMED_PREFIXES) and metadata.shape[1:] == leaf.shape[1:]
    if metadata.shape == leaf.shape or not (summed or name.startswith(_RESET_PREFIX)):
        return leaf
    spec = P(None, *leaf.sharding.spec[1:]) if summed else P()
    place = NamedSharding(leaf.sharding.mesh, spec)
    return jax.ShapeDtypeStruct(metadata.shape, leaf.dtype, sharding=place)


def _reshard_array(name: str, x: jax.Array, leaf: Any) -> jax.Array:
    """Return error feedback of other devices as the current ones hold it."""
    if x.shape == leaf.shape or not name.startswith((*_SUMMED_PREFIXES, _RESET_PREFIX)):
        return x

    # The sum over devices is what is still to be sent: the first device gets all of it.
    # The memory of a parameter that is split otherwise now is begun anew.
    def fit(x: jax.Array) -> jax.Array:
        empty = jnp.zeros(leaf.shape, leaf.dtype)
        return empty if name.startswith(_RESET_PREFIX) else empty.at[0].set(x.sum(0))

    return jax.jit(fit, out_shardings=leaf.sharding)(x)
