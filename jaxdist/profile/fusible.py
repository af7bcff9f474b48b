"""Fusible: which operations XLA's CPU backend may compute inside a kernel.

Source: CanBeLoopFused of xla/service/cpu/cpu_instruction_fusion.cc, IsExpensive of
xla/service/instruction_fusion.cc.
"""

from math import prod
from typing import Final

from jaxdist.profile.flat import Flat

GIVEN: Final = ("arg", "const", "lit")
"""What is there before the program starts."""
_COSTLY_NAMES: Final = """
exp exp2 log log1p expm1 tanh logistic rsqrt sqrt cbrt pow div erf erf_inv sin cos rem
"""
_CHEAP_NAMES: Final = """
add sub mul max min neg integer_pow square abs sign floor ceil round select_n eq ne
lt le gt ge and or xor not convert_element_type is_finite clamp add_any shift_left
shift_right_logical shift_right_arithmetic population_count nextafter copy copy_p real
imag atan2 reduce_precision
"""
_MOVE_NAMES: Final = """
broadcast_in_dim slice transpose pad concatenate rev dynamic_slice gather
dynamic_update_slice split stack unstack
"""
COSTLY: Final = frozenset(_COSTLY_NAMES.split())
"""What is written once rather than computed twice."""
ELEMENTWISE: Final = COSTLY | frozenset(_CHEAP_NAMES.split())
"""Operations that make each element of the same elements of what they read."""
_MOVES: Final = frozenset(_MOVE_NAMES.split())
SUMS: Final = ("reduce_sum", "reduce_max", "reduce_min")
"""Reductions that a library makes where they are large."""
REDUCTIONS: Final = frozenset(
    {*SUMS, "reduce_and", "reduce_or", "reduce_prod", "argmax", "argmin"}
)
"""What makes one number of many."""
LOOPED: Final = ELEMENTWISE | _MOVES | REDUCTIONS
"""What the compiler writes element by element."""
SUMMED: Final = ("mul", "square", "integer_pow", "convert_element_type")
"""What a library's sum takes in."""
_LIBRARY: Final = 4096
"""Numbers from which on a sum of them is a library's, in jaxlib 0.10."""


def is_library(flat: Flat, number: int) -> bool:
    """Whether an operation is a sum that a library makes."""
    op = flat.ops[number]
    if op.name not in SUMS:
        return False
    return max(prod(flat.array(v).shape) for v in op.ins) >= _LIBRARY


def may_join(flat: Flat, number: int, user: int, times: int) -> bool:
    """Whether what an operation makes may be computed where another one reads it.

    Args:
        flat: the program.
        number: the operation.
        user: who reads it.
        times: how many read it.
    """
    name = flat.ops[number].name
    if name in ("lit", "iota"):
        return True
    if name not in LOOPED or flat.ops[user].name not in LOOPED or name in REDUCTIONS:
        return False
    if name in ("dynamic_update_slice", "concatenate", "stack"):
        return False
    if is_library(flat, user):
        return times == 1 and name in SUMMED
    return times == 1 or name not in COSTLY
