"""Kernels: which arrays of a program are written to memory, and what writes each.

XLA's CPU backend puts what is cheap to compute into every kernel that reads it, as
often as it is read. An array is written where it is returned, or where what reads it
cannot take it in: products, convolutions, collectives, loops, and sums of large arrays,
which are a library's and take in at most the square or product that they sum. What is
costly (a root, an exponential) and read twice is written once.

Source: xla/service/cpu/cpu_instruction_fusion.cc, buffer assignments of jaxlib 0.10.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from jaxdist.profile.flat import Flat, Value

GIVEN: Final = ("arg", "const", "lit")
"""What is there before the program starts."""
_VIEWS: Final = ("reshape", "squeeze", "expand_dims", "bitcast_convert_type")
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
dynamic_update_slice split
"""
_COSTLY: Final = frozenset(_COSTLY_NAMES.split())
ELEMENTWISE: Final = _COSTLY | frozenset(_CHEAP_NAMES.split())
"""Operations that make each element of the same elements of what they read."""
_MOVES: Final = frozenset(_MOVE_NAMES.split())
_SUMS: Final = ("reduce_sum", "reduce_max", "reduce_min")
_REDUCTIONS: Final = frozenset(
    {*_SUMS, "reduce_and", "reduce_or", "reduce_prod", "argmax", "argmin"}
)
_LOOPED: Final = ELEMENTWISE | _MOVES | _REDUCTIONS
_SUMMED: Final = ("mul", "square", "integer_pow", "convert_element_type")
_LIBRARY: Final = 4096
"""Bytes from which on a sum is a library's."""


@dataclass(kw_only=True)
class Kernels:
    """A program as kernels."""

    flat: Flat
    """The program; views are left out of what its operations read."""
    reads: dict[int, list[Value]]
    """What each kernel reads from memory, by the operation that it ends with."""
    outs: tuple[Value, ...]
    """What the program returns."""

    def is_loop(self, number: int) -> bool:
        """Whether a kernel is written by the compiler, element by element."""
        return self.flat.ops[number].name in _LOOPED


def viewed(flat: Flat, value: Value) -> Value:
    """Return the array that a view is of; what is no view is its own."""
    while True:
        op = flat.ops[value[0]]
        if not op.ins or not _is_view(flat, value[0]):
            return value
        value = op.ins[0]


def _is_view(flat: Flat, number: int) -> bool:
    op = flat.ops[number]
    if op.name in _VIEWS:
        return True
    made, read = op.outs[0], flat.array(op.ins[0])
    if op.name == "broadcast_in_dim":
        return made.nbytes == read.nbytes
    if op.name == "convert_element_type":
        return made.dtype == read.dtype
    # A product is as easily made the other way round.
    product = flat.ops[op.ins[0][0]].name == "dot_general"
    return op.name == "transpose" and product and len(made.shape) == 2


def without_views(flat: Flat) -> None:
    """Let every operation read arrays, not views of them, in place."""
    arrays = [[viewed(flat, v) for v in op.ins] for op in flat.ops]
    flat.outs = tuple(viewed(flat, v) for v in flat.outs)
    for op, ins in zip(flat.ops, arrays, strict=True):
        op.ins = ins
    for op in flat.ops:
        if op.name == "reduce_sum" and flat.ops[op.ins[0][0]].name == "neg":
            op.ins = list(flat.ops[op.ins[0][0]].ins)


def fused(flat: Flat) -> Kernels:
    """Find a program's kernels.

    Args:
        flat: rewritten, and without views.
    """
    return Kernels(flat=flat, reads=_Fusing(flat).run(), outs=flat.outs)


class _Fusing:
    def __init__(self, flat: Flat) -> None:
        self.flat, self.ops = flat, flat.ops
        self.users = users(flat)

    def run(self) -> dict[int, list[Value]]:
        left = deque(v[0] for v in self.flat.outs)
        reads: dict[int, list[Value]] = {}
        while left:
            number = left.popleft()
            if number not in reads:
                reads[number] = self._reads(number)
                left += (v[0] for v in reads[number])
        return reads

    def _reads(self, kernel: int) -> list[Value]:
        """Return what a kernel reads from memory."""
        if self.ops[kernel].name in GIVEN:
            return []
        found: dict[Value, None] = {}
        inside: set[int] = set()
        left = [(v, kernel) for v in reversed(self.ops[kernel].ins)]
        while left:
            value, user = left.pop()
            if value[0] in inside:
                continue
            if self._goes_in(value[0], user, kernel):
                inside.add(value[0])
                left += [(v, value[0]) for v in reversed(self.ops[value[0]].ins)]
            else:
                found[value] = None
        return list(found)

    def _goes_in(self, number: int, user: int, kernel: int) -> bool:
        """Whether what an operation makes is computed where it is used."""
        name = self.ops[number].name
        if name in ("lit", "iota"):
            return True
        loops = name in _LOOPED and self.ops[user].name in _LOOPED
        if not loops or name in _REDUCTIONS:
            return False
        if name in ("dynamic_update_slice", "concatenate"):
            return False
        once = len(self.users[number]) == 1
        if name in _COSTLY and not once:
            return False
        if self._is_library(kernel):
            return user == kernel and once and name in _SUMMED
        return True

    def _is_library(self, kernel: int) -> bool:
        op = self.ops[kernel]
        return (
            op.name in _SUMS
            and max(self.flat.array(v).nbytes for v in op.ins) >= _LIBRARY
        )


def users(flat: Flat) -> dict[int, set[int]]:
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
