"""A platform of devices, switches and cables, as its file lists them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.network.platforms.expand import filled, rounds
from jaxdist.network.platforms.graph import TIES, Graph, Ways
from jaxdist.network.quantities import LIGHT, bandwidth, metres, seconds
from jaxdist.network.routes import Numbers
from jaxdist.network.topology import Topology, Walk

_TOP: Final[Mapping[str, tuple[str, ...]]] = {
    "name": (),
    "source": (),
    "devices": (),
    "switches": (),
    "cables": (),
    "kinds": (),
    "per_host": (),
    "adding": (),
    "merging": (),
    "duplex": ("full", "shared"),
    "routing": ("fewest_cables", "least_latency"),
    "ties": TIES,
    "switch_counts": ("once", "below"),
    "devices_forward": (),
}
_DEVICE: Final = ("name", "for")
_SWITCH: Final = ("name", "for", "bandwidth", "latency", "ports")
_KIND: Final = ("bandwidth", "latency", "duplex", "length")
_CABLE: Final = ("from", "to", "for", "kind", *_KIND)
Tree = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Vertex:
    name: str
    capacity: float = np.inf
    latency: float = 0.0
    ports: int | None = None
    is_device: bool = False


@dataclass(frozen=True, kw_only=True)
class _Cable:
    low: int
    high: int
    capacity: float
    latency: float
    shared: bool


def built(tree: Tree, stem: str) -> Topology:
    """Return the topology of a platform file.

    Args:
        tree: what the file says.
        stem: its name without a suffix.

    Raises:
        BadInput: a field that is not known, a name that is not there, quantities that
            cannot be.
    """
    _known(tree, tuple(_TOP), "the platform")
    choice = {key: _choice(tree, key, words) for key, words in _TOP.items() if words}
    vertices = [*_devices(tree), *_switches(tree)]
    places = _places(vertices)
    cables = list(_cables(tree, places, choice["duplex"]))
    _check_ports(vertices, cables)
    links = _Links(vertices, cables, choice["switch_counts"])
    devices = sum(vertex.is_device for vertex in vertices)
    fewest = choice["routing"] == "fewest_cables"
    graph = Graph(
        names=tuple(vertex.name for vertex in vertices),
        devices=devices,
        ends=tuple((cable.low, cable.high) for cable in cables),
        costs=tuple(1.0 if fewest else links.length(c) for c in range(len(cables))),
        forwards=_flag(tree, "devices_forward"),
        ties=choice["ties"],
    )
    switches = len(vertices) - devices
    degree = np.bincount([end for pair in graph.ends for end in pair])
    return Topology(
        name=str(tree.get("name", stem)),
        devices=devices,
        capacity=np.array(links.capacity),
        latency=np.array(links.latency),
        walk=_walk(graph, links),
        ports=int(degree[devices:].max() if switches else degree.max()),
        switches=switches,
        injection=_injection(cables, devices),
        per_host=_count(tree, "per_host", 1),
        reducing=1 / bandwidth(tree["adding"], "adding") if "adding" in tree else 0.0,
        merging=seconds(tree["merging"], "merging") if "merging" in tree else 0.0,
    )


def _injection(cables: Sequence[_Cable], devices: int) -> float:
    """Return the rate of the device that has the least."""
    rates = np.zeros(devices)
    for cable in cables:
        for end in (cable.low, cable.high):
            if end < devices:
                rates[end] += cable.capacity / (2 if cable.shared else 1)
    return float(rates.min())


class _Links:
    """Links of cables and of switches, and which of them a hop crosses."""

    def __init__(
        self, vertices: Sequence[_Vertex], cables: Sequence[_Cable], counts: str
    ) -> None:
        self.capacity: list[float] = []
        self.latency: list[float] = []
        inner = {
            place: self._add(vertex.capacity, vertex.latency)
            for place, vertex in enumerate(vertices)
            if np.isfinite(vertex.capacity) or vertex.latency
        }
        self.crossed: list[tuple[int, ...]] = []
        for cable in cables:
            there = self._add(cable.capacity, cable.latency)
            same = cable.shared
            back = there if same else self._add(cable.capacity, cable.latency)
            low, high = (
                (inner[end],) if end in inner else () for end in (cable.low, cable.high)
            )
            if counts == "below":
                self.crossed += [(there, *high), (*high, back)]
            else:
                self.crossed += [(there, *high), (back, *low)]

    def length(self, cable: int) -> float:
        """Return the seconds of a cable with what is inside the switches at its end."""
        ways = (self.crossed[2 * cable], self.crossed[2 * cable + 1])
        return max(sum(self.latency[link] for link in way) for way in ways)

    def _add(self, capacity: float, latency: float) -> int:
        self.capacity.append(capacity)
        self.latency.append(latency)
        return len(self.capacity) - 1


def _walk(graph: Graph, links: _Links) -> Walk:
    ways = Ways(graph)

    def walk(sources: Numbers, targets: Numbers) -> Numbers:
        found = ways.find(zip(sources.tolist(), targets.tolist()))
        rows = [[link for hop in way for link in links.crossed[hop]] for way in found]
        table = np.full((len(rows), max(map(len, rows), default=0)), -1)
        for row, way in zip(table, rows):
            row[: len(way)] = way
        return table

    return walk


def _devices(tree: Tree) -> Iterator[_Vertex]:
    for entry in _entries(tree, "devices", _DEVICE):
        for numbers in rounds(entry.get("for"), "devices"):
            yield _Vertex(name=_name(entry, "name", numbers), is_device=True)


def _switches(tree: Tree) -> Iterator[_Vertex]:
    for entry in _entries(tree, "switches", _SWITCH) if "switches" in tree else ():
        where = f"switch {entry.get('name')}"
        wide = entry.get("bandwidth")
        for numbers in rounds(entry.get("for"), "switches"):
            yield _Vertex(
                name=_name(entry, "name", numbers),
                capacity=np.inf if wide is None else bandwidth(wide, where),
                latency=seconds(entry.get("latency", 0.0), where),
                ports=_count(entry, "ports", 0) or None,
            )


def _cables(tree: Tree, places: Mapping[str, int], duplex: str) -> Iterator[_Cable]:
    kinds = tree.get("kinds", {})
    seen: dict[tuple[int, int], str] = {}
    for entry in _entries(tree, "cables", _CABLE):
        whole = {**_kind(kinds, entry), **entry}
        where = f"cable from {entry.get('from')} to {entry.get('to')}"
        for key in ("bandwidth", "latency"):
            if key not in whole:
                raise _missing(where, key)
        wide, late = bandwidth(whole["bandwidth"], where), _late(whole, where)
        shared = _choice({"duplex": duplex, **whole}, "duplex", _TOP["duplex"])
        for numbers in rounds(entry.get("for"), "cables"):
            names = [_name(entry, end, numbers) for end in ("from", "to")]
            low, high = (_place(name, places, where) for name in names)
            pair = (min(low, high), max(low, high))
            if low == high or pair in seen:
                raise _twice(names, where)
            seen[pair] = where
            yield _Cable(
                low=low,
                high=high,
                capacity=wide,
                latency=late,
                shared=shared == "shared",
            )


def _late(cable: Tree, where: str) -> float:
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


def _kind(kinds: object, entry: Tree) -> Tree:
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
    _known(found, _KIND, f"kind {entry['kind']}")
    return dict(found)


def _entries(tree: Tree, key: str, known: tuple[str, ...]) -> list[Tree]:
    entries = tree.get(key)
    many = entries if isinstance(entries, list) else [entries]
    if not entries or not all(isinstance(entry, dict) for entry in many):
        raise BadInput(
            f"the platform has no {key}",
            rule=f"{key} are one entry or a list of entries, each with a name",
            values=f"{key}: {entries!r}",
            remedy="docs/network.md has an example; or topology: fat_tree",
        )
    for entry in many:
        _known(entry, known, f"an entry of {key}")
    return many


def _known(entry: object, known: tuple[str, ...], where: str) -> None:
    if not isinstance(entry, dict):
        raise BadInput(
            f"{where} is not a table",
            rule=f"its fields are {', '.join(known)}",
            values=f"{entry!r}",
            remedy="{bandwidth: 12.5GB/s, latency: 0.5us}",
        )
    for key in entry:
        if key not in known:
            near = did_you_mean(str(key), known)
            raise BadInput(
                f"{where} has no field {key}",
                rule=f"its fields are {', '.join(known)}",
                values=f"{key}: {entry[key]}",
                remedy=f"did you mean {near}?" if near else f"without {key}",
            )


def _name(entry: Tree, key: str, numbers: Mapping[str, int]) -> str:
    if not isinstance(entry.get(key), str | int):
        raise _missing(f"the entry {dict(entry)}", key)
    return filled(str(entry[key]), numbers)


def _places(vertices: Sequence[_Vertex]) -> dict[str, int]:
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


def _check_ports(vertices: Sequence[_Vertex], cables: Sequence[_Cable]) -> None:
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


def _choice(tree: Tree, key: str, words: tuple[str, ...]) -> str:
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


def _flag(tree: Tree, key: str) -> bool:
    value = tree.get(key, False)
    if not isinstance(value, bool):
        raise BadInput(
            f"{key}: {value} is neither true nor false",
            rule=f"{key} is true or false",
            values=f"{key}: {value}",
            remedy=f"{key}: true",
        )
    return value


def _count(tree: Tree, key: str, default: int) -> int:
    value = tree.get(key, default)
    if type(value) is not int or value < min(default, 1):
        raise BadInput(
            f"{key}: {value} is no count",
            rule=f"{key} is a whole number above 0",
            values=f"{key}: {value}",
            remedy=f"{key}: 4",
        )
    return value


def _missing(where: str, key: str) -> BadInput:
    example = {"bandwidth": "12.5GB/s", "latency": "0.5us"}.get(key, "NAME")
    return BadInput(
        f"{where} has no {key}",
        rule="a cable has from, to, bandwidth and latency, its own or of its kind; "
        "devices and switches have a name",
        values=f"{key} is not there",
        remedy=f"{key}: {example}",
    )


def _twice(names: Sequence[str], where: str) -> BadInput:
    return BadInput(
        f"{where}: {names[0]} and {names[1]} cannot be joined so",
        rule="a cable joins two that differ, and no two cables join the same two",
        values=" - ".join(names),
        remedy="one cable with the bandwidth of both, and no cable to itself",
    )
