"""What a lowered program means to move: every collective of its StableHLO.

A program is lowered before a backend compiles it. Its collectives are those that were
written, in the dtypes they were written in: none is merged, widened or added yet, so
what the partitioner adds to a program under plain `jit` is not here.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from jaxdist.collectives.hlo_collectives import COLLECTIVE_KINDS, CollectiveOp
from jaxdist.collectives.replica_groups import axes_from_groups, axes_from_pairs

_KINDS: Final = {
    f"stablehlo.{kind.replace('-', '_')}": kind for kind in COLLECTIVE_KINDS
}
_CHOICES: Final = ("stablehlo.case", "stablehlo.if")
_PLACE: Final = re.compile(r'"([^"]*)":(\d+)')
_NAME: Final = re.compile(r'loc\("([^"]*)"')


def read_stablehlo(module: Any, mesh: Mapping[str, int]) -> tuple[CollectiveOp, ...]:
    """List the collectives of a lowered program.

    A loop counts for every trip where its length is written in the program, else once;
    of a conditional the branch that moves most counts.

    Args:
        module: `lowered.compiler_ir("stablehlo")` of one SPMD program.
        mesh: {axis: devices along it}, outermost first, in the order of its devices.
    """
    return tuple(_Program(module, mesh).moves("main"))


class _Program:
    """The functions of a module, and the mesh that they run on."""

    def __init__(self, module: Any, mesh: Mapping[str, int]) -> None:
        self._mesh = mesh
        self._functions = {
            op.attributes["sym_name"].value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }

    def moves(self, function: str) -> Iterator[CollectiveOp]:
        """Yield what a function moves, functions that it calls included."""
        yield from self._inside(self._functions[function])

    def _inside(self, op: Any) -> Iterator[CollectiveOp]:
        for region in op.regions:
            yield from self._region(region)

    def _region(self, region: Any) -> Iterator[CollectiveOp]:
        for block in region.blocks:
            for op in block.operations:
                yield from self._read(op.operation)

    def _read(self, op: Any) -> Iterator[CollectiveOp]:
        if op.name in _KINDS:
            yield from self._collective(op)
        elif op.name == "func.call":
            yield from self.moves(op.attributes["callee"].value)
        elif op.name == "stablehlo.while":
            yield from self._loop(op)
        elif op.name in _CHOICES:
            branches = (tuple(self._region(region)) for region in op.regions)
            yield from max(branches, key=lambda moves: sum(m.payload for m in moves))
        else:
            yield from self._inside(op)

    def _loop(self, op: Any) -> Iterator[CollectiveOp]:
        """Yield what a loop moves: its condition runs once more than its body."""
        known = loop_trip_count(op)
        times = 1 if known is None else known
        asked, body = op.regions
        for region, runs in ((asked, times + (known is not None)), (body, times)):
            for move in self._region(region):
                yield replace(
                    move,
                    payload=runs * move.payload,
                    trip_count=runs * move.trip_count,
                    bounded=move.bounded and known is not None,
                )

    def _collective(self, op: Any) -> Iterator[CollectiveOp]:
        kind = _KINDS[op.name]
        if kind == "collective-permute":
            pairs = np.asarray(op.attributes["source_target_pairs"]).tolist()
            axes, group = axes_from_pairs(pairs, self._mesh)
        else:
            groups = np.asarray(op.attributes["replica_groups"]).tolist()
            axes, group = axes_from_groups(groups, self._mesh), len(groups[0])
        if group == 1:  # a device alone moves nothing
            return
        place = str(op.location)
        name, source = _NAME.search(place), _PLACE.search(place)
        yield CollectiveOp(
            kind=kind,
            axes=axes,
            group_size=group,
            payload=sum(_bytes(result.type) for result in op.results),
            op_name=name[1] if name else "",
            source_location=f"{source[1]}:{source[2]}" if source else "",
        )


def loop_trip_count(loop: Any) -> int | None:
    """Return how often a loop runs, where that is written in the program.

    It is where a counter starts at a constant, goes up by a constant and is compared
    with a constant: `scan`, and `fori_loop` between known bounds.

    Args:
        loop: a `stablehlo.while`.
    """
    asked, body = (region.blocks[0] for region in loop.regions)
    compare = _maker(_last(asked).operands[0], "stablehlo.compare")
    if compare is None or "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counter, limit = compare.operands
    index = _index(counter, asked)
    if index is None:
        return None
    first, step = _constant(loop.operands[index]), _step(body, index)
    end = _constant(_before(loop, asked, limit))
    if first is None or end is None or not step:
        return None
    return max(0, math.ceil((end - first) / step))


def _before(loop: Any, asked: Any, value: Any) -> Any:
    """Return the value from outside the loop that one in its condition always is."""
    index = _index(value, asked)
    if index is None:
        return value
    body = loop.regions[1].blocks[0]
    kept = _index(_last(body).operands[index], body) == index
    return loop.operands[index] if kept else value


def _step(body: Any, index: int) -> int | None:
    """Return what a trip adds to a value that is handed from trip to trip."""
    add = _maker(_last(body).operands[index], "stablehlo.add")
    if add is None or _index(add.operands[0], body) != index:
        return None
    return _constant(add.operands[1])


def _index(value: Any, block: Any) -> int | None:
    """Return which argument of a block a value is, if it is one."""
    return value.arg_number if value.owner == block else None


def _maker(value: Any, name: str) -> Any:
    """Return the operation that makes a value, if it has this name."""
    operation = getattr(value.owner, "operation", None)
    return operation if operation is not None and operation.name == name else None


def _constant(value: Any) -> int | None:
    """Return a whole number that is written in the program."""
    made = _maker(value, "stablehlo.constant")
    if made is None or not str(value.type.element_type).lstrip("u").startswith("i"):
        return None
    return int(np.asarray(made.attributes["value"]))


def _last(block: Any) -> Any:
    return block.operations[len(block.operations) - 1]


def _bytes(kind: Any) -> int:
    """Return the bytes of an array of this type; truth takes a byte an element."""
    element = str(kind.element_type)
    width = 8 if element == "i1" else int(re.findall(r"\d+", element)[0])
    bits = width * (2 if element.startswith("complex") else 1)
    return math.ceil(math.prod(kind.shape) * bits / 8)
