"""Collectives of a compiled program: each in its HLO text, with axes, trips and bytes.

Bytes are counted in two ways. *Payload* is the result of the operation on one device.
*Wire* is what a device sends at least, by the operation (g devices a group, S payload):

    all-reduce 2 (g-1)/g S,  reduce-scatter (g-1) S,  all-gather and all-to-all
    (g-1)/g S,  collective-permute S

Both are of one step: a collective in a loop counts for every trip.

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", section 4 (bandwidth terms).
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jaxdist.collectives.hlo_program import (
    OP_NAME,
    HloInstruction,
    SourceLocations,
    list_instructions,
    shape_bytes,
)
from jaxdist.core.axes import strided_axis_name, sub_axis_name


def replica_groups(axes: Iterable[str], mesh: Mapping[str, int]) -> list[list[int]]:
    """List the device groups that a collective over `axes` has on this mesh."""
    names, chosen = list(mesh), set(axes)
    ids = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    # Devices are numbered in mesh order, the last axis fastest: groups are the rows
    # when the chosen axes come last.
    kept = [i for i, n in enumerate(names) if n not in chosen]
    along = [i for i, n in enumerate(names) if n in chosen]
    width = math.prod(mesh[names[i]] for i in along)
    return np.transpose(ids, kept + along).reshape(-1, width).tolist()


def axes_from_groups(
    groups: Sequence[Sequence[int]], mesh: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the axes, or parts of one, with these groups; empty where none match.

    >>> axes_from_groups([[0, 2], [1, 3], [4, 6], [5, 7]], {"data": 4, "tensor": 2})
    ('data[2]',)
    >>> axes_from_groups([[0, 4], [2, 6], [1, 5], [3, 7]], {"data": 4, "tensor": 2})
    ('data[::2]',)
    """
    # Whole axes come first. Then one axis at a time is cut in two: devices that are
    # apart, and neighbours between them.
    meshes = [dict(mesh)]
    for cut, size in mesh.items():
        for devices in range(2, size):
            if size % devices == 0:
                halves = {
                    strided_axis_name(cut, devices): size // devices,
                    sub_axis_name(cut, devices): devices,
                }
                named = ({n: s} if n != cut else halves for n, s in mesh.items())
                meshes.append({name: s for each in named for name, s in each.items()})
    wanted = {frozenset(group) for group in groups}
    for each in meshes:
        real = [name for name, size in each.items() if size > 1]
        for count in range(1, len(real) + 1):
            for axes in itertools.combinations(real, count):
                if {frozenset(g) for g in replica_groups(axes, each)} == wanted:
                    return axes
    return ()


def axes_from_pairs(
    pairs: Sequence[tuple[int, int]], mesh: Mapping[str, int]
) -> tuple[tuple[str, ...], int]:
    """Return the axes along which a permute moves, and the devices along them."""
    shape = tuple(mesh.values())
    # A permute runs along the axes in which the coordinates of some pair differ.
    moved = {
        name
        for a, b in pairs
        for name, x, y in zip(
            mesh, np.unravel_index(a, shape), np.unravel_index(b, shape)
        )
        if x != y
    }
    axes = tuple(name for name in mesh if name in moved)
    return axes, math.prod(mesh[name] for name in axes)


COLLECTIVE_KINDS: Final = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "collective-permute",
)
_HALF_FLOATS: Final = ("bf16", "f16")
CHAIN: Final = re.compile(r'\bchain_id="(\d+)"')
_LINE: Final = re.compile(
    r"^\s*(?:ROOT\s+)?%?(?P<op>[\w.\-]+) = (?P<type>.+?) (?P<kind>"
    + "|".join(COLLECTIVE_KINDS)
    + r")(?P<start>-start)?\((?P<rest>.*)$"
)


