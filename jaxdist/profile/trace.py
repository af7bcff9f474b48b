"""Tracing: a network's forward pass and gradient as programs, nothing computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters import partial_eval

from jaxdist.profile.scopes import add_layer_scopes

NetworkHook = Callable[[nnx.Module], None]
"""Called on the traced network before it runs, to bind noise to it."""


@dataclass(frozen=True, kw_only=True)
class NetworkTrace:
    """A network as programs on abstract shapes."""

    forward: Jaxpr
    """The forward pass, in training mode."""
    forward_backward: Jaxpr
    """Forward and backward pass."""
    output_bytes: dict[str, int]
    """Bytes that each module returns, by path."""


def trace_network(
    network: nnx.Module, inputs: Sequence[jax.ShapeDtypeStruct], prepare: NetworkHook
) -> NetworkTrace:
    """Trace a network with a scope around every module.

    Args:
        network: abstract or real; not changed.
        inputs: shapes and dtypes of what it is called on, the batch first.
        prepare: binds noise to it.
    """
    returned: dict[str, int] = {}

    def scoped(traced: nnx.Module) -> None:
        prepare(traced)
        add_layer_scopes(traced, returned)

    run, state = as_function(network, scoped)
    return NetworkTrace(
        forward=trace_pruned(run, *state, *inputs),
        forward_backward=trace_pruned(with_gradient(run), *state, *inputs),
        output_bytes=returned,
    )


def as_function(
    network: nnx.Module, prepare: NetworkHook = lambda network: None
) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Return the network as a function, in training mode, and its abstract state.

    Returns:
        `run(params, rest, *inputs) -> (floating-point outputs, statistics)`, and
        `(params, rest)`.
    """
    graph, params, *others = nnx.split(network, nnx.Param, ...)
    rest = others[0]

    def run(params: Any, rest: Any, *inputs: jax.Array) -> tuple[Any, Any]:
        # copy: batch norm writes its running statistics, and must not reach outside.
        traced = nnx.merge(graph, params, rest, copy=True)
        traced.train()
        prepare(traced)
        out = [y for y in jax.tree.leaves(traced(*inputs)) if _is_float(y)]
        return out, nnx.state(traced, nnx.BatchStat)

    return run, (params, rest)


def with_gradient(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a network's function with the gradient of the sum of its outputs."""

    def both(params: Any, rest: Any, *inputs: jax.Array) -> Any:
        out, pull, stats = jax.vjp(
            lambda params: run(params, rest, *inputs), params, has_aux=True
        )
        return out, stats, pull(jax.tree.map(jnp.ones_like, out))

    return both


def trace_pruned(function: Callable[..., Any], *shapes: Any) -> Jaxpr:
    """Trace a function and leave out what its results do not need, as jit does.

    Args:
        function: of arrays, or trees of them.
        shapes: shapes and dtypes of its arguments.
    """
    return prune_jaxpr(jax.make_jaxpr(function)(*shapes).jaxpr)


def prune_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """Leave out what a traced program's results do not need, inside loops as well.

    For reading: the programs inside may lack arguments that they are given.
    """
    found, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return found.replace(eqns=[_prune_inner(eqn) for eqn in found.eqns])


def _prune_inner(eqn: JaxprEqn) -> JaxprEqn:
    """Prune the programs of an operation; jax prunes those of scans alone."""
    inner = {
        name: value.replace(jaxpr=prune_jaxpr(value.jaxpr))
        for name, value in eqn.params.items()
        if isinstance(value, ClosedJaxpr)
    }
    inner |= {
        name: prune_jaxpr(value)
        for name, value in eqn.params.items()
        if isinstance(value, Jaxpr)
    }
    return eqn.replace(params=dict(eqn.params) | inner) if inner else eqn


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))
