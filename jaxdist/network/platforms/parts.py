"""Parts of a platform: devices, switches and cables, as a file lists them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jaxdist.core.cluster.cluster import SPEED_OF_LIGHT
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text.parsing import (
    parse_bandwidth,
    parse_duration,
    parse_length,
)
from jaxdist.core.validation import check_fields
from jaxdist.network.platforms.expand import fill_template, loop_iterations

YamlTable = Mapping[str, Any]
DUPLEX_MODES: Final = ("full", "shared")
_DEVICE_FIELDS: Final = ("name", "for")
_SWITCH_FIELDS: Final = ("name", "for", "bandwidth", "latency", "ports")
_KIND_FIELDS: Final = ("bandwidth", "latency", "duplex", "length")
_CABLE_FIELDS: Final = ("from", "to", "for", "kind", *_KIND_FIELDS)


@dataclass(frozen=True, kw_only=True)
class PlatformVertex:
    """A device or a switch."""

    name: str
    """Name in the file."""
    capacity: float = np.inf
    """Bytes a second of its backplane."""
    latency: float = 0.0
    """Seconds of its backplane."""
    ports: int | None = None
    """Maximum of cables; None is any number."""
    is_device: bool = False
    """Whether ranks can be placed on it."""


@dataclass(frozen=True, kw_only=True)
class PlatformCable:
    """A cable between two vertices, by index."""

    source: int
    target: int
    capacity: float
    latency: float
    shared: bool


def read_devices(tree: YamlTable) -> Iterator[PlatformVertex]:
    """Yield the devices, in their order."""
    for entry in _read_entries(tree, "devices", _DEVICE_FIELDS):
        for numbers in loop_iterations(entry.get("for"), "devices"):
            yield PlatformVertex(
                name=_read_name(entry, "name", numbers), is_device=True
            )


def read_switches(tree: YamlTable) -> Iterator[PlatformVertex]:
    """Yield the switches, in their order."""
    for entry in (
        _read_entries(tree, "switches", _SWITCH_FIELDS) if "switches" in tree else ()
    ):
        where = f"switch {entry.get('name')}"
        # Without a bandwidth a switch carries everything at once.
        wide = entry.get("bandwidth")
        for numbers in loop_iterations(entry.get("for"), "switches"):
            yield PlatformVertex(
                name=_read_name(entry, "name", numbers),
                capacity=np.inf if wide is None else parse_bandwidth(wide, where),
                latency=parse_duration(entry.get("latency", 0.0), where),
                ports=read_count(entry, "ports", 0) or None,
            )


def read_cables(
    tree: YamlTable, vertex_indices: Mapping[str, int], duplex: str
) -> Iterator[PlatformCable]:
    """Yield the cables, between the indices of vertices."""
    kinds = tree.get("kinds", {})
    kinds = kinds if isinstance(kinds, dict) else {}
    seen: set[tuple[int, int]] = set()
    for entry in _read_entries(tree, "cables", _CABLE_FIELDS):
        common: YamlTable = {}
        if "kind" in entry:
            if entry["kind"] not in kinds:
                near = did_you_mean(str(entry["kind"]), map(str, kinds))
                raise BadInput(
                    f"no kind of cable named {entry['kind']}",
                    rule=f"kinds has {', '.join(map(str, kinds)) or 'none'}",
                    values=f"kind: {entry['kind']}",
                    remedy=f"did you mean {near}?" if near else "kinds: {...}",
                )
            common = kinds[entry["kind"]]
            check_fields(common, _KIND_FIELDS, f"kind {entry['kind']}")
        # A cable's own fields win over those of its kind.
        whole = {**common, **entry}
        where = f"cable from {entry.get('from')} to {entry.get('to')}"
        for key in ("bandwidth", "latency"):
            if key not in whole:
                raise _missing_field_error(where, key)
        wide = parse_bandwidth(whole["bandwidth"], where)
        late = parse_duration(whole["latency"], where)
        length = parse_length(whole["length"], where) if "length" in whole else 0.0
        # A slip of a unit (us for ns, m for km) shows here.
        light = length / SPEED_OF_LIGHT
        if late < light:
            raise BadInput(
                f"{where} is faster than light",
                rule="a latency is at least length / 299,792,458 m/s",
                values=f"latency: {whole['latency']}, length: {whole['length']}, "
                f"{1e9 * length / SPEED_OF_LIGHT:.3g} ns for light",
                remedy=f"latency: {1e9 * length / SPEED_OF_LIGHT * 1.5:.3g} ns, as in "
                "glass",
            )
        shared = read_choice({"duplex": duplex, **whole}, "duplex", DUPLEX_MODES)
        for numbers in loop_iterations(entry.get("for"), "cables"):
            names = [_read_name(entry, end, numbers) for end in ("from", "to")]
            for name in names:
                if name not in vertex_indices:
                    near = did_you_mean(name, vertex_indices)
                    raise BadInput(
                        f"{where}: no device or switch named {name}",
                        rule="a cable joins two that are listed",
                        values=name,
                        remedy=f"did you mean {near}?"
                        if near
                        else f"an entry named {name}",
                    )
            low, high = (vertex_indices[name] for name in names)
            # Cables have no direction, so a cable back is the same one.
            pair = (min(low, high), max(low, high))
            # A second cable would leave open which of the two a route takes.
            if low == high or pair in seen:
                raise BadInput(
                    f"{where}: {names[0]} and {names[1]} cannot be joined so",
                    rule="a cable joins two that differ, and no two cables join the "
                    "same two",
                    values=" - ".join(names),
                    remedy="one cable with the bandwidth of both, and no cable to "
                    "itself",
                )
            seen.add(pair)
            yield PlatformCable(
                source=low,
                target=high,
                capacity=wide,
                latency=late,
                shared=shared == "shared",
            )


def vertex_indices(vertices: Sequence[PlatformVertex]) -> dict[str, int]:
    """Return the indices of vertices by name."""
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


def check_ports(
    vertices: Sequence[PlatformVertex], cables: Sequence[PlatformCable]
) -> None:
    """Refuse more cables at a switch than it has ports."""
    # A cable takes a port at either end.
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


def _read_entries(tree: YamlTable, key: str, known: tuple[str, ...]) -> list[YamlTable]:
    """Return one entry or several as a list, each a table of known fields."""
    found = tree.get(key)
    # One entry may stand alone, without a list.
    many: list[YamlTable] = found if isinstance(found, list) else [found or {}]
    if not found or not all(isinstance(entry, dict) for entry in many):
        raise BadInput(
            f"the platform has no {key}",
            rule=f"{key} are one entry or a list of entries, each with a name",
            values=f"{key}: {found!r}",
            remedy="docs/network.md has an example; or topology: fat_tree",
        )
    for entry in many:
        check_fields(entry, known, f"an entry of {key}")
    return many


def _read_name(entry: YamlTable, key: str, numbers: Mapping[str, int]) -> str:
    """Return a name with its numbers filled in."""
    if not isinstance(entry.get(key), str | int):
        raise _missing_field_error(f"the entry {dict(entry)}", key)
    return fill_template(str(entry[key]), numbers)


def read_choice(tree: YamlTable, key: str, words: tuple[str, ...]) -> str:
    """Return one of the words that a field may have; the first one is the default."""
    word = tree.get(key, words[0])
    if word not in words:
        near = did_you_mean(str(word), words)
        raise BadInput(
            f"{key}: {word} is not known",
            rule=f"{key} is one of {', '.join(words)}",
            values=f"{key}: {word}",
            remedy=f"did you mean {near}?" if near else f"{key}: {words[0]}",
        )
    return str(word)


def read_flag(tree: YamlTable, key: str) -> bool:
    """Return a field that is true or false, which it is without one."""
    value = tree.get(key, False)
    if not isinstance(value, bool):
        raise BadInput(
            f"{key}: {value} is neither true nor false",
            rule=f"{key} is true or false",
            values=f"{key}: {value}",
            remedy=f"{key}: true",
        )
    return value


def read_count(tree: YamlTable, key: str, default: int) -> int:
    """Return a whole number."""
    value = tree.get(key, default)
    # Where the default is 0, which bounds nothing, a file may say so, too.
    if type(value) is not int or value < min(default, 1):
        raise BadInput(
            f"{key}: {value} is no count",
            rule=f"{key} is a whole number above 0",
            values=f"{key}: {value}",
            remedy=f"{key}: 4",
        )
    return value


def _missing_field_error(where: str, key: str) -> BadInput:
    """Return the error for a missing field."""
    example = {"bandwidth": "12.5GB/s", "latency": "0.5us"}.get(key, "NAME")
    return BadInput(
        f"{where} has no {key}",
        rule="a cable has from, to, bandwidth and latency, its own or of its kind; "
        "devices and switches have a name",
        values=f"{key} is not there",
        remedy=f"{key}: {example}",
    )
