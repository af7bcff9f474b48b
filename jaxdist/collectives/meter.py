"""The traffic report: bytes a device sends, as planned, as written, as compiled."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from jaxdist.collectives.hlo_collectives import CollectiveOp, wire_bytes
from jaxdist.core.text.formatting import format_count

CollectiveKey = tuple[str, tuple[str, ...], int]
"""Kind, axes, and devices that take part together."""

_HEADS: Final = {"formula": "formula", "stablehlo": "StableHLO", "compiled": "compiled"}
_LOOPS: Final = "+  a loop in it is of unknown length and counts once"


@dataclass(frozen=True, kw_only=True)
class TrafficReportRow:
    """The bytes a device sends at least for one kind of collective over some axes."""

    kind: str
    """Collective, as the compiler names it."""
    axes: tuple[str, ...]
    """Axes it runs over; empty where its groups are no axes."""
    group: int
    """Devices that take part together."""
    formula: int | None
    """Bytes by the formulas of the plan; None without a plan."""
    stablehlo: int | None
    """Bytes of the lowered program, as it was written; None without one."""
    compiled: int
    """Bytes of the compiled program, as this backend moves them."""
    endless: tuple[str, ...] = ()
    """Columns in which a loop of unknown length counts once."""


@dataclass(frozen=True, kw_only=True)
class TrafficReport:
    """The bytes that a device sends in one run of a program, three times."""

    mesh: Mapping[str, int]
    """Devices along each axis."""
    columns: tuple[str, ...]
    """The known columns: of `formula`, `stablehlo`, `compiled`."""
    rows: tuple[TrafficReportRow, ...]
    """The largest first."""

    def total(self, column: str) -> int:
        """Sum a known column."""
        return sum(getattr(row, column) for row in self.rows)

    def tree(self) -> dict[str, Any]:
        """Return all of it as plain values, bytes."""
        return {
            "mesh": dict(self.mesh),
            "rows": [asdict(row) for row in self.rows],
            "total": {column: self.total(column) for column in self.columns},
        }

    def __str__(self) -> str:
        heads = (f"{_HEADS[name]}, B" for name in self.columns)
        lines = [("collective", "axes", *heads)]
        for row in self.rows:
            axes = " x ".join(row.axes) or f"{row.group} devices"
            figures = (
                format_count(getattr(row, name)) + " +" * (name in row.endless)
                for name in self.columns
            )
            lines.append((row.kind, axes, *figures))
        sums = (format_count(self.total(name)) for name in self.columns)
        lines.append(("a device sends, at least", "", *sums))
        # Words to the left, numbers to the right.
        wide = [max(map(len, column)) for column in zip(*lines)]
        told = []
        for line in lines:
            left = (f"{word:{n}}" for word, n in zip(line[:2], wide[:2]))
            right = (f"{word:>{n}}" for word, n in zip(line[2:], wide[2:]))
            told.append("  " + "   ".join((*left, *right)))
        if any(row.endless for row in self.rows):
            told.append(f"\n  {_LOOPS}")
        return "\n".join(told)


def build_traffic_report(
    mesh: Mapping[str, int],
    *,
    compiled: Sequence[CollectiveOp],
    stablehlo: Sequence[CollectiveOp] | None = None,
    formula: Mapping[CollectiveKey, int] | None = None,
) -> TrafficReport:
    """Report the bytes of a program side by side.

    Args:
        mesh: {axis: devices along it}.
        compiled: `read_collectives` of the compiled program.
        stablehlo: `read_stablehlo` of the lowered program.
        formula: payload bytes by the plan.
    """
    payloads: dict[str, Mapping[CollectiveKey, int]] = {}
    if formula is not None:
        payloads["formula"] = formula
    endless: dict[str, set[CollectiveKey]] = {}
    for name, moves in (("stablehlo", stablehlo), ("compiled", compiled)):
        if moves is None:
            continue
        total: Counter[CollectiveKey] = Counter()
        for move in moves:
            total[move.kind, move.axes, move.group_size] += move.payload
        payloads[name] = total
        endless[name] = {
            (move.kind, move.axes, move.group_size)
            for move in moves
            if not move.bounded
        }

    rows = []
    for key in {key for column in payloads.values() for key in column}:
        kind, axes, group = key
        # A kind that a column does not have counts as 0, a column that is unknown as
        # None.
        sent: dict[str, Any] = {
            name: wire_bytes(kind, payloads[name].get(key, 0), group)
            if name in payloads
            else None
            for name in _HEADS
        }
        loops = tuple(name for name, ones in endless.items() if key in ones)
        rows.append(
            TrafficReportRow(kind=kind, axes=axes, group=group, endless=loops, **sent)
        )
    # The key breaks ties: a set has another order in each process.
    rows.sort(
        key=lambda row: (
            max(row.formula or 0, row.stablehlo or 0, row.compiled),
            row.kind,
            row.axes,
            row.group,
        ),
        reverse=True,
    )
    return TrafficReport(mesh=mesh, columns=tuple(payloads), rows=tuple(rows))
