"""What the psum family takes: axes that are there, numbers that a sum cannot wrap."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxdist.collectives.compress.exact import ExactAllReduce
from jaxdist.collectives.compress.method import AllReduceAlgorithm, Axes
from jaxdist.core.errors import BadInput, did_you_mean


def check_axes(axis: str | Sequence[str]) -> Axes:
    """Return the axes as a tuple.

    Raises:
        BadInput: there is none of this name around, or it is not manual.
    """
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    mesh = jax.sharding.get_abstract_mesh()
    for name in axes:
        if name not in mesh.manual_axes:
            known = ", ".join(map(str, mesh.manual_axes)) or "none"
            near = did_you_mean(name, map(str, mesh.manual_axes))
            raise BadInput(
                f"no manual mesh axis {name} here",
                rule="sums run inside jax.shard_map, over axes of its mesh",
                values=f"axis = {name}; manual axes here: {known}",
                remedy=f'"{near}"' if near else "call it inside jax.shard_map",
            )
    return axes


def check_dtypes(algorithm: AllReduceAlgorithm, leaves: Sequence[jax.Array]) -> None:
    """Refuse numbers that a method cannot sum.

    Raises:
        BadInput: integers of fewer than 32 bits, which wrap or which a backend cannot
            move, or integers where the sum is not exact.
    """
    for x in leaves:
        floats = jnp.issubdtype(x.dtype, jnp.floating)
        if not floats and not isinstance(algorithm, ExactAllReduce):
            raise BadInput(
                f"{algorithm.name} sums floats only",
                rule="integers are summed exactly",
                values=f"dtype = {x.dtype}",
                remedy='via="exact"',
            )
        if jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 32:
            raise BadInput(
                f"a sum of {x.dtype} could overflow",
                rule="integers of at least 32 bits are summed: narrower ones wrap "
                "without a word, and int2 stops the process on CPU",
                values=f"dtype = {x.dtype}",
                remedy="x.astype(jnp.int32)",
            )
        if floats and x.dtype.itemsize < 2:
            raise BadInput(
                f"a sum of {x.dtype} would be rounded at every addition",
                rule="floats of at least 16 bits are summed",
                values=f"dtype = {x.dtype}",
                remedy='x.astype(jnp.float32), via="fp8"',
            )
