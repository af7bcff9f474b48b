"""Collectives of a compiled program: each in its HLO text, with axes, trips and bytes.

Bytes are counted in two ways. *Payload* is the result of the operation on one device.
*Wire* is what a device sends at least, by the operation (g devices a group, S payload):

    all-reduce 2 (g-1)/g S,  reduce-scatter (g-1) S,  all-gather and all-to-all
    (g-1)/g S,  collective-permute S

Both are of one step: a collective in a loop counts for every trip.

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", section 4 (bandwidth terms).

Trip counts: how often each instruction of a compiled program runs.

A program's text is a list of computations; instructions of one call others. A loop runs
its body `known_trip_count` times and its condition once more; any other call runs once.
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.core.axes import sub_axis_name

ENTRY: Final = ""
"""The computation that a program starts with."""

_HEAD: Final = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{\s*$")
_LOOP: Final = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_TRIPS: Final = re.compile(r'"known_trip_count":\s*\{"n":\s*"(\d+)"\}')
_CALL: Final = re.compile(r"\b(?:calls|to_apply|called_computations)=\{?%?([\w.\-]+)")
_BRANCHES: Final = re.compile(
    r"branch_computations=\{([^}]*)\}|true_computation=(\S+), false_computation=(\S+)"
)
OP_NAME: Final = re.compile(r'op_name="([^"]*)"')
"""The name scopes in which an instruction was traced."""

_AFTER: Final = re.compile(r" [\w\-]+-(?:update|done)\(")
"""The later half of a started operation, which prints its computation again."""


@dataclass(frozen=True)
class HloInstruction:
    """One instruction of a program."""

    text: str
    """As the compiler prints it."""
    trip_count: int = 1
    """How often it runs: the product of the known lengths of the loops around it."""
    bounded: bool = True
    """Whether all those lengths are in the program; a loop without counts once."""
    loops: tuple[str, ...] = ()
    """Names of the loops around it, outermost first: their own, since the compiler lets
    equal computations have the names of one of them.
    """


def list_instructions(
    text: str, weight: Callable[[str], int]
) -> tuple[HloInstruction, ...]:
    """List the instructions that a program runs, those of called computations included.

    Args:
        text: `compiled.as_text()`.
        weight: of an instruction; of a conditional the branch of most weight counts.
    """
    return tuple(_walk(ENTRY, split_computations(text), weight))


def split_computations(text: str) -> dict[str, list[str]]:
    """Split a program's text into its computations, by name; the entry has no name."""
    parts: dict[str, list[str]] = defaultdict(list)
    # Computations are top-level blocks: a head, indented instructions, a closing brace.
    name = ENTRY
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = ENTRY if head["entry"] else head["name"]
        elif line.startswith("}"):
            name = ENTRY
        else:
            parts[name].append(line)
    return dict(parts)


def _walk(
    name: str,
    program: Mapping[str, Sequence[str]],
    weight: Callable[[str], int],
) -> Iterator[HloInstruction]:
    for text in program.get(name, ()):
        yield HloInstruction(text)
        if loop := _LOOP.search(text):
            known, named = _TRIPS.search(text), OP_NAME.search(text)
            times, name_of = int(known[1]) if known else 1, named[1] if named else ""
            for inner, runs in ((loop[1], times + bool(known)), (loop[2], times)):
                for line in _walk(inner, program, weight):
                    bounded = line.bounded and known is not None
                    loops = (name_of, *line.loops)
                    yield HloInstruction(
                        line.text, runs * line.trip_count, bounded, loops
                    )
        elif branches := _BRANCHES.search(text):
            # Which branch runs is decided on the device: the heaviest counts.
            listed = ",".join(filter(None, branches.groups()))
            choices = [
                tuple(_walk(one, program, weight))
                for one in re.findall(r"%?([\w.\-]+)", listed)
            ]
            yield from max(
                choices,
                key=lambda lines: sum(x.trip_count * weight(x.text) for x in lines),
            )
        elif (call := _CALL.search(text)) and not _AFTER.search(text):
            yield from _walk(call[1], program, weight)


