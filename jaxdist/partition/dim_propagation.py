"""Dims: what an operation does to the dims of arrays that are cut over devices.

An operation on blocks gives the blocks of the operation on whole arrays if it treats
each place of the cut dims by itself. Rules are by primitive of jax; one that is not
here is taken to mix places.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

_ELEMENTWISE_PRIMITIVES: Final = frozenset(
    [
        *(
            "abs",
            "acos",
            "add",
            "and",
            "asin",
            "atan",
            "atan2",
            "cbrt",
            "ceil",
            "clamp",
        ),
        *("convert_element_type", "copy", "cos", "cosh", "div", "eq", "erf", "erf_inv"),
        *("erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "le"),
        *(
            "is_finite",
            "log",
            "log1p",
            "logistic",
            "lt",
            "max",
            "min",
            "mul",
            "ne",
            "neg",
        ),
        *("not", "or", "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n"),
        *(
            "sign",
            "sin",
            "sinh",
            "sqrt",
            "square",
            "stop_gradient",
            "sub",
            "tan",
            "tanh",
        ),
        "xor",
    ]
)
"""Primitives that do the same to each number."""
_REDUCTIONS: Final = (
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and"),
    *("reduce_or", "argmax", "argmin"),
)


@dataclass(frozen=True, kw_only=True)
class DimState:
    """What is known of the dims of an array."""

    split: frozenset[int] = frozenset()
    """Dims that are cut over devices."""
    constant: frozenset[int] = frozenset()
    """Dims along which all numbers are equal."""


class MixedDimError(Exception):
    """An operation mixes places of a dim that is cut; says which and where."""


DimRule = Callable[[Any, Sequence[DimState]], DimState]


def propagate_dims(eqn: Any, operands: Sequence[DimState]) -> DimState:
    """Return what is known of the outputs of an operation.

    Args:
        eqn: an equation of a jaxpr.
        operands: what is known of its operands.

    Raises:
        Mixed: it mixes places of a dim that is cut, or nobody knows that it does not.
    """
    name = eqn.primitive.name
    if name in _ELEMENTWISE_PRIMITIVES:
        return _elementwise(eqn, operands)
    if name in _DIM_RULES:
        return _DIM_RULES[name](eqn, operands)
    if any(op.split for op in operands):
        raise _mixed_dim_error(eqn)
    return DimState()


def _elementwise(eqn: Any, ops: Sequence[DimState]) -> DimState:
    """Numbers by themselves: what is not split must not change along split dims."""
    split = frozenset[int]().union(*(op.split for op in ops))
    arrays = [(op, v) for op, v in zip(ops, eqn.invars) if v.aval.shape]
    for op, var in arrays:
        wrong = split - op.split - op.constant
        if any(var.aval.shape[dim] > 1 for dim in wrong):
            raise _mixed_dim_error(eqn)
    same = [op.constant for op, _ in arrays]
    whole = frozenset(range(len(eqn.outvars[0].aval.shape)))
    return DimState(split=split, constant=whole.intersection(*same) - split)


def _broadcast(eqn: Any, ops: Sequence[DimState]) -> DimState:
    """New dims, and those that had one place, are the same all along."""
    places, shape = eqn.params["broadcast_dimensions"], eqn.params["shape"]
    old = eqn.invars[0].aval.shape
    kept = {p: d for d, p in enumerate(places) if old[d] == shape[p]}
    if any(places[d] not in kept for d in ops[0].split):
        raise _mixed_dim_error(eqn)
    split = frozenset(p for p, d in kept.items() if d in ops[0].split)
    held = frozenset(p for p, d in kept.items() if d in ops[0].constant)
    return DimState(
        split=split, constant=held | (frozenset(range(len(shape))) - kept.keys())
    )


def _reduce(eqn: Any, ops: Sequence[DimState]) -> DimState:
    gone = eqn.params["axes"]
    if ops[0].split & set(gone):
        raise _mixed_dim_error(eqn)
    left = [d for d in range(len(eqn.invars[0].aval.shape)) if d not in gone]
    return _reorder_dims(ops[0], left)


def _reshape(eqn: Any, ops: Sequence[DimState]) -> DimState:
    """Split dims keep their size and what stands before them."""
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    starts = {(math.prod(new[:d]), size): d for d, size in enumerate(new) if size > 1}
    found = [starts.get((math.prod(old[:d]), old[d])) for d in sorted(ops[0].split)]
    if None in found:
        raise _mixed_dim_error(eqn)
    ones = frozenset(d for d, size in enumerate(new) if size == 1)
    return DimState(split=frozenset(d for d in found if d is not None), constant=ones)


def _transpose(eqn: Any, ops: Sequence[DimState]) -> DimState:
    return _reorder_dims(ops[0], eqn.params["permutation"])


def _concatenate(eqn: Any, ops: Sequence[DimState]) -> DimState:
    split = ops[0].split
    if any(op.split != split for op in ops) or eqn.params["dimension"] in split:
        raise _mixed_dim_error(eqn)
    return DimState(split=split)


def _slice(eqn: Any, ops: Sequence[DimState]) -> DimState:
    """Split dims stay whole."""
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if any(old[d] != new[d] for d in ops[0].split):
        raise _mixed_dim_error(eqn)
    return ops[0]


def _dot(eqn: Any, ops: Sequence[DimState]) -> DimState:
    """Outputs have the shared dims first, then the free ones of left and right."""
    sums, shared = eqn.params["dimension_numbers"]
    for op, summed, both in zip(ops, sums, shared):
        if op.split & {*summed, *both}:
            raise _mixed_dim_error(eqn)
    free = [
        (op, d)
        for op, var, summed, both in zip(ops, eqn.invars, sums, shared)
        for d in range(len(var.aval.shape))
        if d not in {*summed, *both}
    ]
    if all(op.split for op in ops):
        raise _mixed_dim_error(eqn)
    first = len(shared[0])
    return DimState(
        split=frozenset(first + i for i, (op, d) in enumerate(free) if d in op.split)
    )


def _reorder_dims(op: DimState, order: Sequence[int]) -> DimState:
    """Return what is known once the dims stand in this order, others gone."""
    return DimState(
        split=frozenset(i for i, d in enumerate(order) if d in op.split),
        constant=frozenset(i for i, d in enumerate(order) if d in op.constant),
    )


def _pad(eqn: Any, ops: Sequence[DimState]) -> DimState:
    if any(any(eqn.params["padding_config"][d]) for d in ops[0].split):
        raise _mixed_dim_error(eqn)
    return DimState(split=ops[0].split)


def _split(eqn: Any, ops: Sequence[DimState]) -> DimState:
    if eqn.params["axis"] in ops[0].split:
        raise _mixed_dim_error(eqn)
    return ops[0]


def _squeeze(eqn: Any, ops: Sequence[DimState]) -> DimState:
    gone = eqn.params["dimensions"]
    left = [d for d in range(len(eqn.invars[0].aval.shape)) if d not in gone]
    return _reorder_dims(ops[0], left)


def _mixed_dim_error(eqn: Any) -> MixedDimError:
    where = str(eqn.source_info.name_stack) or "the network"
    shapes = ", ".join(str(list(v.aval.shape)) for v in eqn.invars)
    return MixedDimError(f"{eqn.primitive.name} on {shapes} in {where}")


_DIM_RULES: Final[Mapping[str, DimRule]] = MappingProxyType(
    {
        "broadcast_in_dim": _broadcast,
        "concatenate": _concatenate,
        "dot_general": _dot,
        "pad": _pad,
        "reshape": _reshape,
        "slice": _slice,
        "split": _split,
        "squeeze": _squeeze,
        "transpose": _transpose,
        **dict.fromkeys(_REDUCTIONS, _reduce),
    }
)
