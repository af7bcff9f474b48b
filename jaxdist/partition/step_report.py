"""The report on a compiled step that no plan describes: collectives, work, memory."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
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
"""Why the compiler gathers and what avoids it, by the operation it gathers for."""

_REDUNDANCY_THRESHOLD: Final = 1.5
"""Work over that written, above which it is a finding: fusion repeats a little too."""


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
        return prod(self.mesh.values())

    @property
    def repeats(self) -> float | None:
        """All devices' work, as a multiple of the work as it is written."""
        # A lowered or compiled step has no jaxpr to count.
        if not self.flops_written:
            return None
        return self.flops_device * self.devices / self.flops_written

    @property
    def places(self) -> tuple[CollectiveSite, ...]:
        """The collectives by line of Python, the largest first."""
        groups: dict[Any, list[CollectiveOp]] = defaultdict(list)
        for move in self.moves:
            operation = operation_name(move)
            source = move.source_location or operation
            # One line of Python may be many collectives: of each pass, array and loop.
            groups[move.kind, move.axes, source, operation].append(move)
        places = [
            CollectiveSite(
                kind=kind,
                axes=axes,
                group=moves[0].group_size,
                source=source,
                operation=operation,
                count=sum(move.trip_count for move in moves),
                payload=sum(move.payload for move in moves),
                wire=sum(move.wire_bytes for move in moves),
            )
            for (kind, axes, source, operation), moves in groups.items()
        ]
        return tuple(sorted(places, key=lambda place: -place.payload))

    @property
    def gathers(self) -> tuple[CollectiveOp, ...]:
        """The all-gathers that the compiler chose, not the function's author."""
        return tuple(
            move
            for move in self.moves
            # One that was written has the name of its primitive, `all_gather`.
            if move.kind == "all-gather" and not operation_name(move).startswith("all_")
        )

    @property
    def findings(self) -> tuple[str, ...]:
        """What is likely to be a mistake, a sentence each; empty is good."""
        found = []
        for move in self.gathers:
            # Payload counts every trip of a loop; an array is as large as one trip.
            each, operation = move.payload // move.trip_count, operation_name(move)
            # An argument of just this size is most likely what was gathered.
            whole = [name for name, size in self.inputs.items() if size == each]
            what = f"the whole of {whole[0]}" if len(whole) == 1 else "a split array"
            axes = " x ".join(move.axes) or f"{move.group_size} devices"
            at = relative_source(move.source_location) or "an unknown line"
            hint = GATHER_HINTS.get(
                operation, "jax.shard_map leaves the compiler nothing to add"
            )
            found.append(
                f"unplanned all-gather over {axes}, {format_size(each)}: {what}, for "
                f"{operation} at {at}; {hint}"
            )
        if self.repeats and self.repeats > _REDUNDANCY_THRESHOLD:
            found.append(
                f"replicated compute: {self.devices} devices together do "
                f"{self.repeats:.1f} times the work of the function as it is written"
            )
        return tuple(found)

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

    def __str__(self) -> str:
        """Format it as `jaxdist audit` prints it."""
        axes = " x ".join(f"{name} {n}" for name, n in self.mesh.items() if n > 1)
        work = f"{format_size(self.flops_device, 'FLOP')} a device"
        if self.flops_written and self.repeats is not None:
            # Of the work as it is written, the share that each device does: 1 / devices
            # is ideal.
            share = format_percent(self.repeats / self.devices, 2)
            written = format_size(self.flops_written, "FLOP")
            work += f", {share} of {written}: repeats {self.repeats:.2f}"
        # Bytes sent, not payload: what the links must carry at least.
        sent = sum(move.wire_bytes for move in self.moves)
        lines = [
            f"  mesh     {axes or 'one device'}",
            f"  work     {work}",
            f"  memory   {format_size(self.memory_bytes)} a device",
            f"  sends    {format_size(sent)} a device",
            "",
        ]

        # The table: a row for each place, numbers to the right.
        rows = [("collective", "axes", "count", "bytes", "sent", "at")]
        for place in self.places:
            rows.append(
                (
                    place.kind,
                    " x ".join(place.axes) or f"{place.group} devices",
                    format_count(place.count),
                    format_size(place.payload),
                    format_size(place.wire),
                    relative_source(place.source),
                )
            )
        wide = [max(len(row[column]) for row in rows) for column in range(6)]
        for row in rows:
            left = (f"{word:{n}}" for word, n in zip(row[:2], wide[:2]))
            right = (f"{word:>{n}}" for word, n in zip(row[2:5], wide[2:5]))
            lines.append("  " + "   ".join((*left, *right, row[5])))

        if any(not move.bounded for move in self.moves):
            lines.append("  a loop of unknown length counts once")
        # A sentence each, apart from the table, to be read or searched for.
        lines += [f"\nfound: {finding}" for finding in self.findings]
        return "\n".join(lines)


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
    """Return a path relative to the working directory, where it lies below that."""
    return source.removeprefix(f"{Path.cwd()}/")
