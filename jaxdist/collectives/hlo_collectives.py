"""What a compiled program moves: every collective of its HLO text, with axis and bytes.

Bytes are counted in two ways. *Payload* is the result of the operation on one device.
*Wire* is what a device sends at least, by the operation (g devices a group, S payload):

    all-reduce 2 (g-1)/g S,  reduce-scatter (g-1) S,  all-gather and all-to-all
    (g-1)/g S,  collective-permute S

Both are of one step: a collective in a loop counts for every trip.

Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", section 4 (bandwidth terms).
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.collectives.loop_trip_counts import (
    OP_NAME,
    HloInstruction,
    list_instructions,
)
from jaxdist.collectives.replica_groups import (
    axes_from_groups,
    axes_from_pairs,
    replica_groups,
)
from jaxdist.collectives.source_locations import SourceLocations

COLLECTIVE_KINDS: Final = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "collective-permute",
)
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
    """Source of the operation: the scopes of the layer that asked for it."""
    trip_count: int = 1
    """How often it runs in one run of the program."""
    bounded: bool = True
    """Whether the lengths of all loops around it are known; else a loop counts once."""
    source_location: str = ""
    """The line of Python that asked for it, `file:line`."""
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
    lines, sources = list_instructions(text, _payload), SourceLocations(text)
    return tuple(move for line in lines for move in _read(line, mesh, sources))


def _read(
    line: HloInstruction, mesh: Mapping[str, int], sources: SourceLocations
) -> Iterator[CollectiveOp]:
    found = _LINE.match(line.text)
    if found is None:
        return
    kind, rest, uneven = found["kind"], found["rest"], False
    if kind == "collective-permute":
        axes, group = axes_from_pairs(_pairs(rest), mesh)
    else:
        groups = _groups(rest, math.prod(mesh.values()))
        axes, group = axes_from_groups(groups, mesh), max(map(len, groups))
        uneven = len(set(map(len, groups))) > 1
    if group == 1:  # a device alone moves nothing; the CPU backend leaves it in
        return
    name = OP_NAME.search(rest)
    yield CollectiveOp(
        kind=kind,
        axes=axes,
        group_size=group,
        payload=line.trip_count * _payload(line.text),
        op_name=name[1] if name else "",
        trip_count=line.trip_count,
        bounded=line.bounded,
        source_location=sources.locate(line.text),
        loops=line.loops,
        has_uneven_groups=uneven,
        instruction_name=found["op"],
    )


def _payload(text: str) -> int:
    """Return the bytes of one trip of a collective, 0 for other instructions."""
    found = _LINE.match(text)
    if found is None:
        return 0
    if not found["start"] or found["kind"] == "all-reduce":
        return sum(_shapes(found["type"]))
    # A started collective returns (operands, results), a permute two counters more.
    shapes = _shapes(found["type"].replace("u32[]", ""))
    return sum(shapes[len(shapes) // 2 :])


def _shapes(text: str) -> list[int]:
    """Return the bytes of each array in a type, tuples in their order.

    >>> _shapes("(f32[3,3]{1,0}, bf16[8])")
    [36, 16]
    """
    sizes = []
    for dtype, dims in _SHAPE.findall(text):
        bits = _BITS.get(dtype) or int(re.findall(r"\d+", dtype)[0])
        elements = math.prod(int(d) for d in dims.split(",") if d)
        sizes.append(math.ceil(elements * bits / 8))
    return sizes


def _groups(rest: str, world: int) -> list[list[int]]:
    """Read replica groups in any of the three forms that XLA prints."""
    if found := re.search(r"replica_groups=\{(\{[\d,{} ]*\})\}", rest):
        inner = re.findall(r"\{([\d,]+)\}", found[1])
        return [[int(i) for i in group.split(",")] for group in inner]
    form = r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
    if found := re.search(form, rest):
        shape, dims, order = (_ints(part) for part in found.groups(default=""))
        ids = np.arange(math.prod(dims)).reshape(dims)
        return np.transpose(ids, order or None).reshape(shape).tolist()
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", rest):
        sizes = {n: int(s) for n, s in re.findall(r"'([^']+)'=(\d+)", found[1])}
        return replica_groups(re.findall(r"'([^']+)'", found[2]), sizes)
    return [list(range(world))]


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _pairs(rest: str) -> list[tuple[int, int]]:
    found = re.search(r"source_target_pairs=\{([\d,{} ]*)\}", rest)
    pairs = re.findall(r"\{(\d+),(\d+)\}", found[1] + "}") if found else []
    return [(int(a), int(b)) for a, b in pairs]
