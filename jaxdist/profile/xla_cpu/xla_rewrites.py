"""Rewriting: what XLA's CPU backend makes of operations before it lays them in memory.

product, convolution   an operand whose dims are in another order is copied
maximum over windows   its gradient looks each maximum up: indices of every dim, made
                       at the program's start, and a sum into zeros
x + scatter(0, y)      scatter(x, y)
sums over devices      those with the same axes that do not wait for each other are one
loop with stacked results   zeros to write them into, made at the program's start
padding of less than none   rows are cut off
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from jaxdist.profile.flat_jaxpr import ArrayId, ArrayType, FlatOp, FlatProgram

EARLY_OP = "made early"
"""Arrays that nothing is needed for, and that the scheduler makes first."""


def apply_xla_rewrites(flat: FlatProgram) -> None:
    """Rewrite a program's operations, in place."""
    copies: dict[ArrayId, ArrayId] = {}
    reads = Counter(v for op in flat.ops for v in op.ins)
    for op in list(flat.ops):
        if op.name == "dot_general":
            _rewrite_dot(flat, op, copies)
        elif op.name == "conv_general_dilated":
            _rewrite_conv(flat, op, copies)
        elif op.name == "select_and_scatter_add":
            _rewrite_max_pool_gradient(flat, op)
        elif op.name == "scan":
            stacked = op.outs[op.params["num_carry"] :]
            op.ins = [*op.ins, *((flat.append_op(EARLY_OP, [], x), 0) for x in stacked)]
        elif op.name in ("add", "add_any"):
            _fuse_scatter_add(flat, op, reads)
        elif op.name == "pad" and _is_crop(op):
            op.name = "slice"
    _merge_all_reduces(flat)


def _copy_transposed(
    flat: FlatProgram, value: ArrayId, copies: dict[ArrayId, ArrayId]
) -> ArrayId:
    if value not in copies:
        copies[value] = (
            flat.append_op("transpose", [value], flat.array_type(value)),
            0,
        )
    return copies[value]


def _rewrite_dot(flat: FlatProgram, op: FlatOp, copies: dict[ArrayId, ArrayId]) -> None:
    """Copy operands whose dims are not batch, free, contracted (or swapped, right)."""
    contracted, batch = op.params["dimension_numbers"]
    for side in (0, 1):
        shape = flat.array_type(op.ins[side]).shape
        free = [
            d for d in range(len(shape)) if d not in {*contracted[side], *batch[side]}
        ]
        parts = [
            _nontrivial_dims(x, shape) for x in (batch[side], free, contracted[side])
        ]
        first, second, third = parts
        orders = [first + second + third]
        if side or (len(free) <= 1 and len(contracted[side]) <= 1):
            orders.append(first + third + second)
        if _nontrivial_dims(range(len(shape)), shape) not in orders:
            op.ins[side] = _copy_transposed(flat, op.ins[side], copies)


def _nontrivial_dims(dims: Any, shape: tuple[int, ...]) -> list[int]:
    return [d for d in dims if shape[d] > 1]


def _rewrite_conv(
    flat: FlatProgram, op: FlatOp, copies: dict[ArrayId, ArrayId]
) -> None:
    """Copy operands that are not batch, positions, channels and window, in, out."""
    dims, rank = op.params["dimension_numbers"], len(op.outs[0].shape)
    if dims.lhs_spec != (0, rank - 1, *range(1, rank - 1)):
        op.ins[0] = _copy_transposed(flat, op.ins[0], copies)
    if dims.rhs_spec != (rank - 1, rank - 2, *range(rank - 2)):
        op.ins[1] = _copy_transposed(flat, op.ins[1], copies)


def _rewrite_max_pool_gradient(flat: FlatProgram, op: FlatOp) -> None:
    """Spell out the gradient of a maximum over windows."""
    source, operand = op.ins[:2]
    given, slope = flat.array_type(operand), flat.array_type(source)
    pads = op.params["padding"]
    shape = tuple(n + sum(pad) for n, pad in zip(given.shape, pads, strict=True))
    wide = ArrayType(
        shape, given.dtype, prod(shape) * given.nbytes // prod(given.shape)
    )
    index = ArrayType(shape, "int32", 4 * prod(shape))
    place = ArrayType(slope.shape, "int32", 4 * prod(slope.shape))
    where = [(flat.append_op(EARLY_OP, [], index), 0) for _ in shape]
    zeros = flat.append_op(EARLY_OP, [], wide), 0
    padded = operand if wide == given else (flat.append_op("pad", [operand], wide), 0)
    places = [place] * len(shape)
    most = flat.append_op("reduce_window", [padded, *where], slope, *places)
    found = [(most, k + 1) for k in range(len(shape))]
    joined = ArrayType((*slope.shape, len(shape)), "int32", len(shape) * place.nbytes)
    joint = flat.append_op("concatenate", found, joined), 0
    op.name, op.ins = (
        "slice",
        [(flat.append_op("scatter-add", [zeros, joint, source], wide), 0)],
    )


