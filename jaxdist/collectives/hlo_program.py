"""The text of a compiled program: its instructions, and how often each one runs.

A program's text is a list of computations; instructions of one call others. A loop runs
its body as often as `known_trip_count` says, or its own counter where the compiler does
not write that (TPU's does not), and its condition once more; any other call runs once.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

ENTRY: Final = ""
"""The computation that a program starts with."""

_HEAD: Final = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{\s*$")
LOOP: Final = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_TRIPS: Final = re.compile(r'"known_trip_count":\s*\{"n":\s*"(\d+)"\}')
CALL: Final = re.compile(r"\b(?:calls|to_apply|called_computations)=\{?%?([\w.\-]+)")
BRANCHES: Final = re.compile(
    r"branch_computations=\{([^}]*)\}|true_computation=(\S+), false_computation=(\S+)"
)
OP_NAME: Final = re.compile(r'op_name="([^"]*)"')
"""The name scopes in which an instruction was traced."""

_STARTED: Final = re.compile(r"%?([\w.\-]+) = .* (?:async|call)-start\(")
_AFTER: Final = re.compile(r" [\w\-]+-(?:update|done)\(")
"""The later half of a started operation, which prints its computation again."""


_END: Final = re.compile(r"\}(?:,|$)")
"""The end of a computation, and where it runs."""


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
    fusion: tuple[str, str] = ("", "")
    """The first and the last instruction of the fusion that it is in, if any: its first
    operand and its result."""
    started_by: str = ""
    """The instruction that starts the computation it is in, where that runs beside
    others, as on a core of its own."""


def list_instructions(
    text: str, kinds: Sequence[str], weight: Callable[[str], int]
) -> tuple[HloInstruction, ...]:
    """List the instructions of some kinds that a program runs, called ones included.

    Args:
        text: `compiled.as_text()`.
        kinds: words, one of which is in the text of such an instruction.
        weight: of an instruction; of a conditional the branch of most weight counts.
    """
    return tuple(_walk(ENTRY, split_computations(text), kinds, weight))


def split_computations(text: str) -> dict[str, list[str]]:
    """Split a program's text into its computations, by name; the entry has no name."""
    parts: dict[str, list[str]] = defaultdict(list)
    # Computations are top-level blocks: a head, indented instructions, a closing brace.
    name = ENTRY
    for line in text.splitlines():
        if line[:1] == " ":
            parts[name].append(line)
        elif head := _HEAD.match(line):
            name = ENTRY if head["entry"] else head["name"]
        elif _END.match(line):
            name = ENTRY
        elif parts[name] and line[:1] in '"}':
            # What a kernel says of itself may have lines of its own.
            parts[name][-1] += line
        else:
            parts[name].append(line)
    return dict(parts)


def _walk(
    name: str,
    program: Mapping[str, Sequence[str]],
    kinds: Sequence[str],
    weight: Callable[[str], int],
) -> Iterator[HloInstruction]:
    for text in program.get(name, ()):
        if any(kind in text for kind in kinds):
            yield HloInstruction(text)
        # Words first: a search for each expression would take most of the time.
        if "condition=" in text and (loop := LOOP.search(text)):
            trips, named = (
                trip_count(text, program[name], program),
                OP_NAME.search(text),
            )
            times, name_of = trips or 1, named[1] if named else ""
            # The condition runs once more than the body; of a loop of unknown length
            # both count once.
            for inner, runs in ((loop[1], times + bool(trips)), (loop[2], times)):
                for line in _walk(inner, program, kinds, weight):
                    yield replace(
                        line,
                        trip_count=runs * line.trip_count,
                        bounded=line.bounded and trips is not None,
                        loops=(name_of, *line.loops),
                    )
        elif "_computation" in text and (branches := BRANCHES.search(text)):
            # Which branch runs is decided on the device: the heaviest counts.
            listed = ",".join(filter(None, branches.groups()))
            choices = [
                tuple(_walk(one, program, kinds, weight))
                for one in re.findall(r"%?([\w.\-]+)", listed)
            ]
            yield from max(
                choices,
                key=lambda lines: sum(x.trip_count * weight(x.text) for x in lines),
            )
        elif (call := _called(text)) and not _AFTER.search(text):
            fused = program.get(call[1], ()) if " fusion(" in text else ()
            start = _STARTED.search(text)
            for line in _walk(call[1], program, kinds, weight):
                if fused and not any(line.fusion):
                    yield replace(line, fusion=(fused[0], fused[-1]))
                elif start and not line.started_by:
                    yield replace(line, started_by=start[1])
                else:
                    yield line


