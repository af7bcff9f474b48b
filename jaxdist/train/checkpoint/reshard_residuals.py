"""Resize: what compressed gradients left on some devices, restored on others.

    residual, velocity   [devices, *parameter]: their sum is what is still to be sent;
                         the first device gets all of it, the others zeros
    memory               of a parameter that is split otherwise now: begun anew

On as many devices as before nothing is changed.
"""

from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxdist.train.checkpoint.manifest import LeafMetadata

_SUMMED_PREFIXES: Final = ("feedback/residual/", "feedback/velocity/")
_RESET_PREFIX: Final = "feedback/memory/"


def stored_shapes(
    targets: Mapping[str, Any], stored: Mapping[str, LeafMetadata]
) -> dict[str, Any]:
    """Say in which shapes arrays are read: as stored, where they can be made to fit.

    Args:
        targets: arrays of the abstract state, by name.
        stored: what the checkpoint says of its own.
    """
    return {
        name: _stored_shape(name, leaf, stored[name]) if name in stored else leaf
        for name, leaf in targets.items()
    }


def reshard_arrays(
    arrays: Mapping[str, jax.Array], targets: Mapping[str, Any]
) -> dict[str, jax.Array]:
    """Make arrays that were read fit the devices that are there now."""
    return {name: _reshard_array(name, x, targets[name]) for name, x in arrays.items()}


def _stored_shape(name: str, leaf: Any, metadata: LeafMetadata) -> Any:
    """Return the shape that is stored, whole in its first dim."""
    summed = name.startswith(_SUMMED_PREFIXES) and metadata.shape[1:] == leaf.shape[1:]
    if metadata.shape == leaf.shape or not (summed or name.startswith(_RESET_PREFIX)):
        return leaf
    spec = P(None, *leaf.sharding.spec[1:]) if summed else P()
    place = NamedSharding(leaf.sharding.mesh, spec)
    return jax.ShapeDtypeStruct(metadata.shape, leaf.dtype, sharding=place)


def _reshard_array(name: str, x: jax.Array, leaf: Any) -> jax.Array:
    if x.shape == leaf.shape or not name.startswith((*_SUMMED_PREFIXES, _RESET_PREFIX)):
        return x

    def fit(x: jax.Array) -> jax.Array:
        empty = jnp.zeros(leaf.shape, leaf.dtype)
        return empty if name.startswith(_RESET_PREFIX) else empty.at[0].set(x.sum(0))

    return jax.jit(fit, out_shardings=leaf.sharding)(x)
