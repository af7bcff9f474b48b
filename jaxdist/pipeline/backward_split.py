"""The backward pass of a stage in two parts: input gradients and weight gradients.

With y = f(w, x) of each layer, the gradient of y is needed for that of x, which the
stage before waits for, and for that of w, for which nobody waits before the end of the
step. So the equations of a traced backward pass are divided: those that the gradient
of the stage's input depends on, and the rest. What the rest reads of the first part is
kept, as what a backward pass reads of a forward pass is: *weight residuals*. No
equation is in both parts, but for those that move data alone.

Source: Qi et al. 2023, arXiv 2401.10241, section 2, whose B and W they are.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from jaxdist.core.array_tags import FUSED_ATTENTION, FUSED_ATTENTION_GRADIENT
from jaxdist.pipeline.flat_messages import FlatTreeSpec, flat_tree_spec

# Calls whose equations may belong to both parts. Those of `checkpoint` need no barrier:
# the forward pass is in another loop of the program.
_CALLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "jit": "jaxpr",
        "closed_call": "call_jaxpr",
        "core_call": "call_jaxpr",
        "remat2": "jaxpr",
        "checkpoint": "jaxpr",
        "custom_jvp_call": "call_jaxpr",
        "custom_vjp_call": "call_jaxpr",
    }
)
"""Their names, and the parameter that has the program."""

_CONTRACTIONS: Final = frozenset(
    ("dot_general", "conv_general_dilated", "scatter-add", "scan", "while", "cond")
) | {FUSED_ATTENTION, FUSED_ATTENTION_GRADIENT}
"""Primitives that take the time of a pass."""

_DATA_MOVES: Final = frozenset(("broadcast_in_dim", "convert_element_type", "copy")) | {
    *("expand_dims", "iota", "reshape", "rev", "squeeze", "transpose")
}
"""Primitives that copy their operand, at most."""


@dataclass(frozen=True, kw_only=True)
class BackwardSplit:
    """A backward pass whose weight gradients are computed apart."""

    input_pass: ClosedJaxpr
    """`(*arrays) -> (*input gradients, *weight residuals)`."""
    weight_pass: ClosedJaxpr
    """`(*arrays, *weight residuals) -> weight gradients`."""
    weight_residual_spec: FlatTreeSpec
    """What the first keeps for the second, a list."""
    input_tree: Any
    """Structure of the gradients of inputs."""
    weight_tree: Any
    """Structure of the gradients of weights."""

    def input_gradients(self, *args: Any) -> tuple[Any, list[jax.Array]]:
        """Return the gradients of the inputs, and the weight residuals.

        Args:
            args: those of the whole backward pass.
        """
        found = jaxpr_as_fun(self.input_pass)(*jax.tree.leaves(args))
        count = self.input_tree.num_leaves
        return jax.tree.unflatten(self.input_tree, found[:count]), list(found[count:])

    def weight_gradients(self, residuals: Sequence[jax.Array], *args: Any) -> Any:
        """Return the gradients of the weights.

        Args:
            residuals: weight residuals of `input_gradients`.
            args: those of the whole backward pass.
        """
        found = jaxpr_as_fun(self.weight_pass)(*jax.tree.leaves(args), *residuals)
        return jax.tree.unflatten(self.weight_tree, found)


def split_backward(
    backward: Callable[..., tuple[Any, Any]], *args: Any
) -> BackwardSplit:
    """Divide a backward pass into input gradients and weight gradients.

    The first stage of a pipeline has no input to give a gradient of. There the first
    part has what the time of the pass goes on with from layer to layer: all that
    another contraction depends on. So it is about as long as in other stages.

    Args:
        backward: from residuals, inputs and a cotangent to (gradients of weights,
            gradients of inputs).
        args: shapes of its arguments.
    """
    # Equations are divided, not functions: two calls of `jax.vjp` would do the pass
    # to the input twice.
    closed, shapes = jax.make_jaxpr(backward, return_shape=True)(*args)
    whole = inline_calls(closed)
    weight_tree, input_tree = (jax.tree.structure(tree) for tree in shapes)
    count = len(jax.tree.leaves(shapes[0]))
    weight_outs, input_outs = whole.jaxpr.outvars[:count], whole.jaxpr.outvars[count:]

    eqns = whole.jaxpr.eqns
    heads = input_outs
    if not heads:
        needed = _dependencies(eqns, weight_outs)
        products = [eqns[i] for i in needed if _is_contraction(eqns[i])]
        heads = [v for eqn in products for v in eqn.invars]
    heads = [*heads, *_gradients_at_once(eqns, heads, weight_outs)]
    first = _dependencies(eqns, heads)
    second = _dependencies(eqns, weight_outs, done=first)
    kept, again = _weight_residuals(eqns, first, second, weight_outs)
    second |= again

    # Both parts are called on all arguments: one that is not read costs nothing.
    def part(chosen: Iterable[int], ins: list[Var], outs: list[Any]) -> ClosedJaxpr:
        program = whole.jaxpr.replace(
            invars=[*whole.jaxpr.invars, *ins],
            outvars=outs,
            eqns=[eqns[i] for i in sorted(chosen)],
        )
        return whole.replace(jaxpr=program)

    return BackwardSplit(
        input_pass=part(first, [], [*input_outs, *kept]),
        weight_pass=part(second, kept, list(weight_outs)),
        weight_residual_spec=flat_tree_spec(
            [jax.ShapeDtypeStruct(*_shape_dtype(v)) for v in kept]
        ),
        input_tree=input_tree,
        weight_tree=weight_tree,
    )


def inline_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a program with the equations of its calls in their place.

    Loops and branches stay as they are.
    """
    constvars, consts = list(closed.jaxpr.constvars), list(closed.consts)
    eqns: list[JaxprEqn] = []

    def inline(jaxpr: Jaxpr, env: dict[Var, Any], outer: JaxprEqn | None) -> list[Any]:
        def read(atom: Any) -> Any:
            return atom if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            source = eqn.source_info
            if outer is not None:
                # Scopes say which layer an equation is of, and inside of a call only
                # those of the call.
                stack = outer.source_info.name_stack + source.name_stack
                source = source.replace(name_stack=stack)
            here = eqn.replace(invars=list(map(read, eqn.invars)), source_info=source)
            name = eqn.primitive.name
            if name in _CALLS:
                called = eqn.params[_CALLS[name]]
                body = getattr(called, "jaxpr", called)
                # A program that is called twice has variables of its own each time.
                inner = dict(zip(body.invars, here.invars, strict=True))
                for var, value in zip(
                    body.constvars, getattr(called, "consts", ()), strict=True
                ):
                    # Constants of a called program become constants of the whole.
                    inner[var] = Var(var.aval)
                    constvars.append(inner[var])
                    consts.append(value)
                made = inline(body, inner, here)
                env.update(zip(eqn.outvars, made, strict=True))
                continue
            outs = [Var(var.aval) for var in eqn.outvars]
            env.update(zip(eqn.outvars, outs, strict=True))
            eqns.append(here.replace(outvars=outs))
        return list(map(read, jaxpr.outvars))

    top = closed.jaxpr
    env: dict[Var, Any] = {v: v for v in (*top.constvars, *top.invars)}
    outs = inline(top, env, None)
    flat = top.replace(constvars=constvars, outvars=outs, eqns=eqns)
    return closed.replace(jaxpr=flat, consts=consts)