def _called(text: str) -> re.Match[str] | None:
    words = ("calls=", "to_apply=", "called_computations=")
    return CALL.search(text) if any(word in text for word in words) else None


def trip_count(
    loop: str, around: Sequence[str], program: Mapping[str, Sequence[str]]
) -> int | None:
    """Return how often a loop runs its body; None where the text does not say it.

    Args:
        loop: the loop's instruction.
        around: the instructions of the computation that it is in.
        program: all computations.
    """
    if known := _TRIPS.search(loop):
        return int(known[1])
    # A counted loop carries its counter, compares it with a constant, and adds a
    # constant to it: `while (i < n) i += step`.
    found = LOOP.search(loop)
    if found is None:
        return None
    condition, body = program.get(found[1], ()), program.get(found[2], ())
    root = next((x for x in condition if x.lstrip().startswith("ROOT ")), "")
    compared = re.search(r" compare\((.*?)\), direction=LT", root)
    if compared is None:
        return None
    counter, limit = (_definition(x, condition) for x in _operands(compared[1]))
    place = re.search(r" get-tuple-element\(.*\), index=(\d+)", counter)
    start = re.search(r" while\((.*?)\)", loop)
    if place is None or start is None:
        return None
    index = int(place[1])
    first = _tuple_element(_definition(start[1], around), index, around)
    changed = next((x for x in body if x.lstrip().startswith("ROOT ")), "")
    step = _step(_tuple_element(changed, index, body), index, body)
    ends = _constant(limit), _constant(first)
    if None in ends or not step:
        return None
    last, begin = (int(end or 0) for end in ends)
    return max(0, -(-(last - begin) // step))


def _operands(listed: str) -> list[str]:
    """Return the names in the argument list of an instruction."""
    return re.findall(r"%([\w.\-]+)", listed)


def _definition(name: str, computation: Sequence[str]) -> str:
    """Return the instruction that a name stands for, past copies; else ""."""
    start = f"{name.lstrip('%')} = "
    line = next(
        (
            x
            for x in computation
            if x.lstrip().removeprefix("ROOT ").removeprefix("%").startswith(start)
        ),
        "",
    )
    copied = re.search(r" (?:copy|bitcast|copy-done|copy-start)\(%?([\w.\-]+)", line)
    return _definition(copied[1], computation) if copied else line


def _tuple_element(line: str, index: int, computation: Sequence[str]) -> str:
    """Return the instruction that is one element of a tuple; else ""."""
    found = re.search(r" tuple\((.*)\)", line)
    names = _operands(found[1]) if found else []
    return _definition(names[index], computation) if index < len(names) else ""


def _step(line: str, index: int, body: Sequence[str]) -> int | None:
    """Return what a loop adds to its counter, where that is a constant."""
    added = re.search(r" add\((.*?)\)", line)
    if added is None:
        return None
    parts = [_definition(name, body) for name in _operands(added[1])]
    counts = [x for x in parts if re.search(rf"get-tuple-element.*index={index}\b", x)]
    steps = [n for n in map(_constant, parts) if n is not None]
    return steps[0] if counts and steps else None


def _constant(line: str) -> int | None:
    found = re.search(r" constant\((-?\d+)\)", line)
    return int(found[1]) if found else None


def shape_bytes(text: str, dtypes: Container[str] | None = None) -> list[int]:
    """Return the bytes of each array whose shape is in a text.

    Args:
        text: types as XLA prints them.
        dtypes: those that count, others have 0 bytes; None for all.

    >>> shape_bytes("(f32[2,3]{1,0}, pred[], bf16[4])"), shape_bytes("u4[3]")
    ([24, 1, 8], [2])
    """
    sizes = []
    for dtype, dims in _SHAPE.findall(text):
        bits = _BITS.get(dtype) or int(re.findall(r"\d+", dtype)[0])
        elements = math.prod(int(d) for d in dims.split(",") if d)
        counts = dtypes is None or dtype in dtypes
        sizes.append(math.ceil(elements * bits / 8) * counts)
    return sizes


_BITS: Final = {"pred": 8, "c64": 64, "c128": 128}
_SHAPE: Final = re.compile(r"\b(pred|[suc]\d+|bf16|f\d+\w*)\[([\d,]*)\]")
_DIRECT: Final = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_FRAME: Final = re.compile(r"stack_frame_id=(\d+)")
_FILE: Final = re.compile(r'^(\d+) "(.*)"$')
_LOCATION: Final = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_STACK: Final = re.compile(r"^(\d+) \{file_location_id=(\d+)")


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
