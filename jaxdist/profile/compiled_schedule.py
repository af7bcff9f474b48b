"""The schedule of a compiled program: cycles by layer, work beside collectives.

TPU's compiler writes an estimate of cycles with each instruction that computes, and the
order in which a core runs them. The cycles of a loop count for every trip. Compilers of
GPUs write the order alone.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from jaxdist.collectives.hlo_collectives import CHAIN, COLLECTIVE_KINDS
from jaxdist.collectives.hlo_program import (
    BRANCHES,
    CALL,
    ENTRY,
    LOOP,
    OP_NAME,
    shape_bytes,
    split_computations,
    trip_count,
)

_CYCLES: Final = re.compile(r'"estimated_cycles":"(\d+)"')
_NAME: Final = re.compile(r"^\s*(?:ROOT\s+)?%?([\w.\-]+) = ")
_RESULT: Final = re.compile(r" = (.+?) [\w\-]+\(")
_KINDS: Final = "|".join(COLLECTIVE_KINDS)
_COLLECTIVE: Final = re.compile(rf" (?:{_KINDS})\(")
_ASYNC: Final = f"{_KINDS}|async|call"
_START: Final = re.compile(rf" (?:{_ASYNC})-start\(")
_DONE: Final = re.compile(rf" (?:{_ASYNC})-done\(.*?%([\w.\-]+)")
_COMPUTE: Final = re.compile(r" (?:fusion|convolution|dot|custom-call)\(")


@dataclass(frozen=True, kw_only=True)
class CompiledSchedule:
    """What a core does in a step, in the order of the compiled program."""

    layer_cycles: Mapping[str, int]
    """Estimated cycles by the path of a layer, "" for all else; empty where the
    compiler has no estimate.
    """
    forward_cycles: Mapping[str, int]
    """Those of the forward pass; of "" the loss and what loops over blocks keep."""
    backward_cycles: Mapping[str, int]
    """Those of the backward pass."""
    layer_bytes: Mapping[str, int]
    """Bytes that the same instructions read and write, at most: of an operand that is
    sliced all counts.
    """
    work_beside: Mapping[str, int]
    """By the name of an asynchronous collective: cycles of the work that runs between
    its start and its end, or the number of instructions where there is no estimate.
    """

    @property
    def cycles(self) -> int:
        """Estimated cycles of a step."""
        return sum(self.layer_cycles.values())


def read_schedule(text: str, layers: Container[str]) -> CompiledSchedule:
    """Read the schedule of a compiled program.

    Args:
        text: `compiled.as_text()`.
        layers: paths of the layers that cycles are summed by.
    """
    reader = _Reader(split_computations(text), layers)
    # Only computations that are reached from the entry: reducers and the insides of
    # fusions are computations of the text too, and do not run by themselves.
    found = reader.walk(ENTRY)
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for (layer, which), cycles in found.cycles.items():
        sums[which][layer] += cycles
    every = sum(sums.values(), Counter[str]())
    return CompiledSchedule(
        layer_cycles=dict(every),
        forward_cycles=dict(sums["forward"]),
        backward_cycles=dict(sums["backward"]),
        layer_bytes=dict(found.moved),
        work_beside=dict(reader.work_beside),
    )


def scope_owner(op_name: str, layers: Container[str]) -> str:
    """Return the innermost layer in whose scope an instruction was traced; else "".

    >>> scope_owner("jit(f)/transpose(jvp(block1))/block1.conv/mul", {"block1.conv"})
    'block1.conv'
    """
    scopes = reversed(re.split(r"[/():]+", op_name))
    return next((scope for scope in scopes if scope in layers), "")


def traced_pass(op_name: str) -> str:
    """Return the pass in which jax traced an instruction; "" for the rest of a step.

    What a backward pass computes again is a part of it.

    >>> traced_pass("jit(f)/transpose(jvp(block1))/block1.conv/mul")
    'backward'
    >>> traced_pass("jit(f)/jvp()/reduce_sum"), traced_pass("jit(f)/update/mul")
    ('forward', '')
    """
    if "transpose(" in op_name:
        return "backward"
    return "forward" if "jvp(" in op_name else ""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What some instructions do."""

    total: int = 0
    """Cycles, or instructions where there is no estimate."""
    cycles: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Cycles by layer and pass."""
    moved: Counter[str] = field(default_factory=Counter)
    """Bytes by layer."""

    def times(self, count: int) -> "Work":
        """Return the work of so many runs."""
        return Work(
            total=count * self.total,
            cycles=Counter({key: count * n for key, n in self.cycles.items()}),
            moved=Counter({layer: count * n for layer, n in self.moved.items()}),
        )


@dataclass
class _Reader:
    """Sums over the computations of a program that are run, loops with their trips."""

    program: Mapping[str, Sequence[str]]
    layers: Container[str]
    work_beside: dict[str, int] = field(default_factory=dict)

    def walk(self, name: str) -> Work:
        """Return the work of one run of a computation."""
        lines = self.program.get(name, ())
        done, cycles, moved = 0, Counter[tuple[str, str]](), Counter[str]()
        sizes: dict[str, int] = {}
        started: dict[str, int] = {}
        chains: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for line in lines:
            before = done
            work = self._walk_line(line, lines, sizes)
            done += work.total
            cycles.update(work.cycles)
            moved.update(work.moved)
            own = _NAME.match(line)
            if own is None:
                continue
            # Operands are given by name alone; their types stand where they are
            # defined, which is above in a scheduled program.
            sizes[own[1]] = sum(shape_bytes(_result(line)))
            if _START.search(line):
                # Work behind the start counts, the start itself hides nothing.
                started[own[1]] = done
            elif (ended := _DONE.search(line)) and ended[1] in started:
                self.work_beside[ended[1]] = before - started[ended[1]]
            elif " fusion(" in line and (called := CALL.search(line)):
                # A collective of a chain is in all fusions that run beside it: the
                # first starts it, and what the others compute hides it.
                for inner in self.program.get(called[1], ()):
                    chain, part = CHAIN.search(inner), _NAME.match(inner)
                    if chain and part and _COLLECTIVE.search(inner):
                        chains[chain[1]].append((part[1], done))
        for parts in chains.values():
            first, last = parts[0][1], parts[-1][1]
            self.work_beside.update((part, last - first) for part, _ in parts)
        return Work(total=done, cycles=cycles, moved=moved)

    def _walk_line(
        self, line: str, lines: Sequence[str], sizes: Mapping[str, int]
    ) -> Work:
        if loop := LOOP.search(line):
            # A loop of unknown length counts once.
            count = trip_count(line, lines, self.program) or 1
            return self.walk(loop[2]).times(count)
        if branches := BRANCHES.search(line):
            # Which branch runs is decided on the device: the one with most work counts.
            listed = ",".join(filter(None, branches.groups()))
            walks = [self.walk(name) for name in re.findall(r"%?([\w.\-]+)", listed)]
            return max(walks, key=lambda work: work.total, default=Work())
        if " call(" in line and (called := CALL.search(line)):
            return self.walk(called[1])
        estimate = _CYCLES.search(line)
        if estimate is None:
            # GPU programs have no estimates: kernels are counted in their place.
            return Work(total=int(bool(_COMPUTE.search(line))))
        named = OP_NAME.search(line)
        op_name = named[1] if named else ""
        owner = scope_owner(op_name, self.layers)
        typed = _RESULT.search(line)
        given = line[typed.end() :].partition(")")[0] if typed else ""
        read = sum(sizes.get(x, 0) for x in re.findall(r"%([\w.\-]+)", given))
        return Work(
            total=int(estimate[1]),
            cycles=Counter({(owner, traced_pass(op_name)): int(estimate[1])}),
            moved=Counter({owner: read + sum(shape_bytes(_result(line)))}),
        )


def _result(line: str) -> str:
    """Return the type of an instruction's result."""
    found = _RESULT.search(line)
    return found[1] if found else ""
