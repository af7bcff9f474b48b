"""Fusion groups: which arrays of a program are written to memory, by which kernel.

XLA's CPU backend fuses what is cheap to compute into every kernel that reads it, as
often as it is read. An array is written where it is returned, or where what reads it
cannot take it in: products, convolutions, collectives, loops, and sums of large arrays,
which are a library's and take in at most the square or product that they sum. What is
costly (a root, an exponential) and read twice is written once.

Source: CanBeLoopFused of xla/service/cpu/cpu_instruction_fusion.cc, IsExpensive of
xla/service/instruction_fusion.cc, buffer assignments of jaxlib 0.10.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from jaxdist.profile.flat_jaxpr import ArrayId, FlatProgram
from jaxdist.profile.xla_cpu.xla_rewrites import ancestor_masks

INPUT_OPS: Final = ("arg", "const", "lit")
"""Arrays that exist before the program starts."""
_EXPENSIVE_NAMES: Final = """
exp exp2 log log1p expm1 tanh logistic rsqrt sqrt cbrt pow div erf erf_inv sin cos rem
"""
_CHEAP_NAMES: Final = """
add sub mul max min neg integer_pow square abs sign floor ceil round select_n eq ne
lt le gt ge and or xor not convert_element_type is_finite clamp add_any shift_left
shift_right_logical shift_right_arithmetic population_count nextafter copy copy_p real
imag atan2 reduce_precision
"""
_DATA_MOVEMENT_NAMES: Final = """
broadcast_in_dim slice transpose pad concatenate rev dynamic_slice gather
dynamic_update_slice split stack unstack
"""
EXPENSIVE: Final = frozenset(_EXPENSIVE_NAMES.split())
"""What is written once rather than computed twice."""
ELEMENTWISE: Final = EXPENSIVE | frozenset(_CHEAP_NAMES.split())
"""Operations that make each element of the same elements of what they read."""
_DATA_MOVEMENT: Final = frozenset(_DATA_MOVEMENT_NAMES.split())
LIBRARY_REDUCTIONS: Final = ("reduce_sum", "reduce_max", "reduce_min")
"""Reductions that a library makes where they are large."""
REDUCTIONS: Final = frozenset(
    {*LIBRARY_REDUCTIONS, "reduce_and", "reduce_or", "reduce_prod", "argmax", "argmin"}
)
"""Reductions of any kind; none is computed where it is read."""
LOOP_FUSIBLE: Final = ELEMENTWISE | _DATA_MOVEMENT | REDUCTIONS
"""What the compiler writes element by element."""
REDUCTION_PROLOGUE: Final = ("mul", "square", "integer_pow", "convert_element_type")
"""What is fused into a library's sum."""
_LIBRARY_MIN_ELEMENTS: Final = 4096
"""Numbers from which on a sum of them is a library's, in jaxlib 0.10."""

_VIEW_OPS: Final = ("reshape", "squeeze", "expand_dims", "bitcast_convert_type")
_SAME_SIZE_VIEW_NAMES: Final = (
    "broadcast_in_dim slice dynamic_slice concatenate stack unstack"
)
_SAME_SIZE_VIEW_OPS: Final = frozenset(_SAME_SIZE_VIEW_NAMES.split())
"""Views where the result has as many bytes as the first operand."""
_NO_DUPLICATION: Final = ("pad", "concatenate", "stack", "dynamic_update_slice")
"""Never computed twice in a kernel: each time is a branch."""
_MAX_DUPLICATION: Final = 15
"""How often a cheap operation is computed in one kernel at most."""
_FREE_OPS: Final = ("broadcast_in_dim", "iota", "lit")
"""Arrays that any kernel makes for nothing."""
_ROOT: Final = -1


