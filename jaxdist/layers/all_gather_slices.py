"""Collectives of an activation's slices, with their gradients."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxdist.collectives import sharded_leaves


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def all_gather_dim(x: jax.Array, dim: int, axis: str) -> jax.Array:
    """All-gather the slices of all devices; floats of 16 bits as bits.

    Backward the gradients of all devices are summed, in at least float32, and each
    keeps its slice of the sum.

    Args:
        x: this device's slice.
        dim: the dim that is sliced.
        axis: the manual axis along which devices have the slices.
    """
    return sharded_leaves.all_gather_array(x, axis, dim)


def _forward(x: jax.Array, dim: int, axis: str) -> tuple[jax.Array, None]:
    return all_gather_dim(x, dim, axis), None


def _backward(dim: int, axis: str, saved: None, ct: jax.Array) -> tuple[jax.Array]:
    return (sharded_leaves.reduce_scatter_array(ct, axis, dim).astype(ct.dtype),)


# JAX's own transpose would sum in 16 bits.
all_gather_dim.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def reduce_scatter_dim(x: jax.Array, dim: int, axis: str) -> jax.Array:
    """Sum over devices in at least float32, and keep this device's slice of the sum.

    Backward the gradients of the slices are gathered, in their own dtype.

    Args:
        x: this device's share of the sum.
        dim: the dim that is sliced.
        axis: the manual axis along which devices have the shares.
    """
    return sharded_leaves.reduce_scatter_array(x, axis, dim).astype(x.dtype)


def _forward_scatter(x: jax.Array, dim: int, axis: str) -> tuple[jax.Array, None]:
    return reduce_scatter_dim(x, dim, axis), None


def _backward_scatter(
    dim: int, axis: str, saved: None, ct: jax.Array
) -> tuple[jax.Array]:
    return (sharded_leaves.all_gather_array(ct, axis, dim),)


# JAX's own transpose would gather what was widened for the sum.
reduce_scatter_dim.defvjp(_forward_scatter, _backward_scatter)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def all_to_all_dims(
    x: jax.Array, split_dim: int, concat_dim: int, axis: str
) -> jax.Array:
    """Exchange slices of one dim for those of another; 16-bit floats as bits.

    Args:
        x: whole along `split_dim`, this device's slice along `concat_dim`.
        split_dim: the dim that is a slice behind.
        concat_dim: the dim that is whole behind.
        axis: the manual axis along which devices exchange.
    """
    # As integers: XLA's CPU backend would widen 16-bit floats and send twice the bytes.
    if x.dtype.itemsize != 2:
        return lax.all_to_all(x, axis, split_dim, concat_dim, tiled=True)
    bits = lax.bitcast_convert_type(x, jnp.uint16)
    moved = lax.all_to_all(bits, axis, split_dim, concat_dim, tiled=True)
    return lax.bitcast_convert_type(moved, x.dtype)


def _all_to_all_forward(
    x: jax.Array, give: int, take: int, axis: str
) -> tuple[jax.Array, None]:
    return all_to_all_dims(x, give, take, axis), None


def _all_to_all_backward(
    give: int, take: int, axis: str, saved: None, ct: jax.Array
) -> tuple[jax.Array]:
    return (all_to_all_dims(ct, take, give, axis),)


all_to_all_dims.defvjp(_all_to_all_forward, _all_to_all_backward)
