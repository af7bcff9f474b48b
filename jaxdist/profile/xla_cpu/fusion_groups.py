"""Kernels: which arrays of a program are written to memory, and what writes each.

XLA's CPU backend puts what is cheap to compute into every kernel that reads it, as
often as it is read. An array is written where it is returned, or where what reads it
cannot take it in: products, convolutions, collectives, loops, and sums of large arrays,
which are a library's and take in at most the square or product that they sum. What is
costly (a root, an exponential) and read twice is written once.

Source: xla/service/cpu/cpu_instruction_fusion.cc, buffer assignments of jaxlib 0.10.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jaxdist.profile.flat_jaxpr import ArrayId, FlatProgram
from jaxdist.profile.xla_cpu.xla_fusion import (
    INPUT_OPS,
    LOOP_FUSIBLE,
    can_fuse,
    find_unfusible_ops,
    is_library_reduction,
)

_VIEW_OPS: Final = ("reshape", "squeeze", "expand_dims", "bitcast_convert_type")
_SAME_SIZE_VIEW_NAMES: Final = (
    "broadcast_in_dim slice dynamic_slice concatenate stack unstack"
)
_SAME_SIZE_VIEW_OPS: Final = frozenset(_SAME_SIZE_VIEW_NAMES.split())
"""What makes nothing where it makes as many bytes as it reads first."""
_NO_DUPLICATION: Final = ("pad", "concatenate", "stack", "dynamic_update_slice")
"""What is not computed twice in a kernel: each time is a branch."""
_MAX_DUPLICATION: Final = 15
"""How often what is cheap is computed in one kernel at most."""
_ROOT: Final = -1


@dataclass(kw_only=True)
class FusionGroups:
    """A program as kernels."""

    flat: FlatProgram
    """The program; views are left out of what its operations read."""
    reads: dict[int, list[ArrayId]]
    """What each kernel reads from memory, by the operation that it ends with."""
    outs: tuple[ArrayId, ...]
    """What the program returns."""

    def is_loop_fusion(self, number: int) -> bool:
        """Whether a kernel is written by the compiler, element by element."""
        return self.flat.ops[number].name in LOOP_FUSIBLE


def resolve_view(flat: FlatProgram, value: ArrayId) -> ArrayId:
    """Return the array that a view is of; what is no view is its own."""
    while True:
        op = flat.ops[value[0]]
        if not op.ins or not _is_view(flat, value[0]):
            return value
        value = op.ins[0]


def _is_view(flat: FlatProgram, number: int) -> bool:
    op = flat.ops[number]
    if op.name in _VIEW_OPS:
        return True
    made, read = op.outs[0], flat.array_type(op.ins[0])
    if op.name in _SAME_SIZE_VIEW_OPS:
        return made.nbytes == read.nbytes
    if op.name == "convert_element_type":
        return made.dtype == read.dtype
    # A product is as easily made the other way round.
    product = flat.ops[op.ins[0][0]].name == "dot_general"
    return op.name == "transpose" and product and len(made.shape) == 2


def remove_views(flat: FlatProgram) -> None:
    """Let every operation read arrays, not views of them, in place."""
    arrays = [[resolve_view(flat, v) for v in op.ins] for op in flat.ops]
    flat.outs = tuple(resolve_view(flat, v) for v in flat.outs)
    for op, ins in zip(flat.ops, arrays, strict=True):
        op.ins = ins
    for op in flat.ops:
        if op.name == "reduce_sum" and flat.ops[op.ins[0][0]].name == "neg":
            op.ins = list(flat.ops[op.ins[0][0]].ins)


def find_fusion_groups(flat: FlatProgram) -> FusionGroups:
    """Find a program's kernels.

    Args:
        flat: rewritten, and without views.
    """
    return FusionGroups(flat=flat, reads=_Fuser(flat).run(), outs=flat.outs)


class _Fuser:
    def __init__(self, flat: FlatProgram) -> None:
        self.flat, self.ops = flat, flat.ops
        self.users = op_users(flat)
        order = _topological_order(flat, self.users)
        self.place = {number: k for k, number in enumerate(order)}
        self.shared = find_unfusible_ops(flat, self.users, order)

    def run(self) -> dict[int, list[ArrayId]]:
        left = deque(v[0] for v in self.flat.outs)
        reads: dict[int, list[ArrayId]] = {}
        while left:
            number = left.popleft()
            if number not in reads:
                reads[number] = self._reads(number)
                left += (v[0] for v in reads[number])
        return reads

    def _reads(self, kernel: int) -> list[ArrayId]:
        """Return what a kernel reads from memory: who reads is asked before it."""
        if self.ops[kernel].name in INPUT_OPS:
            return []
        made = _DuplicationCount(self.flat, kernel)
        found: dict[ArrayId, None] = {}
        left = dict.fromkeys(self.ops[kernel].ins, kernel)
        while left:
            value = max(left, key=lambda v: (self.place[v[0]], -v[1]))
            if not self._is_fused(value[0], left.pop(value), kernel, made):
                found[value] = None
                continue
            made.add(value[0])
            for one in self.ops[value[0]].ins:
                left.setdefault(one, value[0])
        return list(found)

    def _is_fused(
        self, number: int, user: int, kernel: int, made: "_DuplicationCount"
    ) -> bool:
        """Whether what an operation makes is computed where it is used."""
        if number in self.shared:
            return False
        if is_library_reduction(self.flat, kernel) and user != kernel:
            return False
        times = len(self.users[number])
        if not can_fuse(self.flat, number, user, times):
            return False
        name = self.ops[number].name
        if made.is_empty or name in ("lit", "iota", "broadcast_in_dim"):
            return True
        often = made.times(number)
        return often <= _MAX_DUPLICATION and (
            name not in _NO_DUPLICATION or often == times == 1
        )


class _DuplicationCount:
    """How often each operation is computed in a kernel.

    Once for each place that it is asked for: elementwise operations ask for the place
    that they are asked for themselves, what moves elements for another one.
    """

    def __init__(self, flat: FlatProgram, kernel: int) -> None:
        self.flat, self.is_empty = flat, True
        self.places: dict[int, set[int]] = {kernel: {_ROOT}}
        self.count = {_ROOT: 1}
        self._ask(kernel)

    def times(self, number: int) -> int:
        """Return how often an operation would be computed."""
        return sum(self.count[one] for one in self.places[number])

    def add(self, number: int) -> None:
        """Take an operation in."""
        self.is_empty = False
        self._ask(number)

    def _ask(self, number: int) -> None:
        op = self.flat.ops[number]
        self.count[number] = self.times(number)
        for value in op.ins:
            alike = self.flat.array_type(value).shape == op.outs[0].shape
            same = alike or op.name == "transpose"
            asked = self.places[number] if same else {number}
            self.places.setdefault(value[0], set()).update(asked)


def _topological_order(flat: FlatProgram, readers: Mapping[int, set[int]]) -> list[int]:
    """Return the operations that results need, each behind those that it reads."""
    missing = {n: len({v[0] for v in flat.ops[n].ins}) for n in readers}
    ready = deque(sorted(n for n, count in missing.items() if not count))
    found: list[int] = []
    while ready:
        found.append(ready.popleft())
        for user in sorted(readers[found[-1]]):
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    return found


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
