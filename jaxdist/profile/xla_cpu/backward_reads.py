"""Which parameters the backward pass reads again, from the trace of a gradient.

A parameter that is put together for the forward pass and dropped (fsdp) is needed once
more where its value has a part in a gradient: kernels behind the first layer and scales
of norms have, biases and tables that are only looked up have not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax


def backward_reads(
    loss: Callable[..., Any],
    leaves: Sequence[Any],
    *args: Any,
    constants: Callable[..., Sequence[jax.Array]] = lambda *args: (),
) -> tuple[bool, ...]:
    """Tell for each leaf whether the gradient's backward pass reads its value.

    Args:
        loss: `loss(leaves, *args) -> scalar`; traced on shapes, not computed.
        leaves: arrays or shapes that it is differentiated with respect to.
        args: its other arguments, arrays or shapes.
        constants: returns arrays out of `args` of which the same is told, behind the
            leaves.

    >>> import jax.numpy as jnp
    >>> backward_reads(lambda ab, x: ((x * ab[0] + ab[1]) ** 2).sum(), [1.0, 1.0], 3.0)
    (False, False)
    >>> values = [jnp.ones(2), jnp.ones(2)]
    >>> backward_reads(lambda ab: ((ab[0] * ab[1]) ** 2).sum(), values)
    (True, True)
    """
    found: list[bool] = []

    def run(given: list[Any], *rest: Any) -> None:
        # The residuals of the vjp say it: an argument that is not saved has no array
        # there.
        _, back = jax.vjp(lambda params: loss(params, *rest), given)
        found.extend(saved_leaves(back))
        found.extend(saved_constants(back, constants(*rest)))

    jax.eval_shape(run, list(leaves), *args)
    return tuple(found)


def saved_leaves(vjp_function: Any) -> list[bool]:
    """Tell which leaves of its first argument, a list, a `jax.vjp` result has kept."""
    return [isinstance(kept, jax.Array) for kept in vjp_function.args_res[0]]


def saved_constants(vjp_function: Any, constants: Sequence[jax.Array]) -> list[bool]:
    """Tell which arrays that are no arguments of it a `jax.vjp` result has kept."""
    kept = set(map(id, vjp_function.opaque_residuals))
    return [id(x) in kept for x in constants]