@dataclass(frozen=True, kw_only=True)
class CollectiveOp:
    """One collective of a compiled program."""

    kind: str
    """One of `COLLECTIVE_KINDS`."""
    axes: tuple[str, ...]
    """Mesh axes, or parts of one (`data[4]`), it runs over, outermost first; empty
    where none match.
    """
    group_size: int
    """Devices that take part together."""
    payload: int
    """Bytes of the results on one device, over all trips."""
    op_name: str
    """Name scopes in which the operation was traced."""
    trip_count: int = 1
    """How often it runs in one run of the program."""
    bounded: bool = True
    """Whether the lengths of all loops around it are known; else a loop counts once."""
    source_location: str = ""
    """The line of Python that it was traced at, `file:line`."""
    loops: tuple[str, ...] = ()
    """Names of the loops around it, outermost first."""
    has_uneven_groups: bool = False
    """Whether groups differ in size; `group_size` is the largest."""
    instruction_name: str = ""
    """Name of the instruction in the program, as a profiler's trace has it."""
    half_payload: int = 0
    """Bytes of the payload that are floats of 16 bits."""
    padding: int = 0
    """Bytes beside the payload by which the compiler of TPUs has padded the parts of a
    reduce-scatter; permutes move those rows to where they belong."""
    is_async: bool = False
    """Whether it is started and waited for by instructions of their own, so that others
    can run between."""

    @property
    def wire_bytes(self) -> int:
        """Bytes a device sends, at least."""
        return wire_bytes(self.kind, self.payload, self.group_size)

    def repeat(self, runs: int, trips: int = 1) -> "CollectiveOp":
        """Return the same with so many runs in place of each `trips` of its trips.

        >>> op = CollectiveOp(
        ...     kind="all-reduce", axes=("tensor",), group_size=2, op_name="",
        ...     payload=60, half_payload=30, padding=12, trip_count=6,
        ... )
        >>> some = op.repeat(2, trips=6)
        >>> some.payload, some.half_payload, some.padding, some.trip_count
        (20, 10, 4, 2)
        """
        return replace(
            self,
            payload=runs * (self.payload // trips),
            half_payload=runs * (self.half_payload // trips),
            padding=runs * (self.padding // trips),
            trip_count=runs * (self.trip_count // trips),
        )


def wire_bytes(kind: str, payload_bytes: int, group_size: int) -> int:
    """Bytes one device of `group_size` sends for a collective of `payload_bytes` bytes.

    >>> wire_bytes("all-reduce", 800, 8), wire_bytes("collective-permute", 64, 2)
    (1400, 64)
    """
    # Lower bounds: no algorithm sends less.
    share = {
        "all-reduce": 2 * (group_size - 1) / group_size,
        "reduce-scatter": group_size - 1,
        "all-gather": (group_size - 1) / group_size,
        "all-to-all": (group_size - 1) / group_size,
        "collective-permute": 1,
    }
    return round(share[kind] * payload_bytes)


def read_collectives(text: str, mesh: Mapping[str, int]) -> tuple[CollectiveOp, ...]:
    """List the collectives of a compiled program.

    Args:
        text: `compiled.as_text()` of one SPMD program.
        mesh: {axis: devices along it}, outermost first, in the order of its devices.
    """
    moves, sources = [], SourceLocations(text)
    lines = list_instructions(text, COLLECTIVE_KINDS, _payload)
    matches = [(line, found) for line in lines if (found := _LINE.match(line.text))]
    # The TPU's compiler runs a collective beside computing as a chain of fusions, each
    # of which prints it. They may hold the array in memories of two kinds, and some may
    # be in a loop that begins behind the first and ends before the last.
    loops_of = defaultdict[tuple[str, ...], set[tuple[str, ...]]](set)
    counted = set[tuple[tuple[str, ...], tuple[str, ...]]]()
    for line, found in matches:
        loops_of[_chain(found)].add(line.loops)
    for line, found in matches:
        chain = _chain(found)
        if chain:
            outer = (line.loops[:depth] for depth in range(len(line.loops)))
            link = (line.loops, chain)
            if link in counted or not loops_of[chain].isdisjoint(outer):
                continue
            counted.add(link)
        kind, rest, uneven = found["kind"], found["rest"], False
        if kind == "collective-permute":
            listed = re.search(r"source_target_pairs=\{([\d,{} ]*)\}", rest)
            pairs = re.findall(r"\{(\d+),(\d+)\}", listed[1] + "}") if listed else []
            axes, group = axes_from_pairs([(int(a), int(b)) for a, b in pairs], mesh)
        else:
            groups = _groups(rest, math.prod(mesh.values()))
            axes, group = axes_from_groups(groups, mesh), max(map(len, groups))
            # XLA allows groups of different sizes, as for replicas of pipeline stages.
            uneven = len(set(map(len, groups))) > 1
        # A device alone moves nothing; the CPU backend leaves such collectives in.
        if group == 1:
            continue
        told = line.text
        if 'is_spmd_generated="true"' in rest:
            # Since jax 0.11 what the partitioner adds has the metadata of the array
            # that moves; its first user tells which operation needed it, and where.
            operand = rf"\(.*%{re.escape(found['op'])}[,)]"
            users = (user for user in text.splitlines() if re.search(operand, user))
            told = next((user for user in users if sources.locate(user)), told)
        name = OP_NAME.search(told)
        payload, padding = _payload(line.text), 0
        if parts := _scattered_parts(line, found["op"], group):
            kind, (payload, padding) = "reduce-scatter", parts
        moves.append(
            CollectiveOp(
                kind=kind,
                axes=axes,
                group_size=group,
                payload=line.trip_count * payload,
                op_name=name[1] if name else "",
                trip_count=line.trip_count,
                bounded=line.bounded,
                source_location=sources.locate(told),
                loops=line.loops,
                has_uneven_groups=uneven,
                instruction_name=line.started_by or found["op"],
                is_async=bool(found["start"] or chain or line.started_by),
                padding=line.trip_count * padding,
                half_payload=line.trip_count * _payload(line.text, _HALF_FLOATS),
            )
        )
    return tuple(moves)


def _chain(found: re.Match[str]) -> tuple[str, ...]:
    """Return what the fusions of a chain have in common; empty outside of chains."""
    chain = CHAIN.search(found["rest"])
    array = re.sub(r"\{[^}]*\}", "", found["type"])
    return (found["kind"], array, chain[1]) if chain else ()


def _scattered_parts(
    line: HloInstruction, name: str, group_size: int
) -> tuple[int, int] | None:
    """Return the bytes of a part, and of its padding, of a fused reduce-scatter.

    The compiler of TPUs writes a large reduce-scatter as a fusion that pads an array,
    sums it over the devices, and keeps the part of each. It never has the whole sum.

    Returns:
        None where the instruction is no such sum.
    """
    first, last = line.fusion
    if " all-reduce(" not in line.text or f" dynamic-slice(%{name}," not in last:
        return None
    whole, part = (shape_bytes(text.split("(")[0])[0] for text in (first, last))
    return whole // group_size, part - whole // group_size


def _payload(text: str, dtypes: Container[str] | None = None) -> int:
    """Return the bytes of one trip of a collective, 0 for other instructions.

    Args:
        text: the instruction.
        dtypes: those that count; None for all.
    """
    found = _LINE.match(text)
    if found is None:
        return 0
    # A started collective returns (operands, results), a permute two counters more.
    started = found["start"] and found["kind"] != "all-reduce"
    result = found["type"].replace("u32[]", "") if started else found["type"]
    sizes = shape_bytes(result, dtypes)
    return sum(sizes[len(sizes) // 2 :] if started else sizes)


def _groups(rest: str, world: int) -> list[list[int]]:
    """Read replica groups in any of the three forms that XLA prints."""
    # Listed in full.
    if found := re.search(r"replica_groups=\{(\{[\d,{} ]*\})\}", rest):
        inner = re.findall(r"\{([\d,]+)\}", found[1])
        return [[int(i) for i in group.split(",")] for group in inner]
    form = r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
    if found := re.search(form, rest):
        shape, dims, order = (
            [int(part) for part in listed.split(",") if part]
            for listed in found.groups(default="")
        )
        # The iota form: consecutive ids in an array of `dims`, transposed and reshaped.
        ids = np.arange(math.prod(dims)).reshape(dims)
        return np.transpose(ids, order or None).reshape(shape).tolist()
    # By axes of a mesh, as Shardy prints them.
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", rest):
        sizes = {n: int(s) for n, s in re.findall(r"'([^']+)'=(\d+)", found[1])}
        return replica_groups(re.findall(r"'([^']+)'", found[2]), sizes)
    # No groups: all devices.
    return [list(range(world))]
