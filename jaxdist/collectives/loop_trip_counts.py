"""Trip counts: how often each instruction of a compiled program runs.

A program's text is a list of computations; instructions of one call others. A loop runs
its body `known_trip_count` times and its condition once more; any other call runs once.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
