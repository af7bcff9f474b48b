"""Parts of a platform: devices, switches and cables, as a file lists them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.core.cluster.level import SPEED_OF_LIGHT
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text.parsing import (
    parse_bandwidth,
    parse_duration,
    parse_length,
)
from jaxdist.core.validation import check_fields
from jaxdist.network.platforms.expand import loop_iterations
from jaxdist.network.platforms.fields import (
    YamlTable,
    missing_field_error,
    read_choice,
    read_count,
    read_entries,
    read_name,
)

DUPLEX_MODES: Final = ("full", "shared")
_DEVICE_FIELDS: Final = ("name", "for")
_SWITCH_FIELDS: Final = ("name", "for", "bandwidth", "latency", "ports")
_KIND_FIELDS: Final = ("bandwidth", "latency", "duplex", "length")
_CABLE_FIELDS: Final = ("from", "to", "for", "kind", *_KIND_FIELDS)


@dataclass(frozen=True, kw_only=True)
class PlatformVertex:
    """A device or a switch."""

    name: str
    """As cables name it."""
    capacity: float = np.inf
    """Bytes a second that its inside carries."""
    latency: float = 0.0
    """Seconds that its inside takes."""
    ports: int | None = None
    """Cables that it may have; None is any number."""
    is_device: bool = False
    """Whether ranks can be on it."""


@dataclass(frozen=True, kw_only=True)
class PlatformCable:
    """Joins two vertices."""

    source: int
    target: int
    capacity: float
    latency: float
    shared: bool


def read_devices(tree: YamlTable) -> Iterator[PlatformVertex]:
    """Yield the devices, in their order."""
    for entry in read_entries(tree, "devices", _DEVICE_FIELDS):
        for numbers in loop_iterations(entry.get("for"), "devices"):
            yield PlatformVertex(name=read_name(entry, "name", numbers), is_device=True)


def read_switches(tree: YamlTable) -> Iterator[PlatformVertex]:
    """Yield the switches, in their order."""
    for entry in (
        read_entries(tree, "switches", _SWITCH_FIELDS) if "switches" in tree else ()
    ):
        where = f"switch {entry.get('name')}"
        wide = entry.get("bandwidth")
        for numbers in loop_iterations(entry.get("for"), "switches"):
            yield PlatformVertex(
                name=read_name(entry, "name", numbers),
                capacity=np.inf if wide is None else parse_bandwidth(wide, where),
                latency=parse_duration(entry.get("latency", 0.0), where),
                ports=read_count(entry, "ports", 0) or None,
            )


def read_cables(
    tree: YamlTable, vertex_indices: Mapping[str, int], duplex: str
) -> Iterator[PlatformCable]:
    """Yield the cables, between the numbers of vertices."""
    kinds = tree.get("kinds", {})
    seen: dict[tuple[int, int], str] = {}
    for entry in read_entries(tree, "cables", _CABLE_FIELDS):
        whole = {**_cable_kind(kinds, entry), **entry}
        where = f"cable from {entry.get('from')} to {entry.get('to')}"
        for key in ("bandwidth", "latency"):
            if key not in whole:
                raise missing_field_error(where, key)
        wide, late = (
            parse_bandwidth(whole["bandwidth"], where),
            _read_latency(whole, where),
        )
        shared = read_choice({"duplex": duplex, **whole}, "duplex", DUPLEX_MODES)
        for numbers in loop_iterations(entry.get("for"), "cables"):
            names = [read_name(entry, end, numbers) for end in ("from", "to")]
            low, high = (_vertex_index(name, vertex_indices, where) for name in names)
            pair = (min(low, high), max(low, high))
            if low == high or pair in seen:
                raise _duplicate_cable_error(names, where)
            seen[pair] = where
            yield PlatformCable(
                source=low,
                target=high,
                capacity=wide,
                latency=late,
                shared=shared == "shared",
            )


def _read_latency(cable: YamlTable, where: str) -> float:
    late = parse_duration(cable["latency"], where)
    length = parse_length(cable["length"], where) if "length" in cable else 0.0
    if late < length / SPEED_OF_LIGHT:
        raise BadInput(
            f"{where} is faster than light",
            rule="a latency is at least length / 299,792,458 m/s",
            values=f"latency: {cable['latency']}, length: {cable['length']}, "
            f"{1e9 * length / SPEED_OF_LIGHT:.3g} ns for light",
            remedy=f"latency: {1e9 * length / SPEED_OF_LIGHT * 1.5:.3g} ns, as in "
            "glass",
        )
    return late


def _cable_kind(kinds: object, entry: YamlTable) -> YamlTable:
    if "kind" not in entry:
        return {}
    table = kinds if isinstance(kinds, dict) else {}
    if entry["kind"] not in table:
        near = did_you_mean(str(entry["kind"]), map(str, table))
        raise BadInput(
            f"no kind of cable named {entry['kind']}",
            rule=f"kinds has {', '.join(map(str, table)) or 'none'}",
            values=f"kind: {entry['kind']}",
            remedy=f"did you mean {near}?" if near else "kinds: {...}",
        )
    found = table[entry["kind"]]
    check_fields(found, _KIND_FIELDS, f"kind {entry['kind']}")
    return dict(found)


def vertex_indices(vertices: Sequence[PlatformVertex]) -> dict[str, int]:
    """Return the numbers of vertices by name."""
    places: dict[str, int] = {}
    for vertex in vertices:
        if vertex.name in places:
            raise BadInput(
                f"two are named {vertex.name}",
                rule="each device and switch has a name of its own",
                values=f"name: {vertex.name}",
                remedy=f"name: {vertex.name}{{n}}, for: {{n: 2}}",
            )
        places[vertex.name] = len(places)
    return places


def _vertex_index(name: str, places: Mapping[str, int], where: str) -> int:
    if name not in places:
        near = did_you_mean(name, places)
        raise BadInput(
            f"{where}: no device or switch named {name}",
            rule="a cable joins two that are listed",
            values=name,
            remedy=f"did you mean {near}?" if near else f"an entry named {name}",
        )
    return places[name]


def check_ports(
    vertices: Sequence[PlatformVertex], cables: Sequence[PlatformCable]
) -> None:
    """Refuse more cables at a switch than it has ports."""
    ends = np.bincount(
        [end for cable in cables for end in (cable.source, cable.target)],
        minlength=len(vertices),
    )
    for vertex, used in zip(vertices, ends.tolist()):
        if vertex.ports is not None and used > vertex.ports:
            raise BadInput(
                f"{vertex.name} has more cables than ports",
                rule="each cable takes a port",
                values=f"{used} cables, ports: {vertex.ports}",
                remedy=f"ports: {used}, or fewer cables",
            )


def _duplicate_cable_error(names: Sequence[str], where: str) -> BadInput:
    return BadInput(
        f"{where}: {names[0]} and {names[1]} cannot be joined so",
        rule="a cable joins two that differ, and no two cables join the same two",
        values=" - ".join(names),
        remedy="one cable with the bandwidth of both, and no cable to itself",
    )
