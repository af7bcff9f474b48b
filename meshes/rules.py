"""Placing arrays on a mesh, never replicated where a split was asked for."""

import math

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdist.core.errors import BadInput


def shard(
    array: jax.Array, spec: PartitionSpec, mesh: Mesh, name: str = "array"
) -> jax.Array:
    """Place an array on the mesh as `spec` says.

    Args:
        array: any shape and dtype.
        spec: axis, axes or None for each dim.
        mesh: where to.
        name: how an error calls the array.

    Raises:
        BadInput: a dim is not a multiple of the devices along its axes; XLA would
            keep the whole array on every device without a word.
    """
    shape = array.shape
    for dim, axes in enumerate(spec):
        names = (axes,) if isinstance(axes, str) else tuple(axes or ())
        parts = math.prod(mesh.shape[a] for a in names)
        if shape[dim] % parts:
            below, above = shape[dim] // parts * parts, -(-shape[dim] // parts) * parts
            sizes = " or ".join(str(s) for s in (below, above) if s)
            raise BadInput(
                f"{name} does not divide over the mesh",
                rule="a split dim is a multiple of the devices along its axes",
                values=f"dim {dim} of {name} {shape} has {shape[dim]} over "
                f"{' x '.join(names)} = {parts} devices",
                remedy=f"a size of {sizes}",
            )
    return jax.device_put(array, NamedSharding(mesh, spec))
