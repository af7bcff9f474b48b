"""XLA rewrites: what the CPU backend makes of operations before it assigns memory.

product, convolution   an operand whose dims are in another order is copied
maximum over windows   its gradient looks each maximum up: indices of every dim, made
                       at the program's start, and a sum into zeros
x + scatter(0, y)      scatter(x, y)
sums over devices      those with the same axes that do not wait for each other are one
loop with stacked results   zeros to write them into, made at the program's start
padding of less than none   rows are cut off
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from jaxdist.profile.flat_jaxpr import ArrayId, ArrayType, FlatOp, FlatProgram

EARLY_OP = "made early"
"""Arrays that depend on nothing, and that the scheduler makes first."""


def apply_xla_rewrites(flat: FlatProgram) -> None:
    """Rewrite a program's operations, in place."""
    copies: dict[ArrayId, ArrayId] = {}
    # Before any rewriting: how many operations read each array.
    reads = Counter(v for op in flat.ops for v in op.ins)
    # A copy of the list: rewriting appends operations that need none.
    for op in list(flat.ops):
        if op.name == "dot_general":
            _rewrite_dot(flat, op, copies)
        elif op.name == "conv_general_dilated":
            # The library reads batch, positions, channels and window, in, out.
            dims, rank = op.params["dimension_numbers"], len(op.outs[0].shape)
            if dims.lhs_spec != (0, rank - 1, *range(1, rank - 1)):
                op.ins[0] = _copy_transposed(flat, op.ins[0], copies)
            if dims.rhs_spec != (rank - 1, rank - 2, *range(rank - 2)):
                op.ins[1] = _copy_transposed(flat, op.ins[1], copies)
        elif op.name == "select_and_scatter_add":
            _rewrite_max_pool_gradient(flat, op)
        elif op.name == "scan":
            stacked = op.outs[scan_counts(op.params)[1] :]
            op.ins = [*op.ins, *((flat.append_op(EARLY_OP, [], x), 0) for x in stacked)]
        elif op.name in ("add", "add_any"):
            # Scatter into what a scatter into zeros is added to, if nothing else reads.
            for side in (0, 1):
                made = flat.ops[op.ins[side][0]]
                if made.name != "scatter-add" or reads[op.ins[side]] > 1:
                    continue
                zeros = flat.ops[made.ins[0][0]]
                constant = zeros.name == "broadcast_in_dim"
                if constant and flat.ops[zeros.ins[0][0]].name == "lit":
                    op.name, op.ins = "scatter-add", [op.ins[1 - side], *made.ins[1:]]
                    break
        elif op.name == "pad" and all(
            low <= 0 and high <= 0 and not interior
            for low, high, interior in op.params["padding_config"]
        ):
            op.name = "slice"  # the gradient of padding
    _merge_all_reduces(flat)


def _copy_transposed(
    flat: FlatProgram, value: ArrayId, copies: dict[ArrayId, ArrayId]
) -> ArrayId:
    if value not in copies:
        # One copy serves all operations that read the same operand.
        number = flat.append_op("transpose", [value], flat.array_type(value))
        copies[value] = number, 0
    return copies[value]


def _rewrite_dot(flat: FlatProgram, op: FlatOp, copies: dict[ArrayId, ArrayId]) -> None:
    """Copy operands whose dims are not batch, free, contracted (or swapped, right)."""
    # The library multiplies matrices in these orders without a copy.
    contracted, batch = op.params["dimension_numbers"]
    for side in (0, 1):
        shape = flat.array_type(op.ins[side]).shape
        bound = {*contracted[side], *batch[side]}
        free = [d for d in range(len(shape)) if d not in bound]
        # Dims of one row may stand anywhere.
        first, second, third, found = (
            [d for d in dims if shape[d] > 1]
            for dims in (batch[side], free, contracted[side], range(len(shape)))
        )
        orders = [first + second + third]
        if side or (len(free) <= 1 and len(contracted[side]) <= 1):
            orders.append(first + third + second)
        if found not in orders:
            op.ins[side] = _copy_transposed(flat, op.ins[side], copies)


