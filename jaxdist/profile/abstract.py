"""An abstract network: its structure and the shapes of its arrays, without numbers."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

Precision = Literal["float32", "bfloat16", "float64"]
"""Number format of activations; parameters are float32 or wider."""


def is_trainable(path: Sequence[Any], variable: nnx.Variable[Any]) -> bool:
    """Tell whether gradients can move a variable, as a filter of `nnx.split`.

    They move parameters of real or complex numbers; not integers, and not those that
    have no element, which no device could send.

    Args:
        path: where it is in the network.
        variable: a variable of any kind, on numbers or on shapes.
    """
    del path
    leaves = jax.tree.leaves(variable)
    return isinstance(variable, nnx.Param) and all(
        x.size and jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves
    )


class ConstantKeyStream(nnx.RngStream):
    """A stream that always gives the same key: abstract weights need no others.

    Counting keys inside a trace takes flax most of the time it needs for a network.
    """

    def __call__(self) -> jax.Array:
        """Return the key."""
        # No split and no counter: shapes do not depend on the key.
        return self.key[...]


class _Streams(nnx.Rngs):
    """Streams of which one is declared: Flax makes them by name and declares none."""

    default: Any


def constant_rngs() -> nnx.Rngs:
    """Return streams that all give one key, for networks on shapes alone."""
    rngs = _Streams(0)
    rngs.default = ConstantKeyStream(0, tag="default")
    return rngs


def build_abstract_network(
    constructor: Callable[..., nnx.Module], precision: Precision = "float32"
) -> nnx.Module:
    """Build a network on shapes alone.

    Args:
        constructor: the network's constructor `(dtype=, rngs=) -> nnx.Module`.
        precision: float64 needs `jax_enable_x64`.
    """
    # Mixed precision: bfloat16 is for activations, parameters stay float32.
    full = jnp.float64 if precision == "float64" else jnp.float32
    narrow = jnp.bfloat16 if precision == "bfloat16" else None

    def cast(x: Any) -> Any:
        # Initialisers make float32; integers (counters, keys) keep their types.
        return x.astype(full) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def build() -> nnx.Module:
        network = constructor(dtype=narrow, rngs=constant_rngs())
        nnx.update(network, jax.tree.map(cast, nnx.state(network)))
        return network

    # A Llama of 1 B parameters costs milliseconds and no memory this way.
    made: nnx.Module = nnx.eval_shape(build)
    return made
