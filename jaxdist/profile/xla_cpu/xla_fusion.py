"""Fusible: which operations XLA's CPU backend may compute inside a kernel.

Source: CanBeLoopFused of xla/service/cpu/cpu_instruction_fusion.cc, IsExpensive of
xla/service/instruction_fusion.cc.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from jaxdist.profile.flat_jaxpr import ArrayId, FlatProgram
from jaxdist.profile.xla_cpu.xla_rewrites import ancestor_masks

INPUT_OPS: Final = ("arg", "const", "lit")
"""What is there before the program starts."""
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
"""What makes one number of many."""
LOOP_FUSIBLE: Final = ELEMENTWISE | _DATA_MOVEMENT | REDUCTIONS
"""What the compiler writes element by element."""
REDUCTION_PROLOGUE: Final = ("mul", "square", "integer_pow", "convert_element_type")
"""What a library's sum takes in."""
_LIBRARY_MIN_ELEMENTS: Final = 4096
"""Numbers from which on a sum of them is a library's, in jaxlib 0.10."""


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
        user: who reads it.
        user_count: how many read it.
    """
    name = flat.ops[number].name
    if name in ("lit", "iota"):
        return True
    if (
        name not in LOOP_FUSIBLE
        or flat.ops[user].name not in LOOP_FUSIBLE
        or name in REDUCTIONS
    ):
        return False
    if name in ("dynamic_update_slice", "concatenate", "stack"):
        return False
    if is_library_reduction(flat, user):
        return user_count == 1 and name in REDUCTION_PROLOGUE
    return user_count == 1 or name not in EXPENSIVE


OpUsers = Mapping[int, set[int]]
"""Which operations read each one."""
_FREE_OPS: Final = ("broadcast_in_dim", "iota", "lit")
"""What is made anywhere for nothing."""


def find_unfusible_ops(
    flat: FlatProgram, readers: OpUsers, order: Sequence[int]
) -> frozenset[int]:
    """Return the operations that no kernel takes in.

    Args:
        flat: the program, without views.
        readers: of each operation.
        order: the operations, each behind those that it reads.
    """
    returned = {v[0] for v in flat.outs}
    several = (n for n in reversed(order) if len(readers[n]) + (n in returned) > 1)
    large = [n for n in several if _fusion_adds_reads(flat, n)]
    return frozenset(_FusionPaths(flat, readers, large).unfusible())


def _fusion_adds_reads(flat: FlatProgram, number: int) -> bool:
    """Whether several kernels would read more instead of what an operation makes."""
    op = flat.ops[number]
    if op.name not in LOOP_FUSIBLE or op.name in REDUCTIONS:
        return False
    made, every = op.outs[0], set(op.ins)
    arrays = [v for v in op.ins if flat.ops[v[0]].name not in _FREE_OPS]
    large = [v for v in arrays if _rank(flat, v) >= _nontrivial_rank(made.shape)]
    size = sum(prod(flat.array_type(v).shape) for v in every)
    return len(large) > 1 and size > prod(made.shape)


def _rank(flat: FlatProgram, value: ArrayId) -> int:
    return _nontrivial_rank(flat.array_type(value).shape)


def _nontrivial_rank(shape: tuple[int, ...]) -> int:
    return sum(n > 1 for n in shape)


class _FusionPaths:
    """Which operations reach their readers through kernels alone."""

    def __init__(
        self, flat: FlatProgram, readers: OpUsers, asked: Sequence[int]
    ) -> None:
        self.flat, self.readers, self.asked = flat, readers, asked
        self.bits = {number: 1 << k for k, number in enumerate(asked)}
        self.needs = ancestor_masks(flat, asked)
        self.found: set[int] = set()

    def unfusible(self) -> set[int]:
        """Return those that do not; who reads is asked before what it reads."""
        returned = {v[0] for v in self.flat.outs}
        for number in self.asked:
            into = all(self._can_fuse_path(number, one) for one in self.readers[number])
            if number in returned or not into:
                self.found.add(number)
        return self.found

    def _can_fuse_path(self, number: int, user: int) -> bool:
        """Whether a reader takes in all that leads from an operation to it."""
        left, seen = [user], {number}
        while left:
            one = left.pop()
            if one in seen:
                continue
            seen.add(one)
            between = {
                v[0] for v in self.flat.ops[one].ins if self._depends_on(number, v)
            }
            if not all(self._can_fuse_into(read, one) for read in between):
                return False
            left += between
        return True

    def _depends_on(self, number: int, value: ArrayId) -> bool:
        """Whether an array needs an operation."""
        return bool(self.needs[value[0]] & self.bits[number])

    def _can_fuse_into(self, number: int, user: int) -> bool:
        if number in self.found:
            return False
        return can_fuse(self.flat, number, user, len(self.readers[number]))