def resolve_view(flat: FlatProgram, value: ArrayId) -> ArrayId:
    """Return the array that a view is of; what is no view is its own."""
    while True:
        op = flat.ops[value[0]]
        if not op.ins:
            return value
        made, read = op.outs[0], flat.array_type(op.ins[0])
        is_view = (
            op.name in _VIEW_OPS
            or (op.name in _SAME_SIZE_VIEW_OPS and made.nbytes == read.nbytes)
            or (op.name == "convert_element_type" and made.dtype == read.dtype)
            # The library makes a product transposed as easily.
            or (
                op.name == "transpose"
                and flat.ops[op.ins[0][0]].name == "dot_general"
                and len(made.shape) == 2
            )
        )
        if not is_view:
            return value
        value = op.ins[0]


def remove_views(flat: FlatProgram) -> None:
    """Let every operation read arrays, not views of them, in place."""
    # All are resolved before any is replaced: views of views have one array.
    arrays = [[resolve_view(flat, v) for v in op.ins] for op in flat.ops]
    flat.outs = tuple(resolve_view(flat, v) for v in flat.outs)
    for op, ins in zip(flat.ops, arrays, strict=True):
        op.ins = ins
    for op in flat.ops:
        # The sign is taken after the sum, of one number in place of many.
        if op.name == "reduce_sum" and flat.ops[op.ins[0][0]].name == "neg":
            op.ins = list(flat.ops[op.ins[0][0]].ins)


def find_fusion_groups(flat: FlatProgram) -> dict[int, list[ArrayId]]:
    """Find a program's kernels.

    Args:
        flat: rewritten, and without views.

    Returns:
        The arrays that each kernel reads from memory, by the operation that it ends
        with; what the program starts with is among them and reads nothing.
    """
    users = op_users(flat)
    # Breadth first, as XLA orders the instructions before it fuses them.
    missing = {n: len({v[0] for v in flat.ops[n].ins}) for n in users}
    ready = deque(sorted(n for n, count in missing.items() if not count))
    order: list[int] = []
    while ready:
        order.append(ready.popleft())
        for user in sorted(users[order[-1]]):
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    place = {number: k for k, number in enumerate(order)}
    # Decided once for the whole program, not by kernel.
    unfusible = _find_unfusible_ops(flat, users, order)

    # From the results back: what no kernel reads from memory is never written.
    left = deque(v[0] for v in flat.outs)
    reads: dict[int, list[ArrayId]] = {}
    while left:
        kernel = left.popleft()
        if kernel in reads:
            continue
        reads[kernel] = []
        if flat.ops[kernel].name in INPUT_OPS:
            continue
        # Users are decided before what they read: the last in order first.
        inside = _DuplicationCount(flat, kernel)
        asked = dict.fromkeys(flat.ops[kernel].ins, kernel)
        while asked:
            value = max(asked, key=lambda v: (place[v[0]], -v[1]))
            number, user = value[0], asked.pop(value)
            count = len(users[number])
            # A library's sum takes in its operand alone, not what that reads.
            fused = number not in unfusible and (
                user == kernel or not is_library_reduction(flat, kernel)
            )
            fused = fused and can_fuse(flat, number, user, count)
            fused = fused and inside.allows(number, count)
            if fused:
                inside.add(number)
                for each in flat.ops[number].ins:
                    asked.setdefault(each, number)
            else:
                reads[kernel].append(value)
        left += (v[0] for v in reads[kernel])
    return reads


class _DuplicationCount:
    """How often each operation is computed in a kernel.

    Once for each place that it is asked for: elementwise operations ask for the place
    that they are asked for themselves, what moves elements for another one.
    """

    def __init__(self, flat: FlatProgram, kernel: int) -> None:
        self.flat, self.is_empty = flat, True
        self.places: dict[int, set[int]] = {kernel: {_ROOT}}
        self.count = {_ROOT: 1}
        self.add(kernel)
        # With its own end alone a kernel has taken nothing in.
        self.is_empty = True

    def allows(self, number: int, user_count: int) -> bool:
        """Tell whether an operation may be computed as often as it would be."""
        name = self.flat.ops[number].name
        if self.is_empty or name in _FREE_OPS:
            return True
        often = sum(self.count[one] for one in self.places[number])
        return often <= _MAX_DUPLICATION and (
            name not in _NO_DUPLICATION or often == user_count == 1
        )

    def add(self, number: int) -> None:
        """Compute an operation in the kernel."""
        op, self.is_empty = self.flat.ops[number], False
        self.count[number] = sum(self.count[one] for one in self.places[number])
        for value in op.ins:
            # Elementwise: the operand is asked for at the same places. A broadcast or
            # slice asks for other places than its own, once more.
            alike = self.flat.array_type(value).shape == op.outs[0].shape
            same = alike or op.name == "transpose"
            asked = self.places[number] if same else {number}
            self.places.setdefault(value[0], set()).update(asked)


