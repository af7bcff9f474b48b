"""Manifests: what a checkpoint says about itself, stored inside it with a hash.

They make a checkpoint readable without the model: name, shape, dtype and fingerprint of
each leaf, the step, and the metadata of the run.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp


class CorruptCheckpointError(Exception):
    """A checkpoint differs from what was saved; the text says where."""


@dataclass(frozen=True, kw_only=True)
class LeafMetadata:
    """A stored leaf; a PRNG key is stored as its uint32 data."""

    shape: tuple[int, ...]
    """Shape of the stored array."""
    dtype: str
    """Name of the stored dtype."""
    key: str = ""
    """Implementation of a PRNG key; empty for numbers."""
    fingerprint: str = ""
    """32 bits in hexadecimal; empty in the description of an abstract state."""

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory."""
        return prod(self.shape) * jnp.dtype(self.dtype).itemsize

    def text(self) -> str:
        """Write dtype and shape as messages show them.

        >>> LeafMetadata(shape=(3, 3, 1, 16), dtype="float32").text()
        'float32 [3, 3, 1, 16]'
        """
        return f"{f'{self.key} key, ' if self.key else ''}{self.dtype} {[*self.shape]}"


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """Description of a checkpoint, written beside its arrays."""

    step: int
    """Steps done since initialization."""
    leaves: Mapping[str, LeafMetadata]
    """Every leaf by name."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the run: names, versions, anything that JSON holds."""
    finite: bool | None = None
    """Whether all numbers are finite; None in checkpoints of older versions."""

    @property
    def nbytes(self) -> int:
        """Bytes of all leaves in memory."""
        return sum(leaf.nbytes for leaf in self.leaves.values())


def leaf_metadata(leaf: Any) -> LeafMetadata:
    """Return the metadata of an array, or of its `jax.ShapeDtypeStruct`, as stored.

    >>> leaf_metadata(jax.random.key(0)).text()
    'threefry2x32 key, uint32 [2]'
    """
    if not is_prng_key(leaf):
        return LeafMetadata(shape=tuple(leaf.shape), dtype=leaf.dtype.name)
    # Orbax stores no typed keys.
    data = jax.eval_shape(jax.random.key_data, leaf)
    kind = str(prng_key_impl(leaf))
    return LeafMetadata(shape=data.shape, dtype=data.dtype.name, key=kind)


def is_prng_key(leaf: Any) -> bool:
    """Return whether a leaf is a typed PRNG key."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def prng_key_impl(leaf: Any) -> Any:
    """Return the implementation of a PRNG key, of an abstract one as well."""
    # key_impl takes arrays only; under eval_shape an abstract key becomes a tracer.
    kinds: list[Any] = []
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), leaf)
    return kinds[0]


def encode_manifest(manifest: CheckpointManifest) -> dict[str, Any]:
    """Convert a manifest to JSON values with a hash over all of them."""
    body = asdict(manifest)
    return {"notes": body, "sha256": _hash_json(body)}


def decode_manifest(tree: Any) -> CheckpointManifest:
    """Convert JSON values from `encode_manifest` back to a manifest.

    Raises:
        CorruptCheckpointError: they do not match their hash.
    """
    body = tree.get("notes") if isinstance(tree, dict) else None
    if body is None or _hash_json(body) != tree.get("sha256"):
        raise CorruptCheckpointError("notes, changed since they were written")
    leaves = {
        name: LeafMetadata(**{**leaf, "shape": tuple(leaf["shape"])})
        for name, leaf in body["leaves"].items()
    }
    return CheckpointManifest(**{**body, "leaves": leaves})


def first_difference(
    stored: Mapping[str, LeafMetadata], expected: Mapping[str, LeafMetadata]
) -> str | None:
    """Return the first difference of two descriptions of a state, or None.

    >>> a = {"stem/bias": LeafMetadata(shape=(4,), dtype="float32")}
    >>> b = {"stem/bias": LeafMetadata(shape=(8,), dtype="float32")}
    >>> first_difference(a, b)
    'stem/bias is float32 [4] in the checkpoint, float32 [8] in this run'
    """
    # Leaves that this run expects come first, then those that only the checkpoint has.
    for name in [*expected, *(name for name in stored if name not in expected)]:
        has, wants = stored.get(name), expected.get(name)
        stored_as, expected_as = (x.text() if x else "absent" for x in (has, wants))
        if stored_as != expected_as:
            return f"{name} is {stored_as} in the checkpoint, {expected_as} in this run"
    return None


def _hash_json(body: Any) -> str:
    # Canonical: neither the order of keys nor white space survives a JSON file.
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