_APART: Final = "apart"


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
    """
    # Whole axes come first. Then one axis at a time is cut in two: groups that are
    # apart, and neighbours in them, since only neighbours along an axis meet.
    meshes = [dict(mesh)]
    for cut, size in mesh.items():
        for devices in range(2, size):
            if size % devices == 0:
                halves = {_APART: size // devices, sub_axis_name(cut, devices): devices}
                named = ({n: s} if n != cut else halves for n, s in mesh.items())
                meshes.append({name: s for each in named for name, s in each.items()})
    wanted = {frozenset(group) for group in groups}
    for each in meshes:
        real = [name for name, size in each.items() if size > 1 and name != _APART]
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
_DIRECT: Final = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_FRAME: Final = re.compile(r"stack_frame_id=(\d+)")
_FILE: Final = re.compile(r'^(\d+) "(.*)"$')
_LOCATION: Final = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_STACK: Final = re.compile(r"^(\d+) \{file_location_id=(\d+)")
_BITS: Final = {"pred": 8, "c64": 64, "c128": 128}
_SHAPE: Final = re.compile(r"\b(pred|[suc]\d+|bf16|f\d+\w*)\[([\d,]*)\]")
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

    @property
    def wire_bytes(self) -> int:
        """Bytes a device sends, at least."""
        return wire_bytes(self.kind, self.payload, self.group_size)


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
    for line in list_instructions(text, _payload):
        found = _LINE.match(line.text)
        if found is None:
            continue
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
        moves.append(
            CollectiveOp(
                kind=kind,
                axes=axes,
                group_size=group,
                payload=line.trip_count * _payload(line.text),
                op_name=name[1] if name else "",
                trip_count=line.trip_count,
                bounded=line.bounded,
                source_location=sources.locate(told),
                loops=line.loops,
                has_uneven_groups=uneven,
                instruction_name=found["op"],
            )
        )
    return tuple(moves)


def _payload(text: str) -> int:
    """Return the bytes of one trip of a collective, 0 for other instructions."""
    found = _LINE.match(text)
    if found is None:
        return 0
    # A started collective returns (operands, results), a permute two counters more.
    started = found["start"] and found["kind"] != "all-reduce"
    result = found["type"].replace("u32[]", "") if started else found["type"]
    sizes = []
    for dtype, dims in _SHAPE.findall(result):
        bits = _BITS.get(dtype) or int(re.findall(r"\d+", dtype)[0])
        elements = math.prod(int(d) for d in dims.split(",") if d)
        sizes.append(math.ceil(elements * bits / 8))
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


class SourceLocations:
    """The lines of Python that the instructions of a compiled program are from.

    Args:
        text: `compiled.as_text()`.
    """

    def __init__(self, text: str) -> None:
        # XLA prints the line with each instruction (`source_file`, `source_line`), or
        # once for all, as tables of files, of locations in them, and of frames of the
        # call stack.
        files: dict[str, str] = {}
        places: dict[str, str] = {}
        self._frames: dict[str, str] = {}
        table = ""
        for line in text.splitlines():
            # Ids refer to earlier tables, so one pass is enough; computations end them.
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = line
            elif table == "FileNames" and (found := _FILE.match(line)):
                files[found[1]] = found[2]
            elif found := _LOCATION.match(line):
                places[found[1]] = f"{files.get(found[2], '?')}:{found[3]}"
            elif found := _STACK.match(line):
                self._frames[found[1]] = places.get(found[2], "")
            elif line.startswith(("%", "ENTRY")):
                break

    def locate(self, instruction: str) -> str:
        """Return `file:line` of an instruction, or "" where none is known.

        >>> line = '%a = f32[] add(), {source_file="a.py" source_line=3}'
        >>> SourceLocations("").locate(line)
        'a.py:3'
        """
        if found := _DIRECT.search(instruction):
            return f"{found[1]}:{found[2]}"
        frame = _FRAME.search(instruction)
        return self._frames.get(frame[1], "") if frame else ""
