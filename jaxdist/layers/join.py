"""Joining: the slices that devices hold of an activation put together on each."""

import functools

import jax

from jaxdist.collectives import shards


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def joined(x: jax.Array, dim: int, axis: str) -> jax.Array:
    """Join the slices of all devices; floats of 16 bits as bits.

    Backward the gradients of all devices are summed, in at least float32, and each
    keeps its slice of the sum.

    Args:
        x: this device's slice.
        dim: the dim that is sliced.
        axis: the manual axis along which devices have the slices.
    """
    return shards.joined(x, axis, dim)


def _forward(x: jax.Array, dim: int, axis: str) -> tuple[jax.Array, None]:
    return joined(x, dim, axis), None


def _backward(dim: int, axis: str, saved: None, ct: jax.Array) -> tuple[jax.Array]:
    return (shards.dealt(ct, axis, dim).astype(ct.dtype),)


joined.defvjp(_forward, _backward)
