"""The meter: bytes that a device sends, as planned, as written, and as compiled."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """What a device sends at least for one kind of collective over one set of axes."""

    kind: str
    """Collective, as the compiler names it."""
    axes: tuple[str, ...]
    """Axes it runs over; empty where its groups are no axes."""
    group: int
    """Devices that take part together."""
    formula: int | None
    """Bytes by the plan; None without a plan."""
    stablehlo: int | None
    """Bytes of the lowered program: what was written; None where it is not at hand."""
    compiled: int
    """Bytes of the compiled program: what this backend moves."""
    endless: tuple[str, ...] = ()
    """Columns in which a loop of unknown length counts once."""


@dataclass(frozen=True, kw_only=True)
class TrafficReport:
    """The bytes that a device sends in one run of a program, three times."""

    mesh: Mapping[str, int]
    """Devices along each axis."""
    columns: tuple[str, ...]
    """The columns that are at hand: of `formula`, `stablehlo`, `compiled`."""
    rows: tuple[TrafficReportRow, ...]
    """The largest first."""

    def total(self, column: str) -> int:
        """Sum a column that is at hand."""
        return sum(getattr(row, column) for row in self.rows)

    def tree(self) -> dict[str, Any]:
        """Return all of it as plain values, bytes."""
        return {
            "mesh": dict(self.mesh),
            "rows": [asdict(row) for row in self.rows],
            "total": {column: self.total(column) for column in self.columns},
        }

    def __str__(self) -> str:
        return "\n".join(_table(self))


def build_traffic_report(
    mesh: Mapping[str, int],
    *,
    compiled: Sequence[CollectiveOp],
    stablehlo: Sequence[CollectiveOp] | None = None,
    formula: Mapping[CollectiveKey, int] | None = None,
) -> TrafficReport:
    """Set the bytes of a program side by side.

    Args:
        mesh: {axis: devices along it}.
        compiled: `read_collectives` of the compiled program.
        stablehlo: `read_stablehlo` of the lowered program.
        formula: payload bytes that a plan says.
    """
    columns = {
        "formula": formula,
        "stablehlo": None if stablehlo is None else _payloads(stablehlo),
        "compiled": _payloads(compiled),
    }
    endless = {"stablehlo": _endless(stablehlo or ()), "compiled": _endless(compiled)}
    keys = {key for column in columns.values() for key in column or ()}
    rows = (
        TrafficReportRow(
            kind=key[0],
            axes=key[1],
            group=key[2],
            endless=tuple(name for name, ones in endless.items() if key in ones),
            **{name: _sent(key, column) for name, column in columns.items()},
        )
        for key in keys
    )
    return TrafficReport(
        mesh=mesh,
        columns=tuple(name for name, found in columns.items() if found is not None),
        rows=tuple(sorted(rows, key=_size, reverse=True)),
    )


def _payloads(moves: Iterable[CollectiveOp]) -> dict[CollectiveKey, int]:
    total: Counter[CollectiveKey] = Counter()
    for move in moves:
        total[_key(move)] += move.payload
    return dict(total)


def _endless(moves: Iterable[CollectiveOp]) -> set[CollectiveKey]:
    return {_key(move) for move in moves if not move.bounded}


def _key(move: CollectiveOp) -> CollectiveKey:
    return move.kind, move.axes, move.group_size


def _sent(key: CollectiveKey, payloads: Mapping[CollectiveKey, int] | None) -> Any:
    if payloads is None:
        return None
    return wire_bytes(key[0], payloads.get(key, 0), key[2])


def _size(row: TrafficReportRow) -> tuple[int, str, tuple[str, ...]]:
    return max(row.formula or 0, row.stablehlo or 0, row.compiled), row.kind, row.axes


def _table(meter: TrafficReport) -> Iterator[str]:
    """Lay out a row a kind and axes, numbers to the right, and the sums."""
    heads = (f"{_HEADS[name]}, B" for name in meter.columns)
    lines = [("collective", "axes", *heads)]
    for row in meter.rows:
        axes = " x ".join(row.axes) or f"{row.group} devices"
        lines.append((row.kind, axes, *(_figure(row, name) for name in meter.columns)))
    sums = (format_count(meter.total(name)) for name in meter.columns)
    lines.append(("a device sends, at least", "", *sums))
    wide = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        left = (f"{word:{n}}" for word, n in zip(line[:2], wide[:2]))
        right = (f"{word:>{n}}" for word, n in zip(line[2:], wide[2:]))
        yield "  " + "   ".join((*left, *right))
    if any(row.endless for row in meter.rows):
        yield f"\n  {_LOOPS}"


def _figure(row: TrafficReportRow, column: str) -> str:
    return format_count(getattr(row, column)) + " +" * (column in row.endless)