def _is_contraction(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in _CONTRACTIONS


def _dependencies(
    eqns: Sequence[JaxprEqn], outs: Iterable[Any], done: Iterable[int] = ()
) -> set[int]:
    """Return the equations that some arrays depend on, but for those done before."""
    before, found = set(done), set[int]()
    wanted = {v for v in outs if isinstance(v, Var)}
    # From the end: an equation is needed if one behind it reads what it makes.
    for i in reversed(range(len(eqns))):
        if i not in before and wanted.intersection(eqns[i].outvars):
            found.add(i)
            wanted.update(v for v in eqns[i].invars if isinstance(v, Var))
    return found


def _gradients_at_once(
    eqns: Sequence[JaxprEqn], heads: Sequence[Any], outs: Sequence[Any]
) -> list[Any]:
    """Return the weight gradients that cost less in the first part than in the second.

    Those of norms are sums over an array that no product of weights reads: to keep it
    takes as long as to sum it, and memory. Biases' are sums over arrays that are kept.
    """
    first = _dependencies(eqns, heads)
    chains = [_dependencies(eqns, [out], done=first) for out in outs]
    late = [any(_is_contraction(eqns[i]) for i in chain) for chain in chains]
    products = [out for out, is_late in zip(outs, late, strict=True) if is_late]
    second = _dependencies(eqns, products, done=first)
    kept, _ = _weight_residuals(eqns, first, second, products)
    found = []
    for out, chain, is_late in zip(outs, chains, late, strict=True):
        if not is_late and not {*_weight_residuals(eqns, first, chain, [out])[0]} <= {
            *kept
        }:
            found.append(out)
    return found


def _weight_residuals(
    eqns: Sequence[JaxprEqn], first: set[int], second: set[int], outs: Iterable[Any]
) -> tuple[list[Var], set[int]]:
    """Return the arrays that the second part reads of the first, and what it moves.

    Returns:
        The arrays to keep; equations of the first that the second does again, as they
        move data alone.
    """
    maker = {v: i for i in sorted(first) for v in eqns[i].outvars}
    reads = [v for i in sorted(second) for v in eqns[i].invars] + list(outs)
    kept = {v: None for v in reads if isinstance(v, Var) and v in maker}
    again = set[int]()
    # From the last equation back, so that chains of moves are followed to their start.
    for i in sorted(first, reverse=True):
        eqn = eqns[i]
        if eqn.primitive.name not in _DATA_MOVES or eqn.outvars[0] not in kept:
            continue
        # What is longer than its operand is not kept, nor anything a second time.
        made = [v for v in eqn.invars if isinstance(v, Var) and v in maker]
        if all(v in kept or _nbytes(v) <= _nbytes(eqn.outvars[0]) for v in made):
            again.add(i)
            del kept[eqn.outvars[0]]
            kept.update(dict.fromkeys(made))
    return list(kept), again


def _shape_dtype(var: Var) -> tuple[tuple[int, ...], Any]:
    array: Any = var.aval
    return array.shape, array.dtype


def _nbytes(var: Var) -> int:
    shape, dtype = _shape_dtype(var)
    return math.prod(shape) * int(dtype.itemsize)
