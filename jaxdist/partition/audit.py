"""The audit: a compiled program held against the ledger: collectives and work."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxdist.collectives.hlo_collectives import CollectiveOp
from jaxdist.core.errors import FatalError
from jaxdist.partition.flops import LayerFlops
from jaxdist.partition.ledger import Ledger, TrafficKey


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
    """Payload bytes a device that the plan says."""
    program: int
    """Payload bytes a device in the program."""
    wire: int
    """Bytes that a device sends for them, at least."""


def compare_collectives(
    collectives: Sequence[CollectiveOp], ledger: Ledger
) -> tuple[AuditRow, ...]:
    """Set the program's collectives beside the ledger's, by kind and axes."""
    found, wire, count = (
        Counter[TrafficKey](),
        Counter[TrafficKey](),
        Counter[TrafficKey](),
    )
    for move in collectives:
        found[move.kind, move.axes] += move.payload
        wire[move.kind, move.axes] += move.wire_bytes
        count[move.kind, move.axes] += move.trip_count
    planned = ledger.payload_by_axes()
    keys = sorted({*found, *planned}, key=lambda k: -max(found[k], planned.get(k, 0)))
    return tuple(
        AuditRow(
            kind=kind,
            axes=axes,
            count=count[kind, axes],
            ledger=planned.get((kind, axes), 0),
            program=found[kind, axes],
            wire=wire[kind, axes],
        )
        for kind, axes in keys
    )


def find_differences(
    collectives: Sequence[CollectiveOp],
    ledger: Ledger,
    layer_flops: Sequence[LayerFlops] = (),
) -> Iterator[AuditError]:
    """Yield what the program does and the plan does not, or the other way round.

    Args:
        collectives: the compiled program's collectives.
        ledger: what the plan says.
        layer_flops: the plan's FLOPs and the step's, by layer.

    Yields:
        A difference in collectives, with both sums and the layers that may cause it;
        a layer whose work is repeated, with both FLOPs.
    """
    for row in compare_collectives(collectives, ledger):
        if row.ledger != row.program:
            yield AuditError(_bytes_mismatch_message(row, collectives, ledger))
    for move in collectives:
        if not move.bounded:
            yield AuditError(_unbounded_loop_message(move))
    for one in layer_flops:
        if one.is_redundant:
            yield AuditError(_replicated_compute_message(one))


def audit_collectives(
    collectives: Sequence[CollectiveOp],
    ledger: Ledger,
    layer_flops: Sequence[LayerFlops] = (),
) -> tuple[AuditRow, ...]:
    """Compare, and stop at the first difference.

    Raises:
        AuditError: the first of `find_differences`.
    """
    for error in find_differences(collectives, ledger, layer_flops):
        raise error
    return compare_collectives(collectives, ledger)


def _bytes_mismatch_message(
    row: AuditRow, moves: Sequence[CollectiveOp], ledger: Ledger
) -> str:
    """Say what differs and which layers' collectives they are."""
    axes = " x ".join(row.axes) or "unknown devices"
    layers = {r.layer for r in ledger.rows if (r.kind, r.axes) == (row.kind, row.axes)}
    names = [m.op_name for m in moves if (m.kind, m.axes) == (row.kind, row.axes)]
    strange = [n for n in names if not any(layer in n for layer in layers)] or names
    return _format_message(
        "the compiled step does not move what the plan says",
        "every collective in the program is in the plan's ledger",
        f"{row.kind} over {axes}: {row.program:,} B in the program, "
        f"{row.ledger:,} B in the ledger",
        strange[0] if strange else ", ".join(sorted(layers)),
    )


def _unbounded_loop_message(move: CollectiveOp) -> str:
    return _format_message(
        "the compiled step moves bytes in a loop of unknown length",
        "a loop with a collective in it runs a number of times that is in the program",
        f"{move.kind}, {move.payload:,} B a trip",
        move.op_name or move.source_location,
    )


def _replicated_compute_message(work: LayerFlops) -> str:
    return _format_message(
        "the step repeats work that the plan splits",
        "a layer does on a device what the plan leaves to it",
        f"{work.traced:,} FLOPs a device in the step, {work.planned:,} in the ledger",
        work.layer,
    )


def _format_message(what: str, rule: str, values: str, where: str) -> str:
    parts = (("rule", rule), ("values", values), ("where", where))
    return "\n".join((what, *(f"  {name:8} {text}" for name, text in parts)))
