"""Parts of a platform: devices, switches and cables, as a file lists them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text.parsing import LIGHT, bandwidth, metres, seconds
from jaxdist.core.validation import check_fields
from jaxdist.network.platforms.expand import rounds
from jaxdist.network.platforms.fields import (
    YamlTable,
    choice,
    count,
    entries,
    missing,
    name_of,
)

DUPLEX: Final = ("full", "shared")
_DEVICE: Final = ("name", "for")
_SWITCH: Final = ("name", "for", "bandwidth", "latency", "ports")
_KIND: Final = ("bandwidth", "latency", "duplex", "length")
_CABLE: Final = ("from", "to", "for", "kind", *_KIND)


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

    low: int
    high: int
    capacity: float
    latency: float
    shared: bool


def devices_of(tree: YamlTable) -> Iterator[PlatformVertex]:
    """Yield the devices, in their order."""
    for entry in entries(tree, "devices", _DEVICE):
        for numbers in rounds(entry.get("for"), "devices"):
            yield PlatformVertex(name=name_of(entry, "name", numbers), is_device=True)


def switches_of(tree: YamlTable) -> Iterator[PlatformVertex]:
    """Yield the switches, in their order."""
    for entry in entries(tree, "switches", _SWITCH) if "switches" in tree else ():
        where = f"switch {entry.get('name')}"
        wide = entry.get("bandwidth")
        for numbers in rounds(entry.get("for"), "switches"):
            yield PlatformVertex(
                name=name_of(entry, "name", numbers),
                capacity=np.inf if wide is None else bandwidth(wide, where),
                latency=seconds(entry.get("latency", 0.0), where),
                ports=count(entry, "ports", 0) or None,
            )


def cables_of(
    tree: YamlTable, places: Mapping[str, int], duplex: str
) -> Iterator[PlatformCable]:
    """Yield the cables, between the numbers of vertices."""
    kinds = tree.get("kinds", {})
    seen: dict[tuple[int, int], str] = {}
    for entry in entries(tree, "cables", _CABLE):
        whole = {**_kind(kinds, entry), **entry}
        where = f"cable from {entry.get('from')} to {entry.get('to')}"
        for key in ("bandwidth", "latency"):
            if key not in whole:
                raise missing(where, key)
        wide, late = bandwidth(whole["bandwidth"], where), _late(whole, where)
        shared = choice({"duplex": duplex, **whole}, "duplex", DUPLEX)
        for numbers in rounds(entry.get("for"), "cables"):
            names = [name_of(entry, end, numbers) for end in ("from", "to")]
            low, high = (_place(name, places, where) for name in names)
            pair = (min(low, high), max(low, high))
            if low == high or pair in seen:
                raise _twice(names, where)
            seen[pair] = where
            yield PlatformCable(
                low=low,
                high=high,
                capacity=wide,
                latency=late,
                shared=shared == "shared",
            )


def _late(cable: YamlTable, where: str) -> float:
    late = seconds(cable["latency"], where)
    length = metres(cable["length"], where) if "length" in cable else 0.0
    if late < length / LIGHT:
        raise BadInput(
            f"{where} is faster than light",
            rule="a latency is at least length / 299,792,458 m/s",
            values=f"latency: {cable['latency']}, length: {cable['length']}, "
            f"{1e9 * length / LIGHT:.3g} ns for light",
            remedy=f"latency: {1e9 * length / LIGHT * 1.5:.3g} ns, as in glass",
        )
    return late


def _kind(kinds: object, entry: YamlTable) -> YamlTable:
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
    check_fields(found, _KIND, f"kind {entry['kind']}")
    return dict(found)


def places_of(vertices: Sequence[PlatformVertex]) -> dict[str, int]:
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


def _place(name: str, places: Mapping[str, int], where: str) -> int:
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
        [end for cable in cables for end in (cable.low, cable.high)],
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


def _twice(names: Sequence[str], where: str) -> BadInput:
    return BadInput(
        f"{where}: {names[0]} and {names[1]} cannot be joined so",
        rule="a cable joins two that differ, and no two cables join the same two",
        values=" - ".join(names),
        remedy="one cable with the bandwidth of both, and no cable to itself",
    )