def op_users(flat: FlatProgram) -> dict[int, set[int]]:
    """Return which operations read each one that a program's results need."""
    found: dict[int, set[int]] = {}
    left = [v[0] for v in flat.outs]
    while left:
        number = left.pop()
        if number in found:
            continue
        found[number] = set()
        left += [v[0] for v in flat.ops[number].ins]
    for number in found:
        for v in flat.ops[number].ins:
            found[v[0]].add(number)
    return found


def is_library_reduction(flat: FlatProgram, number: int) -> bool:
    """Whether an operation is a sum that a library makes."""
    op = flat.ops[number]
    if op.name not in LIBRARY_REDUCTIONS:
        return False
    return max(prod(flat.array_type(v).shape) for v in op.ins) >= _LIBRARY_MIN_ELEMENTS


def can_fuse(flat: FlatProgram, number: int, user: int, user_count: int) -> bool:
    """Whether what an operation makes may be computed where another one reads it.

    Args:
        flat: the program.
        number: the operation.
        user: the operation that reads it.
        user_count: how many operations read it.
    """
    name = flat.ops[number].name
    if name in ("lit", "iota"):
        return True
    if not {name, flat.ops[user].name} <= LOOP_FUSIBLE or name in REDUCTIONS:
        return False
    if name in ("dynamic_update_slice", "concatenate", "stack"):
        return False
    # The library reads its operand from memory, but for a simple prologue.
    if is_library_reduction(flat, user):
        return user_count == 1 and name in REDUCTION_PROLOGUE
    # Cheap operations are computed again for each user.
    return user_count == 1 or name not in EXPENSIVE


def _find_unfusible_ops(
    flat: FlatProgram, users: Mapping[int, set[int]], order: Sequence[int]
) -> set[int]:
    """Return the operations that no kernel takes in, though each alone would.

    Args:
        flat: the program, without views.
        users: the operations that read each one.
        order: the operations, each behind those that it reads.
    """
    # Several kernels would read two large arrays each in place of one.
    returned = {v[0] for v in flat.outs}
    asked = []
    for number in reversed(order):
        op = flat.ops[number]
        several = len(users[number]) + (number in returned) > 1
        if not several or op.name not in LOOP_FUSIBLE or op.name in REDUCTIONS:
            continue
        made = op.outs[0].shape
        shapes = {v: flat.array_type(v).shape for v in op.ins}
        large = [
            v
            for v in op.ins
            if flat.ops[v[0]].name not in _FREE_OPS
            and sum(n > 1 for n in shapes[v]) >= sum(n > 1 for n in made)
        ]
        if len(large) > 1 and sum(map(prod, shapes.values())) > prod(made):
            asked.append(number)

    # It is written all the same if a path from it to a user leads through a kernel's
    # end: that kernel would be computed twice. Users are decided before what they read.
    needs = ancestor_masks(flat, asked)
    found: set[int] = set()
    for k, number in enumerate(asked):
        left, seen, fusible = list(users[number]), {number}, number not in returned
        while left and fusible:
            user = left.pop()
            if user not in seen:
                seen.add(user)
                ins = {v[0] for v in flat.ops[user].ins if needs[v[0]] >> k & 1}
                fusible = not ins & found and all(
                    can_fuse(flat, read, user, len(users[read])) for read in ins
                )
                left += ins
        if not fusible:
            found.add(number)
    return found
