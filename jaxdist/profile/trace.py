"""Tracing: a network's forward pass and gradient as jaxprs, nothing computed.

Every operation carries the path of its layer as a scope.

Readings: what was read of a network by tracing it, kept for the next layout.

Most of what a layout asks about a network is the same for many layouts: which layers it
calls on a microbatch of so many samples, which parameters the backward pass reads. A
trace takes 0.1 to 5 s, so whoever lays a task out a hundred times hands the same
readings to each; without, everything is read afresh.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.interpreters import partial_eval

from jaxdist.core.array_tags import LAYER_OUTPUT
from jaxdist.core.instance_methods import wrap_method
from jaxdist.profile.abstract import is_trainable
from jaxdist.profile.repeated_blocks import NetworkHook


@dataclass(frozen=True, kw_only=True)
class NetworkTrace:
    """A network as programs on abstract shapes."""

    forward: Jaxpr
    """The forward pass, in training mode."""
    forward_backward: Jaxpr
    """Forward and backward pass."""
    output_bytes: dict[str, int]
    """Bytes that each module returns, by path."""
    passed_bytes: dict[str, int]
    """Bytes of these that it was called on."""


def trace_network(
    network: nnx.Module, inputs: Sequence[jax.ShapeDtypeStruct], prepare: NetworkHook
) -> NetworkTrace:
    """Trace a network with a scope around every module.

    Args:
        network: abstract or real; not changed.
        inputs: shapes and dtypes of what it is called on, the batch first.
        prepare: binds noise to it.
    """
    returned, passed = dict[str, int](), dict[str, int]()

    def scoped(traced: nnx.Module) -> None:
        prepare(traced)
        add_layer_scopes(traced, returned, passed)

    run, state = as_function(network, scoped)
    return NetworkTrace(
        forward=trace_pruned(run, *state, *inputs),
        forward_backward=trace_pruned(with_gradient(run), *state, *inputs),
        output_bytes=returned,
        passed_bytes=passed,
    )


def as_function(
    network: nnx.Module, prepare: NetworkHook = lambda network: None
) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Return the network as a function, in training mode, and its abstract state.

    Returns:
        `run(params, rest, *inputs) -> (floating-point outputs, statistics)`, and
        `(params, rest)`.
    """
    # Parameters apart: the gradient is with respect to them alone.
    graph, params, *others = nnx.split(network, is_trainable, ...)
    rest = others[0]

    def run(params: Any, rest: Any, *inputs: jax.Array) -> tuple[Any, Any]:
        # copy: batch norm writes its running statistics, and must not reach outside.
        traced = nnx.merge(graph, params, rest, copy=True)
        traced.train()
        prepare(traced)
        out = [
            y
            for y in jax.tree.leaves(traced(*inputs))
            if jnp.issubdtype(jnp.result_type(y), jnp.floating)
        ]
        return out, nnx.state(traced, nnx.BatchStat)

    return run, (params, rest)


