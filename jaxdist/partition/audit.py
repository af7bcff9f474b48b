"""The audit: a compiled program's collectives held against the plan's ledger."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxdist.collectives.hlo import Move
from jaxdist.core.errors import Failed
from jaxdist.partition.ledger import Key, Ledger


class AuditError(Failed):
    """The compiled program moves what the plan does not, or the other way round."""


@dataclass(frozen=True, kw_only=True)
class Row:
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


def compare(moves: Sequence[Move], ledger: Ledger) -> tuple[Row, ...]:
    """Set the program's collectives beside the ledger's, by kind and axes."""
    found: Counter[Key] = Counter()
    count: Counter[Key] = Counter()
    for move in moves:
        found[move.kind, move.axes] += move.payload
        count[move.kind, move.axes] += 1
    planned = ledger.by_axes()
    keys = sorted({*found, *planned}, key=lambda k: -max(found[k], planned.get(k, 0)))
    return tuple(
        Row(
            kind=kind,
            axes=axes,
            count=count[kind, axes],
            ledger=planned.get((kind, axes), 0),
            program=found[kind, axes],
        )
        for kind, axes in keys
    )


def check(moves: Sequence[Move], ledger: Ledger) -> tuple[Row, ...]:
    """Compare, and stop at the first difference.

    Raises:
        AuditError: naming the collective, both sums, and the layers that may cause it.
    """
    rows = compare(moves, ledger)
    for row in rows:
        if row.ledger != row.program:
            raise AuditError(_message(row, moves, ledger))
    return rows


def _message(row: Row, moves: Sequence[Move], ledger: Ledger) -> str:
    """Say what differs and which layers' collectives they are."""
    axes = " x ".join(row.axes) or "unknown devices"
    layers = {r.layer for r in ledger.rows if (r.kind, r.axes) == (row.kind, row.axes)}
    names = [m.name for m in moves if (m.kind, m.axes) == (row.kind, row.axes)]
    strange = [n for n in names if not any(layer in n for layer in layers)] or names
    return "\n".join(
        (
            "the compiled step does not move what the plan says",
            "  rule     every collective in the program is in the plan's ledger",
            f"  values   {row.kind} over {axes}: {row.program:,} B in the program, "
            f"{row.ledger:,} B in the ledger",
            f"  where    {strange[0] if strange else ', '.join(sorted(layers))}",
        )
    )
