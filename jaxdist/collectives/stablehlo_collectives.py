"""Collectives of a lowered program: every one in its StableHLO, with axes and bytes.

A program is lowered before a backend compiles it. Its collectives are those that were
written, in the dtypes they were written in: none is merged, widened or added yet, so
what the partitioner adds to a program under plain `jit` is not here.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from jaxdist.collectives.hlo_collectives import (
    COLLECTIVE_KINDS,
    CollectiveOp,
    axes_from_groups,
    axes_from_pairs,
    replica_groups,
)

_KINDS: Final = {
    f"stablehlo.{kind.replace('-', '_')}": kind for kind in COLLECTIVE_KINDS
}
_CHOICES: Final = ("stablehlo.case", "stablehlo.if")
_PLACE: Final = re.compile(r'"([^"]*)":(\d+)')
_MESH_AXES: Final = re.compile(r"#stablehlo.replica_group_mesh_axes<mesh = @(\w+)(.*)")
_NAME: Final = re.compile(r'loc\("([^"]*)"')


def read_stablehlo(module: Any, mesh: Mapping[str, int]) -> tuple[CollectiveOp, ...]:
    """List the collectives of a lowered program.

    A loop counts for every trip where its length is written in the program, else once;
    of a conditional the branch that moves most counts.

    Args:
        module: `lowered.compiler_ir("stablehlo")` of one SPMD program.
        mesh: {axis: devices along it}, outermost first, in the order of its devices.
    """
    functions = {
        op.attributes["sym_name"].value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    meshes = {
        op.attributes["sym_name"].value: {
            axis: int(size) for axis, size in re.findall(r'"([^"]+)"=(\d+)', str(op))
        }
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    }
    program = _Program(functions, mesh, meshes)
    return tuple(program.inside(functions["main"]))


@dataclass(frozen=True)
class _Program:
    """The functions of a module, the mesh that they run on, and those it declares."""

    functions: Mapping[str, Any]
    mesh: Mapping[str, int]
    meshes: Mapping[str, Mapping[str, int]]

    def inside(self, op: Any) -> Iterator[CollectiveOp]:
        """Yield the collectives in the regions of an operation."""
        for region in op.regions:
            yield from self._region(region)

    def _region(self, region: Any) -> Iterator[CollectiveOp]:
        ops = (op.operation for block in region.blocks for op in block.operations)
        for op in ops:
            if op.name in _KINDS:
                yield from self._collective(op)
            elif op.name == "func.call":
                yield from self.inside(self.functions[op.attributes["callee"].value])
            elif op.name == "stablehlo.while":
                known = loop_trip_count(op)
                times = 1 if known is None else known
                # The condition runs once more than the body.
                asked, body = op.regions
                for inner, runs in (
                    (asked, times + (known is not None)),
                    (body, times),
                ):
                    for move in self._region(inner):
                        is_known = move.bounded and known is not None
                        yield replace(move.repeat(runs), bounded=is_known)
            elif op.name in _CHOICES:
                branches = (tuple(self._region(branch)) for branch in op.regions)
                yield from max(branches, key=lambda ops: sum(m.payload for m in ops))
            else:
                yield from self.inside(op)

    def _collective(self, op: Any) -> Iterator[CollectiveOp]:
        kind = _KINDS[op.name]
        if kind == "collective-permute":
            pairs = np.asarray(op.attributes["source_target_pairs"]).tolist()
            axes, group = axes_from_pairs(pairs, self.mesh)
        else:
            listed = op.attributes["replica_groups"]
            if by_axes := _MESH_AXES.match(str(listed)):
                # Since jax 0.11: axes of a mesh of the program in place of devices.
                names = re.findall(r'name = "([^"]+)"', by_axes[2])
                groups = replica_groups(names, self.meshes[by_axes[1]])
            else:
                groups = np.asarray(listed).tolist()
            axes, group = axes_from_groups(groups, self.mesh), len(groups[0])
        if group == 1:  # a device alone moves nothing
            return
        payload = 0
        for result in op.results:
            element = str(result.type.element_type)
            # A truth value is one bit, but takes a byte.
            width = 8 if element == "i1" else int(re.findall(r"\d+", element)[0])
            bits = width * (2 if element.startswith("complex") else 1)
            payload += math.ceil(math.prod(result.type.shape) * bits / 8)
        place = str(op.location)
        name, source = _NAME.search(place), _PLACE.search(place)
        yield CollectiveOp(
            kind=kind,
            axes=axes,
            group_size=group,
            payload=payload,
            op_name=name[1] if name else "",
            source_location=f"{source[1]}:{source[2]}" if source else "",
        )


def loop_trip_count(loop: Any) -> int | None:
    """Return the trip count of a loop, where that is written in the program.

    It is where a counter starts at a constant, goes up by a constant and is compared
    with a constant: `scan`, and `fori_loop` between known bounds.

    Args:
        loop: a `stablehlo.while`.
    """
    asked, body = (region.blocks[0] for region in loop.regions)
    compare = _maker(_last(asked).operands[0], "stablehlo.compare")
    # Only loops that count up to a limit: that is how JAX lowers `scan`.
    if compare is None or "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counter, limit = compare.operands
    index = _index(counter, asked)
    if index is None:
        return None
    # The limit is a constant, or an argument that every trip passes on as it is.
    passed = _index(limit, asked)
    if passed is not None and _index(_last(body).operands[passed], body) == passed:
        limit = loop.operands[passed]
    # The counter goes up by a constant.
    add = _maker(_last(body).operands[index], "stablehlo.add")
    if add is None or _index(add.operands[0], body) != index:
        return None
    step = _constant(add.operands[1])
    first, end = _constant(loop.operands[index]), _constant(limit)
    if first is None or end is None or not step:
        return None
    return max(0, math.ceil((end - first) / step))


def _index(value: Any, block: Any) -> int | None:
    """Return the number of a block's argument, None for other values."""
    return value.arg_number if value.owner == block else None


def _maker(value: Any, name: str) -> Any:
    """Return the operation that computes a value, if it has this name."""
    operation = getattr(value.owner, "operation", None)
    return operation if operation is not None and operation.name == name else None


def _constant(value: Any) -> int | None:
    """Return an integer that is written in the program."""
    made = _maker(value, "stablehlo.constant")
    if made is None or not str(value.type.element_type).lstrip("u").startswith("i"):
        return None
    return int(np.asarray(made.attributes["value"]))


def _last(block: Any) -> Any:
    return block.operations[len(block.operations) - 1]
