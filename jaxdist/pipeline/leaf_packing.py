"""Parting: a leaf as devices of a pipeline have it, in rows of numbers, and whole.

whole leaf  <->  [fsdp, tensor, n]      as it lies on all devices
a device's  <->  [fsdp, n]              as fsdp shares it out
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding


def local_size(plan: Plan, leaf: LeafSharding) -> int:
    """Count the numbers of a leaf on one device."""
    return math.prod(leaf.local_shape(plan))


def split_whole_leaf(x: Any, leaf: LeafSharding, plan: Plan) -> Any:
    """Part a whole leaf as it lies on devices, [fsdp, tensor, n]."""
    parts = x[None]
    for dim, size in (
        (leaf.tensor_dim, plan.mesh.tensor),
        (leaf.fsdp_dim, plan.mesh.fsdp),
    ):
        pieces = (
            jnp.split(parts, size, axis=dim + parts.ndim - len(leaf.shape))
            if dim is not None
            else [parts]
        )
        parts = jnp.stack(pieces)
    return parts.reshape(*parts.shape[:2], -1)


def join_whole_leaf(rows: Any, leaf: LeafSharding, plan: Plan) -> Any:
    """Put a whole leaf together from the parts of devices, [fsdp, tensor, n]."""
    local = leaf.local_shape(plan)
    x = rows[:, :, : math.prod(local)].reshape(*rows.shape[:2], *local)
    for dim in (leaf.fsdp_dim, leaf.tensor_dim):
        pieces = list(x)
        x = (
            pieces[0]
            if dim is None
            else jnp.concatenate(pieces, axis=dim + x.ndim - 1 - len(local))
        )
    return x


def split_local_leaf(x: jax.Array, leaf: LeafSharding, plan: Plan) -> jax.Array:
    """Part a device's gradient as fsdp shares it out, [fsdp, n]."""
    pieces = (
        jnp.split(x, plan.mesh.fsdp, leaf.fsdp_dim)
        if leaf.fsdp_dim is not None
        else [x]
    )
    return jnp.stack([piece.reshape(-1) for piece in pieces])


def join_local_leaf(rows: jax.Array, leaf: LeafSharding, plan: Plan) -> jax.Array:
    """Put a device's leaf together from what fsdp shares out, [fsdp, n]."""
    local = leaf.local_shape(plan)
    pieces = [row[: math.prod(local)].reshape(local) for row in rows]
    return (
        pieces[0] if leaf.fsdp_dim is None else jnp.concatenate(pieces, leaf.fsdp_dim)
    )