def _rewrite_max_pool_gradient(flat: FlatProgram, op: FlatOp) -> None:
    """Expand the gradient of a maximum over windows into a lookup and a scatter."""
    source, operand = op.ins[:2]
    given, slope = flat.array_type(operand), flat.array_type(source)
    pads = op.params["padding"]
    shape = tuple(n + sum(pad) for n, pad in zip(given.shape, pads, strict=True))
    nbytes = prod(shape) * given.nbytes // prod(given.shape)
    wide = ArrayType(shape, given.dtype, nbytes)
    index = ArrayType(shape, "int32", 4 * prod(shape))
    place = ArrayType(slope.shape, "int32", 4 * prod(slope.shape))
    where = [(flat.append_op(EARLY_OP, [], index), 0) for _ in shape]
    zeros = flat.append_op(EARLY_OP, [], wide), 0
    padded = operand if wide == given else (flat.append_op("pad", [operand], wide), 0)
    # One reduction finds each window's maximum and its index along every dim.
    places = [place] * len(shape)
    most = flat.append_op("reduce_window", [padded, *where], slope, *places)
    found = [(most, k + 1) for k in range(len(shape))]
    joined = ArrayType((*slope.shape, len(shape)), "int32", len(shape) * place.nbytes)
    joint = flat.append_op("concatenate", found, joined), 0
    added = flat.append_op("scatter-add", [zeros, joint, source], wide), 0
    op.name, op.ins = "slice", [added]


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


def _merge_all_reduces(flat: FlatProgram) -> None:
    """Combine sums over devices that need not wait for each other into one each."""
    sums = [number for number, op in enumerate(flat.ops) if op.name == "psum"]
    needs, groups = ancestor_masks(flat, sums), list[_AllReduceGroup]()
    for place, number in enumerate(sums):
        kind = str(flat.ops[number].params.get("axes"))
        # A sum that needs one of a group waits for all of it, and for what they need.
        waits, left = needs[number], list(groups)
        while met := [g for g in left if waits & g.members]:
            left = [g for g in left if not waits & g.members]
            for group in met:
                waits |= group.members | group.needs
        free = (g for g in groups if g.kind == kind and not waits & g.members)
        joined = next(free, None)
        if joined is None:
            joined = _AllReduceGroup(kind=kind)
            groups.append(joined)
        joined.numbers.append(number)
        joined.members |= 1 << place
        joined.needs |= needs[number]

    moved: dict[ArrayId, ArrayId] = {}
    for group in groups:
        if len(group.numbers) > 1:
            old = [(n, k) for n in group.numbers for k in range(len(flat.ops[n].outs))]
            ins = [v for n in group.numbers for v in flat.ops[n].ins]
            made = flat.append_op("psum", ins, *(flat.array_type(v) for v in old))
            moved |= {value: (made, k) for k, value in enumerate(old)}
    # Readers of the old sums read the results of the combined one.
    for op in flat.ops if moved else ():
        op.ins = [moved.get(v, v) for v in op.ins]
    flat.outs = tuple(moved.get(v, v) for v in flat.outs)


def ancestor_masks(flat: FlatProgram, marked: Sequence[int]) -> list[int]:
    """Return which marked operations each operation depends on, itself among them.

    Args:
        flat: the program.
        marked: the operations in question.

    Returns:
        For each operation a number in which bit k stands for the k-th of the marked.
    """
    bits = {number: 1 << k for k, number in enumerate(marked)}
    found: list[int | None] = [None] * len(flat.ops)
    # A stack in place of recursion: programs are deeper than Python's.
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


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many constants a `lax.scan` has, and how many arrays it carries."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    # Since jax 0.11 there are trees in place of counts: constants, carry, scanned.
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))