def _is_crop(op: FlatOp) -> bool:
    """Whether padding takes rows away and adds none, as a gradient of padding does."""
    config = op.params["padding_config"]
    return all(low <= 0 and high <= 0 and not among for low, high, among in config)


def _fuse_scatter_add(flat: FlatProgram, op: FlatOp, reads: Counter[ArrayId]) -> None:
    """Scatter into what a scatter into zeros is added to, and nothing else reads."""
    for side in (0, 1):
        made = flat.ops[op.ins[side][0]]
        if made.name != "scatter-add" or reads[op.ins[side]] > 1:
            continue
        zeros = flat.ops[made.ins[0][0]]
        if zeros.name == "broadcast_in_dim" and flat.ops[zeros.ins[0][0]].name == "lit":
            op.name, op.ins = "scatter-add", [op.ins[1 - side], *made.ins[1:]]
            return


def _merge_all_reduces(flat: FlatProgram) -> None:
    """Make one sum over devices of those that need not wait for each other."""
    sums = [number for number, op in enumerate(flat.ops) if op.name == "psum"]
    needs, groups = ancestor_masks(flat, sums), list[_AllReduceGroup]()
    for place, number in enumerate(sums):
        kind = str(flat.ops[number].params.get("axes"))
        waits = _dependency_closure(needs[number], groups)
        free = (g for g in groups if g.kind == kind and not waits & g.members)
        group = next(free, None)
        if group is None:
            group = _AllReduceGroup(kind=kind)
            groups.append(group)
        group.numbers.append(number)
        group.members |= 1 << place
        group.needs |= needs[number]
    moved: dict[ArrayId, ArrayId] = {}
    for group in groups:
        if len(group.numbers) > 1:
            moved |= _merge_ops(flat, group.numbers)
    for op in flat.ops if moved else ():
        op.ins = [moved.get(v, v) for v in op.ins]
    flat.outs = tuple(moved.get(v, v) for v in flat.outs)


@dataclass(kw_only=True)
class _AllReduceGroup:
    """Sums over devices that are done as one."""

    kind: str
    """Over which axes."""
    numbers: list[int] = field(default_factory=list)
    """Their operations."""
    members: int = 0
    """A bit for each of them."""
    needs: int = 0
    """Sums that one of them needs, a bit each."""


def _dependency_closure(needs: int, groups: Sequence[_AllReduceGroup]) -> int:
    """Return the sums that are needed where those of a group are done as one."""
    left = list(groups)
    while met := [g for g in left if needs & g.members]:
        left = [g for g in left if not needs & g.members]
        for group in met:
            needs |= group.members | group.needs
    return needs


def _merge_ops(flat: FlatProgram, members: list[int]) -> dict[ArrayId, ArrayId]:
    """Add one operation for several and return where their results are now."""
    old = [(n, k) for n in members for k in range(len(flat.ops[n].outs))]
    ins = [v for n in members for v in flat.ops[n].ins]
    number = flat.append_op("psum", ins, *(flat.array_type(v) for v in old))
    return {value: (number, k) for k, value in enumerate(old)}


def ancestor_masks(flat: FlatProgram, marked: Sequence[int]) -> list[int]:
    """Return which of some operations each one needs, itself among them.

    Args:
        flat: the program.
        marked: operations that are asked about.

    Returns:
        For each operation a number in which bit k stands for the k-th of the marked.
    """
    bits = {number: 1 << k for k, number in enumerate(marked)}
    found: list[int | None] = [None] * len(flat.ops)
    for root in range(len(flat.ops)):
        left = [root]
        while left:
            one = left[-1]
            ins = {v[0] for v in flat.ops[one].ins}
            open_ = [number for number in ins if found[number] is None]
            if found[one] is not None or not open_:
                left.pop()
                needs = bits.get(one, 0)
                for number in ins:
                    needs |= found[number] or 0
                found[one] = needs
            else:
                left += open_
    return [needs or 0 for needs in found]
