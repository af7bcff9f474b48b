"""Shared: arrays that are written once, as several kernels would read more without.

An operation of two large arrays, as a comparison or a sum is, goes into the kernels
that read it only if it goes into all of them, on every path that leads there: a mask
that a forward pass makes of two arrays, and that a backward pass reads beside a slope
which comes from behind a product, is written. What reads one large array is computed
wherever it is read.

Source: ComputeGloballyUnfusible of xla/service/instruction_fusion.cc.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from jaxdist.profile.flat import Flat, Value
from jaxdist.profile.fusible import LOOPED, REDUCTIONS, may_join
from jaxdist.profile.rewritten import before

Users = Mapping[int, set[int]]
"""Which operations read each one."""
_FREE: Final = ("broadcast_in_dim", "iota", "lit")
"""What is made anywhere for nothing."""


def shared(flat: Flat, readers: Users, order: Sequence[int]) -> frozenset[int]:
    """Return the operations that no kernel takes in.

    Args:
        flat: the program, without views.
        readers: of each operation.
        order: the operations, each behind those that it reads.
    """
    returned = {v[0] for v in flat.outs}
    several = (n for n in reversed(order) if len(readers[n]) + (n in returned) > 1)
    large = [n for n in several if _reads_more(flat, n)]
    return frozenset(_Paths(flat, readers, large).stopped())


def _reads_more(flat: Flat, number: int) -> bool:
    """Whether several kernels would read more instead of what an operation makes."""
    op = flat.ops[number]
    if op.name not in LOOPED or op.name in REDUCTIONS:
        return False
    made, every = op.outs[0], set(op.ins)
    arrays = [v for v in op.ins if flat.ops[v[0]].name not in _FREE]
    large = [v for v in arrays if _rank(flat, v) >= _dims(made.shape)]
    size = sum(prod(flat.array(v).shape) for v in every)
    return len(large) > 1 and size > prod(made.shape)


def _rank(flat: Flat, value: Value) -> int:
    return _dims(flat.array(value).shape)


def _dims(shape: tuple[int, ...]) -> int:
    return sum(n > 1 for n in shape)


class _Paths:
    """Which operations reach their readers through kernels alone."""

    def __init__(self, flat: Flat, readers: Users, asked: Sequence[int]) -> None:
        self.flat, self.readers, self.asked = flat, readers, asked
        self.bits = {number: 1 << k for k, number in enumerate(asked)}
        self.needs = before(flat, asked)
        self.found: set[int] = set()

    def stopped(self) -> set[int]:
        """Return those that do not; who reads is asked before what it reads."""
        returned = {v[0] for v in self.flat.outs}
        for number in self.asked:
            into = all(self._open(number, one) for one in self.readers[number])
            if number in returned or not into:
                self.found.add(number)
        return self.found

    def _open(self, number: int, user: int) -> bool:
        """Whether a reader takes in all that leads from an operation to it."""
        left, seen = [user], {number}
        while left:
            one = left.pop()
            if one in seen:
                continue
            seen.add(one)
            between = {v[0] for v in self.flat.ops[one].ins if self._leads(number, v)}
            if not all(self._taken(read, one) for read in between):
                return False
            left += between
        return True

    def _leads(self, number: int, value: Value) -> bool:
        """Whether an array needs an operation."""
        return bool(self.needs[value[0]] & self.bits[number])

    def _taken(self, number: int, user: int) -> bool:
        if number in self.found:
            return False
        return may_join(self.flat, number, user, len(self.readers[number]))
