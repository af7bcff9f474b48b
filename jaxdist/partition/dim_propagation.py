"""Dim propagation: what an operation does to the dims of arrays that are cut.

An operation on blocks gives the blocks of the operation on whole arrays if it treats
each place of the cut dims by itself. Rules are by primitive of jax; one that is not
here is taken to mix places.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

_ELEMENTWISE: Final = """
abs acos add and asin atan atan2 cbrt ceil clamp convert_element_type copy cos cosh div
eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p
logistic lt max min mul ne neg not or pow reduce_precision rem round rsqrt select_n sign
sin sinh sqrt square stop_gradient sub tan tanh xor
"""
_REDUCTIONS: Final = """
reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin
"""


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
        MixedDimError: it mixes places of a dim that is cut, or it has no rule.
    """
    if rule := _DIM_RULES.get(eqn.primitive.name):
        return rule(eqn, operands)
    if any(op.split for op in operands):
        raise _mixed_dim_error(eqn)
    return DimState()


def _elementwise(eqn: Any, ops: Sequence[DimState]) -> DimState:
    """Operands that are not split must be constant along the dims that are."""
    # The output is split where any operand is; scalars follow.
    split = frozenset[int]().union(*(op.split for op in ops))
    arrays = [(op, v) for op, v in zip(ops, eqn.invars) if v.aval.shape]
    for op, var in arrays:
        # A whole array beside a block of one: rows of the block would meet other rows.
        wrong = split - op.split - op.constant
        if any(var.aval.shape[dim] > 1 for dim in wrong):
            raise _mixed_dim_error(eqn)
    every = frozenset(range(len(eqn.outvars[0].aval.shape)))
    same = every.intersection(*(op.constant for op, _ in arrays))
    return DimState(split=split, constant=same - split)


def _broadcast(eqn: Any, ops: Sequence[DimState]) -> DimState:
    """New dims, and those that had one place, are constant."""
    places, shape = eqn.params["broadcast_dimensions"], eqn.params["shape"]
    old = eqn.invars[0].aval.shape
    # Dims that keep their size; a split dim of one row may not be broadcast, as the row
    # would be another on each device.
    kept = {p: d for d, p in enumerate(places) if old[d] == shape[p]}
    if any(places[d] not in kept for d in ops[0].split):
        raise _mixed_dim_error(eqn)
    split = frozenset(p for p, d in kept.items() if d in ops[0].split)
    constant = {p for p, d in kept.items() if d in ops[0].constant}
    constant |= set(range(len(shape))) - kept.keys()
    return DimState(split=split, constant=frozenset(constant))


def _reduce(eqn: Any, ops: Sequence[DimState]) -> DimState:
    if ops[0].split & set(eqn.params["axes"]):
        raise _mixed_dim_error(eqn)
    return _remove_dims(eqn, ops[0], eqn.params["axes"])


def _reshape(eqn: Any, ops: Sequence[DimState]) -> DimState:
    """Split dims keep their size and what stands before them."""
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    # A dim survives a reshape if the product of the sizes before it is the same: then
    # its places have the same stride in both shapes.
    starts = {(math.prod(new[:d]), size): d for d, size in enumerate(new) if size > 1}
    found = [starts.get((math.prod(old[:d]), old[d])) for d in sorted(ops[0].split)]
    if None in found:
        raise _mixed_dim_error(eqn)
    # Nothing varies along a dim of one place.
    ones = frozenset(d for d, size in enumerate(new) if size == 1)
    return DimState(split=frozenset(d for d in found if d is not None), constant=ones)


def _transpose(eqn: Any, ops: Sequence[DimState]) -> DimState:
    return _reorder_dims(ops[0], eqn.params["permutation"])


def _concatenate(eqn: Any, ops: Sequence[DimState]) -> DimState:
    split = ops[0].split
    # Joined along a split dim, blocks of several arrays would alternate.
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
    """Outputs have the batch dims first, then the free ones of left and right."""
    contracted, batch = eqn.params["dimension_numbers"]
    split, place = [], len(batch[0])
    for op, var, summed, both in zip(ops, eqn.invars, contracted, batch):
        if op.split & {*summed, *both}:
            raise _mixed_dim_error(eqn)
        for dim in range(len(var.aval.shape)):
            if dim not in {*summed, *both}:
                split += [place] * (dim in op.split)
                place += 1
    # Blocks of rows times blocks of columns would be the blocks of a diagonal alone.
    if all(op.split for op in ops):
        raise _mixed_dim_error(eqn)
    return DimState(split=frozenset(split))


def _remove_dims(eqn: Any, op: DimState, gone: Sequence[int]) -> DimState:
    left = [d for d in range(len(eqn.invars[0].aval.shape)) if d not in gone]
    return _reorder_dims(op, left)


def _reorder_dims(op: DimState, order: Sequence[int]) -> DimState:
    """Return the state of an array that has these dims, in this order."""
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
    return _remove_dims(eqn, ops[0], eqn.params["dimensions"])


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
        **dict.fromkeys(_REDUCTIONS.split(), _reduce),
        **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    }
)