def with_gradient(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a network's function with the gradient of the sum of its outputs."""

    def both(params: Any, rest: Any, *inputs: jax.Array) -> Any:
        # Ones as cotangents: the gradient of the sum of all outputs.
        out, pull, stats = jax.vjp(
            lambda params: run(params, rest, *inputs), params, has_aux=True
        )
        return out, stats, pull(jax.tree.map(jnp.ones_like, out))

    return both


def modules_by_path(network: nnx.Module) -> dict[str, nnx.Module]:
    """List the modules inside a network by path."""
    every = ((".".join(map(str, p)), m) for p, m in nnx.iter_modules(network) if p)
    return dict(every)


def add_layer_scopes(
    network: nnx.Module, output_bytes: dict[str, int], passed_bytes: dict[str, int]
) -> None:
    """Make every call of a module open a scope of its path, and name what it makes.

    Args:
        network: changed in place; a fresh merge inside a trace.
        output_bytes: is filled with the bytes each module returns, as it is called.
        passed_bytes: likewise, with those that it was called on.
    """
    seen: list[Any] = []  # arrays, not their ids: an id may be used again
    for path, module in modules_by_path(network).items():
        if callable(module):
            _wrap_in_scope(module, path, (output_bytes, passed_bytes), seen)


def _wrap_in_scope(
    module: nnx.Module,
    path: str,
    sizes: tuple[dict[str, int], dict[str, int]],
    seen: list[Any],
) -> None:
    """Make the calls of this one module open its scope."""

    def scoped(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        # A layer that returns its input (dropout in evaluation) makes nothing new.
        given = jax.tree.leaves((args, kwargs))
        seen.extend(given)
        with jax.named_scope(path):
            leaves, tree = jax.tree.flatten(call(self, *args, **kwargs))
            # Tag what is new: neither an input nor what a layer inside returned, so
            # that every activation counts once.
            for i, leaf in enumerate(leaves):
                is_array = isinstance(leaf, jax.Array)
                if is_array and not any(leaf is old for old in seen):
                    leaves[i] = checkpoint_name(leaf, LAYER_OUTPUT)
                    seen.append(leaves[i])
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        passed = [leaf for leaf in arrays if any(leaf is old for old in given)]
        for size, some in zip(sizes, (arrays, passed), strict=True):
            size[path] = sum(leaf.size * leaf.dtype.itemsize for leaf in some)
        return jax.tree.unflatten(tree, leaves)

    wrap_method(module, scoped)


def trace_pruned(function: Callable[..., Any], *shapes: Any) -> Jaxpr:
    """Trace a function and leave out what its results do not need, as jit does.

    Args:
        function: of arrays, or trees of them.
        shapes: shapes and dtypes of its arguments.
    """
    return prune_jaxpr(jax.make_jaxpr(function)(*shapes).jaxpr)


_INLINED: Final = ("jit", "remat2", "checkpoint", "closed_call", "scan")
"""Primitives that call a program inside, whose arguments are their own."""

_ZERO_GRADIENTS: Final = frozenset(
    ("stop_gradient", "floor", "ceil", "round", "sign", "random_bits", "nextafter")
)
"""Primitives of floats to floats whose derivative is zero everywhere."""


def has_gradients(jaxpr: Jaxpr, outputs: Sequence[bool]) -> list[bool]:
    """Tell for each argument of a program whether a result has a gradient with it.

    By the way from result to argument, in which nothing is computed: an argument that
    no way leads to, but through integers or a stopped gradient, has none.

    Args:
        jaxpr: a traced program.
        outputs: which of its results are meant.
    """
    # Without what the results do not need, loops have no argument that they only carry.
    pruned, used = partial_eval.dce_jaxpr(jaxpr, list(outputs))
    live = {var for var in pruned.outvars if isinstance(var, Var)}
    for eqn in reversed(pruned.eqns):
        wanted = [var in live and _is_inexact(var) for var in eqn.outvars]
        if not any(wanted) or eqn.primitive.name in _ZERO_GRADIENTS:
            continue
        passed = [True] * len(eqn.invars)
        # Functions with rules of their own, and branches, are taken as a whole.
        if eqn.primitive.name in _INLINED:
            inner: Any = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            # What a loop carries reaches all of its results in some iteration.
            loop = eqn.primitive.name == "scan"
            reached = [loop or want for want in wanted]
            passed = has_gradients(getattr(inner, "jaxpr", inner), reached)
        live.update(
            var
            for var, known in zip(eqn.invars, passed, strict=True)
            if known and isinstance(var, Var)
        )
    found = (var in live and _is_inexact(var) for var in pruned.invars)
    return [keep and next(found) for keep in used]


def _is_inexact(var: Any) -> bool:
    return bool(jnp.issubdtype(var.aval.dtype, jnp.inexact))


def prune_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """Leave out what a traced program's results do not need, inside loops as well.

    For reading: the programs inside may lack arguments that they are given.
    """
    # jit removes dead code before it compiles; make_jaxpr does not.
    found, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    eqns = []
    for eqn in found.eqns:
        # JAX prunes the programs inside scans alone.
        inner: dict[str, Any] = {}
        for name, value in eqn.params.items():
            if isinstance(value, ClosedJaxpr):
                inner[name] = value.replace(jaxpr=prune_jaxpr(value.jaxpr))
            elif isinstance(value, Jaxpr):
                inner[name] = prune_jaxpr(value)
        eqns.append(eqn.replace(params=dict(eqn.params) | inner) if inner else eqn)
    return found.replace(eqns=eqns)


ReadT = TypeVar("ReadT")


class TraceCache:
    """Readings of one task's network by what they depend on.

    >>> cache, calls = TraceCache(), []
    >>> [cache.get_or_compute("rows", lambda: calls.append(1) or 28) for _ in range(3)]
    [28, 28, 28]
    >>> len(calls)
    1
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def get_or_compute(self, key: Hashable, compute: Callable[[], ReadT]) -> ReadT:
        """Return a reading; it is taken where it is not there.

        Args:
            key: all that it depends on besides the network, and what is read.
            compute: takes it; where it raises nothing is kept.
        """
        if key not in self._found:
            self._found[key] = compute()
        # A reading that raised is not kept: the next layout raises by itself.
        found: ReadT = self._found[key]
        return found
