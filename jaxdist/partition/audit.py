"""The audit: compares a compiled program with the ledger, collectives and work."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxdist.collectives.hlo_collectives import CollectiveOp
from jaxdist.core.errors import FatalError
from jaxdist.partition.compiler_rewrites import (
    NO_REWRITES,
    CompilerRules,
    undo_rewrites,
)
from jaxdist.partition.ledger import LayerFlops, Ledger
from jaxdist.partition.traffic import TrafficKey


class AuditError(FatalError):
    """The compiled program does what the plan does not, or the other way round."""


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One kind of collective over one set of axes."""

    kind: str
    """Collective, as the compiler names it."""
    axes: tuple[str, ...]
    """Axes it runs over."""
    count: int
    """How many the program has; the compiler merges and splits, so only shown."""
    ledger: int
    """Payload bytes a device that the plan predicts."""
    program: int
    """Payload bytes a device in the program."""
    wire: int
    """Bytes that a device sends for them, at least."""
    equivalent: int
    """Payload bytes a device in the program, with what its compiler may do undone."""


def compare_collectives(
    collectives: Sequence[CollectiveOp],
    ledger: Ledger,
    rules: CompilerRules = NO_REWRITES,
) -> tuple[AuditRow, ...]:
    """Compare the program's collectives with the ledger's, by kind and axes.

    Sums alone are compared: the compiler merges and splits collectives as it likes.

    Args:
        collectives: the compiled program's.
        ledger: what the plan predicts.
        rules: what else the compiler may do.
    """
    found, wire, count = (Counter[TrafficKey]() for _ in range(3))
    for move in collectives:
        # Payload is compared, not wire bytes: it follows from shapes alone, while what
        # is sent depends on the algorithm of the backend.
        found[move.kind, move.axes] += move.payload
        wire[move.kind, move.axes] += move.wire_bytes
        count[move.kind, move.axes] += move.trip_count
    planned = ledger.payload_by_axes()
    plain = undo_rewrites(collectives, planned, rules).payload
    # The largest first: a reader looks for what costs most.
    keys = sorted({*found, *planned}, key=lambda k: -max(found[k], planned.get(k, 0)))
    return tuple(
        AuditRow(
            kind=kind,
            axes=axes,
            count=count[kind, axes],
            ledger=planned.get((kind, axes), 0),
            program=found[kind, axes],
            wire=wire[kind, axes],
            equivalent=plain[kind, axes],
        )
        for kind, axes in keys
    )


def find_differences(
    collectives: Sequence[CollectiveOp],
    ledger: Ledger,
    layer_flops: Sequence[LayerFlops] = (),
    rules: CompilerRules = NO_REWRITES,
) -> Iterator[AuditError]:
    """Yield what the program does and the plan does not, or the other way round.

    Args:
        collectives: the compiled program's collectives.
        ledger: what the plan predicts.
        layer_flops: the plan's FLOPs and the step's, by layer.
        rules: what else the compiler may do.

    Yields:
        A difference in collectives, with both sums and the layers that may cause it;
        a layer whose work is repeated, with both FLOPs.
    """
    for row in compare_collectives(collectives, ledger, rules):
        if row.ledger == row.equivalent:
            continue
        key = row.kind, row.axes
        layers = {r.layer for r in ledger.rows if (r.kind, r.axes) == key}
        names = [m.op_name for m in collectives if (m.kind, m.axes) == key]
        # The first collective of a layer that the ledger does not list is the likeliest
        # cause; where all are listed, the sum of some layer is wrong.
        strange = [n for n in names if not any(one in n for one in layers)] or names
        yield _audit_error(
            "the compiled step does not move what the plan says",
            "every collective in the program is in the plan's ledger",
            f"{row.kind} over {' x '.join(row.axes) or 'unknown devices'}: "
            f"{row.program:,} B in the program, {row.ledger:,} B in the ledger",
            strange[0] if strange else ", ".join(sorted(layers)),
        )
    # A while loop whose trip count is not in the program: its bytes cannot be summed.
    endless: dict[tuple[str, ...], CollectiveOp] = {}
    for move in collectives:
        if not move.bounded:
            endless.setdefault(move.loops, move)
    for move in endless.values():
        yield _audit_error(
            "the compiled step moves bytes in a loop of unknown length",
            "a loop with a collective in it runs a number of times that is in the "
            "program",
            f"{move.kind}, {move.payload:,} B a trip",
            move.op_name or move.source_location,
        )
    for work in layer_flops:
        # XLA repeats work where it gathers an operand on all devices, without a word.
        if work.is_redundant:
            yield _audit_error(
                "the step repeats work that the plan splits",
                "a layer does on a device what the plan leaves to it",
                f"{work.traced:,} FLOPs a device in the step, "
                f"{work.planned:,} in the ledger",
                work.layer,
            )


def compiled_memory_bytes(compiled: Any) -> int:
    """Return the bytes a compiled program needs on a device, by XLA's own account.

    Arguments, results and temporaries; a donated argument and the result that takes its
    place count once.
    """
    sizes = compiled.memory_analysis()
    total = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return int(total + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes)


def _audit_error(what: str, rule: str, values: str, where: str) -> AuditError:
    """Write a difference in the form of every refusal."""
    parts = (("rule", rule), ("values", values), ("where", where))
    return AuditError("\n".join((what, *(f"  {k:8} {text}" for k, text in parts))))
