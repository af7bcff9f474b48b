"""Notes: what a checkpoint says about itself, kept inside it and sealed with a hash.

They make a checkpoint readable without the model: name, shape, dtype and fingerprint of
each leaf, the step, and whatever the run wants to remember beside them.
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
    """A checkpoint does not hold what was saved; the text says where."""


@dataclass(frozen=True, kw_only=True)
class LeafMetadata:
    """One leaf as it is stored; a PRNG key is stored as its uint32 data."""

    shape: tuple[int, ...]
    """Shape of the stored array."""
    dtype: str
    """Name of the stored dtype."""
    key: str = ""
    """Implementation of a PRNG key, empty for numbers."""
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
    """What is written beside the arrays of a checkpoint."""

    step: int
    """Steps done since the very start."""
    leaves: Mapping[str, LeafMetadata]
    """Every leaf by name."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the run added: names, versions, anything that JSON holds."""

    @property
    def nbytes(self) -> int:
        """Bytes of all leaves in memory."""
        return sum(leaf.nbytes for leaf in self.leaves.values())


def leaf_metadata(leaf: Any) -> LeafMetadata:
    """Describe an array, or the `jax.ShapeDtypeStruct` of one, as it is stored.

    >>> leaf_metadata(jax.random.key(0)).text()
    'threefry2x32 key, uint32 [2]'
    """
    if not is_prng_key(leaf):
        return LeafMetadata(shape=tuple(leaf.shape), dtype=leaf.dtype.name)
    data = jax.eval_shape(jax.random.key_data, leaf)
    kind = str(prng_key_impl(leaf))
    return LeafMetadata(shape=data.shape, dtype=data.dtype.name, key=kind)


def is_prng_key(leaf: Any) -> bool:
    """Tell typed PRNG keys from numbers."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def prng_key_impl(leaf: Any) -> Any:
    """Give the implementation of a PRNG key, of an abstract one as well."""
    kinds: list[Any] = []
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), leaf)
    return kinds[0]


def encode_manifest(manifest: CheckpointManifest) -> dict[str, Any]:
    """Turn notes into JSON values with a hash over all of them."""
    body = asdict(manifest)
    return {"notes": body, "sha256": _json_hash(body)}


def decode_manifest(tree: Any) -> CheckpointManifest:
    """Read notes that `encode_manifest` wrote.

    Raises:
        Damaged: they are not what was sealed.
    """
    if not isinstance(tree, dict) or _json_hash(tree.get("notes")) != tree.get(
        "sha256"
    ):
        raise CorruptCheckpointError("notes, changed since they were written")
    body = tree["notes"]
    leaves = {
        name: LeafMetadata(**{**leaf, "shape": tuple(leaf["shape"])})
        for name, leaf in body["leaves"].items()
    }
    return CheckpointManifest(**{**body, "leaves": leaves})


def first_difference(
    stored: Mapping[str, LeafMetadata], expected: Mapping[str, LeafMetadata]
) -> str | None:
    """Say where two descriptions of a state part, or None where they agree.

    >>> a = {"stem/bias": LeafMetadata(shape=(4,), dtype="float32")}
    >>> b = {"stem/bias": LeafMetadata(shape=(8,), dtype="float32")}
    >>> first_difference(a, b)
    'stem/bias is float32 [4] in the checkpoint, float32 [8] in this run'
    """
    for name in [*expected, *(name for name in stored if name not in expected)]:
        has, wants = stored.get(name), expected.get(name)
        if has is None or wants is None or has.text() != wants.text():
            return (
                f"{name} is {_leaf_text(has)} in the checkpoint, "
                f"{_leaf_text(wants)} in this run"
            )
    return None


def _leaf_text(leaf: LeafMetadata | None) -> str:
    return "absent" if leaf is None else leaf.text()


def _json_hash(body: Any) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
