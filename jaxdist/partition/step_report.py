"""A survey: what a compiled step moves and does, with no plan to hold it against."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from jaxdist.collectives.hlo_collectives import CollectiveOp
from jaxdist.core.text.formatting import format_count, format_percent, format_size

GATHER_HINTS: Final = {
    "conv_general_dilated": "a grouped convolution whose batch is split: XLA gathers "
    "the batch and repeats the work; call it inside jax.shard_map over that axis",
    "dot_general": "a product over a dim that one side alone splits: split both alike; "
    "meant, where weights are split to save memory",
    "reshape": "a reshape that merges a split dim into another: keep the split dim "
    "outermost",
    "concatenate": "a concatenation along a split dim: join along another",
    "pad": "padding of a split dim: exchange the edge rows inside jax.shard_map",
    "sort": "a sort along a split dim: sort along another",
    "gather": "indexing into a split dim: index inside jax.shard_map",
    "dynamic_slice": "a slice of a split dim: slice inside jax.shard_map",
}
"""What makes the compiler gather, by the operation that it gathers for."""

_REDUNDANCY_THRESHOLD: Final = 1.5
"""More work than written by this much is a repeat; fusion repeats a little as well."""


@dataclass(frozen=True, kw_only=True)
class CollectiveSite:
    """The collectives of one kind, over the same axes, from one line of Python."""

    kind: str
    """Collective, as the compiler names it."""
    axes: tuple[str, ...]
    """Axes it runs over; empty where no mesh is known, or its groups are no axes."""
    group: int
    """Devices that take part together."""
    source: str
    """`file:line`, or the operation where the line is not known."""
    operation: str
    """The operation it is made for: `psum`, `conv_general_dilated`."""
    count: int
    """How often they run."""
    payload: int
    """Bytes of their results on one device."""
    wire: int
    """Bytes that a device sends for them, at least."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What a compiled step moves and does."""

    mesh: Mapping[str, int]
    """Devices along each axis; `devices` alone where no mesh is known."""
    moves: tuple[CollectiveOp, ...]
    """Its collectives."""
    inputs: Mapping[str, int]
    """Bytes of each whole array that it is called on, by its path."""
    flops_device: int
    """FLOPs of one device, by XLA's own count; the body of a loop counts once."""
    flops_written: int | None
    """FLOPs of the function as it is written; None where that is not known."""
    memory_bytes: int
    """Memory a device needs, by the compiler."""

    @property
    def devices(self) -> int:
        """Devices that run it."""
        total = 1
        for along in self.mesh.values():
            total *= along
        return total

    @property
    def repeats(self) -> float | None:
        """All devices' work, as a multiple of the work as it is written."""
        if not self.flops_written:
            return None
        return self.flops_device * self.devices / self.flops_written

    @property
    def places(self) -> tuple[CollectiveSite, ...]:
        """The collectives by line of Python, the largest first."""
        groups: dict[Any, list[CollectiveOp]] = defaultdict(list)
        for move in self.moves:
            asked = move.source_location or operation_name(move)
            groups[move.kind, move.axes, asked, operation_name(move)].append(move)
        places = (_make_site(group) for group in groups.values())
        return tuple(sorted(places, key=lambda place: -place.payload))

    @property
    def gathers(self) -> tuple[CollectiveOp, ...]:
        """The all-gathers that the compiler chose, not the function's author."""
        return tuple(
            move
            for move in self.moves
            if move.kind == "all-gather" and not operation_name(move).startswith("all_")
        )

    @property
    def findings(self) -> tuple[str, ...]:
        """What is likely to be a mistake, a sentence each; empty is good."""
        return (*map(self._gathered, self.gathers), *self._repeated())

    def tree(self) -> dict[str, Any]:
        """Return all of it as plain values, bytes and FLOPs."""
        return {
            "mesh": dict(self.mesh),
            "devices": self.devices,
            "collectives": [asdict(place) for place in self.places],
            "unplanned_all_gathers": len(self.gathers),
            "memory_bytes": self.memory_bytes,
            "flops": {"device": self.flops_device, "written": self.flops_written},
            "repeats": self.repeats,
            "findings": list(self.findings),
        }

    def _gathered(self, move: CollectiveOp) -> str:
        each, operation = move.payload // move.trip_count, operation_name(move)
        whole = [name for name, size in self.inputs.items() if size == each]
        what = f"the whole of {whole[0]}" if len(whole) == 1 else "a split array"
        axes = " x ".join(move.axes) or f"{move.group_size} devices"
        hint = GATHER_HINTS.get(
            operation, "jax.shard_map leaves the compiler nothing to add"
        )
        return (
            f"unplanned all-gather over {axes}, {format_size(each)}: {what}, for "
            f"{operation} "
            f"at {relative_source(move.source_location) or 'an unknown line'}; {hint}"
        )

    def _repeated(self) -> Iterator[str]:
        if self.repeats and self.repeats > _REDUNDANCY_THRESHOLD:
            yield (
                f"replicated compute: {self.devices} devices together do "
                f"{self.repeats:.1f} times the work of the function as it is written"
            )

    def __str__(self) -> str:
        """Lay it out as `jaxdist audit` prints it."""
        return "\n".join(
            (*self._facts(), "", *_format_table(self.places), *self._advice())
        )

    def _facts(self) -> Iterator[str]:
        axes = " x ".join(f"{name} {n}" for name, n in self.mesh.items() if n > 1)
        yield f"  mesh     {axes or 'one device'}"
        work = f"{format_size(self.flops_device, 'FLOP')} a device"
        if self.flops_written and self.repeats is not None:
            share = format_percent(self.repeats / self.devices, 2)
            written = format_size(self.flops_written, "FLOP")
            work += f", {share} of {written}: repeats {self.repeats:.2f}"
        yield f"  work     {work}"
        yield f"  memory   {format_size(self.memory_bytes)} a device"
        sent = sum(move.wire_bytes for move in self.moves)
        yield f"  sends    {format_size(sent)} a device"

    def _advice(self) -> Iterator[str]:
        if any(not move.bounded for move in self.moves):
            yield "  a loop of unknown length counts once"
        for finding in self.findings:
            yield f"\nfound: {finding}"


def operation_name(collective: CollectiveOp) -> str:
    """Return the primitive that a collective is made for.

    >>> from jaxdist.collectives.hlo_collectives import CollectiveOp
    >>> name = "jit(step)/transpose(jvp(conv1))/conv_general_dilated"
    >>> sizes = {"group_size": 2, "payload": 0}
    >>> operation_name(CollectiveOp(kind="", axes=(), **sizes, op_name=name))
    'conv_general_dilated'
    """
    return collective.op_name.rsplit("/", 1)[-1].strip("()")


def relative_source(source: str) -> str:
    """Write a path from the folder one is in, where it lies below that."""
    here = f"{Path.cwd()}/"
    return source.removeprefix(here)


def _make_site(moves: list[CollectiveOp]) -> CollectiveSite:
    first, total = moves[0], Counter[str]()
    for move in moves:
        total.update(count=move.trip_count, payload=move.payload, wire=move.wire_bytes)
    return CollectiveSite(
        kind=first.kind,
        axes=first.axes,
        group=first.group_size,
        source=first.source_location or operation_name(first),
        operation=operation_name(first),
        **total,
    )


def _format_table(places: Iterable[CollectiveSite]) -> Iterator[str]:
    """Lay out a row a place, numbers to the right."""
    rows = [("collective", "axes", "count", "bytes", "sent", "at")]
    for place in places:
        axes = " x ".join(place.axes) or f"{place.group} devices"
        sizes = (
            format_count(place.count),
            format_size(place.payload),
            format_size(place.wire),
        )
        rows.append((place.kind, axes, *sizes, relative_source(place.source)))
    wide = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        left = (f"{word:{n}}" for word, n in zip(row[:2], wide[:2]))
        right = (f"{word:>{n}}" for word, n in zip(row[2:5], wide[2:5]))
        yield "  " + "   ".join((*left, *right, row[5]))
