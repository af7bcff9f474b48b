"""A cluster: devices and the levels of links between them, as plain data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Any, Final

from jaxdist.core.cluster.collective_cost import CollectiveCost
from jaxdist.core.cluster.device import Device, EfficiencyCurve
from jaxdist.core.cluster.host_group import (
    GroupLink,
    HostGroup,
    InterGroupLink,
    check_host_groups,
    check_known,
    check_once,
    distinct_devices,
)
from jaxdist.core.cluster.kernel_timings import (
    BlockTiming,
    BlockTimings,
    KernelTiming,
    KernelTimings,
)
from jaxdist.core.cluster.layer_timings import LayerTiming, LayerTimings
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput
from jaxdist.core.validation import (
    check_fields,
    check_required_fields,
    json_text,
    parse_json,
)

SPEED_OF_LIGHT: Final = 299_792_458.0
"""Metres a second, which nothing passes."""
# Metres of a cable whose length is not given, at least.
_SHORTEST: Final = 0.01
_FULL: Final = SourcedNumber(1.0, "assumed: all that is sent gets through at once")


@dataclass(frozen=True, kw_only=True)
class Level:
    """How units of the level below are connected: devices in a host, say."""

    name: str
    """What the level makes of them: `host`, `rack`, `cluster`."""
    size: int
    """Units of the level below that are together in one of this level."""
    alpha: SourcedNumber
    """Seconds that a message takes without its bytes."""
    bandwidth: SourcedNumber
    """Bytes a second that one unit below sends in all, one way."""
    ports: int = 1
    """Links on which a unit below sends them."""
    port_bandwidth: SourcedNumber | None = None
    """Bytes a second of one of these links, as the maker says."""
    oversubscription: SourcedNumber = _FULL
    """Bytes that units may send at once, over those that get through."""
    length: SourcedNumber | None = None
    """Metres of its shortest cable."""
    lines: tuple[CollectiveCost, ...] = ()
    """Collectives that were measured; others are what alpha and bandwidth make them."""

    def __post_init__(self) -> None:
        where = f"level {self.name}"
        alpha, rate = self.alpha.value, self.bandwidth.value
        if self.size < 1 or self.ports < 1:
            raise BadInput(
                f"{where} connects nothing",
                rule="size and ports are whole numbers above 0",
                values=f"size = {self.size}, ports = {self.ports}",
                remedy="size: 1",
            )
        # A latency in the wrong unit is found by physics: no message outruns light.
        metres = self.length.value if self.length else _SHORTEST
        if alpha < metres / SPEED_OF_LIGHT:
            raise BadInput(
                f"{where} is faster than light",
                rule=f"alpha is at least length / {SPEED_OF_LIGHT:,.0f} m/s",
                values=f"alpha = {alpha:g} s over {metres:g} m",
                remedy=f"alpha: {1e9 * metres / SPEED_OF_LIGHT:.2g} ns, or what was "
                "measured",
            )
        if rate == 0 or self.oversubscription.value < 1:
            raise BadInput(
                f"{where} lets nothing through, or more than is sent",
                rule="bandwidth is above 0, oversubscription is 1 or above",
                values=f"bandwidth = {rate:g} B/s, "
                f"oversubscription = {self.oversubscription.value:g}",
                remedy="oversubscription: 2 where half of it gets through",
            )
        most = self.ports * (self.port_bandwidth or self.bandwidth).value
        if rate > most * (1 + 1e-9):  # rounding: 12.5e9 may be read as 4 x 3.125e9
            raise BadInput(
                f"{where} has more bandwidth than ports",
                rule="bandwidth is at most ports x port_bandwidth",
                values=f"{rate:g} B/s > {self.ports} x {self.port_bandwidth} B/s",
                remedy=f"bandwidth: {most / 1e9:g} GB/s",
            )


_NAMED: Final = (Level, CollectiveCost, HostGroup, GroupLink, InterGroupLink)
"""What lies in a list and has a name in a path."""
_GROUP_FIELDS: Final = ("host_groups", "inter_group_links")
_ALIKE: Final = SourcedNumber(0.0, "assumed: devices are alike")
_IN_TURN: Final = SourcedNumber(0.0, "assumed: nothing overlaps")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices, and levels that connect them."""

    name: str
    """As in `--cluster NAME`."""
    device: Device
    """Every device is one of these, but for groups with a kind of their own."""
    levels: tuple[Level, ...]
    """Innermost first; their sizes multiply to the devices."""
    host_groups: tuple[HostGroup, ...] = ()
    """Hosts by their kind of device, in the order of devices; none: all are alike."""
    inter_group_links: tuple[InterGroupLink, ...] = ()
    """Links between two groups that are worse than those of the levels."""
    source: str = ""
    """Where the machine is described."""
    host_link: SourcedNumber | None = None
    """Bytes a second between a device and its host's memory, one way."""
    host_memory: SourcedNumber | None = None
    """Bytes of a host."""
    input_rate: SourcedNumber | None = None
    """Bytes of samples a second that a host makes ready."""
    price: SourcedNumber | None = None
    """Currency units of a device for an hour."""
    jitter: SourcedNumber = _ALIKE
    """Share of a step by which the slowest of many devices is later."""
    overlap: SourcedNumber = _IN_TURN
    """Share that is hidden of what collectives could do while a device computes what
    does not need them, from 0 (nothing) to 1 (all)."""

    def __post_init__(self) -> None:
        if self.overlap.value > 1:
            raise BadInput(
                "no more can be hidden than there is",
                rule="overlap is a share, from 0 (collectives and computing take "
                "turns) to 1 (all that can go on at once does)",
                values=f"overlap: {self.overlap.value:g}",
                remedy="overlap: 1",
            )
        if not self.levels:
            raise BadInput(
                f"cluster {self.name} has no levels",
                rule="at least one level says how devices are connected",
                values="levels: []",
                remedy="levels: [{name: host, size: 8, ...}]",
            )
        if self.host_groups or self.inter_group_links:
            check_host_groups(
                self.name,
                self.host_groups,
                self.inter_group_links,
                [level.name for level in self.levels],
                hosts=self.devices // self.host_devices,
            )
            # A training step is one program.
            platforms = {kind.name: kind.platform for kind in self.kinds}
            if len({*platforms.values()}) > 1:
                raise BadInput(
                    f"the devices of {self.name} run no common program",
                    rule="all kinds of devices of a cluster are CPUs, GPUs or TPUs, "
                    "which their names say",
                    values=", ".join(f"{name}: {x}" for name, x in platforms.items()),
                    remedy="a cluster file for each platform",
                )
            # A level of a group is checked as any other: by light, and above zero.
            for group in self.host_groups:
                self.levels_of(group)

    @property
    def host_devices(self) -> int:
        """Devices of a host: a unit of the innermost level, or one of a single level's.

        A cluster of one level has hosts of one device, which that level connects.
        """
        return self.levels[0].size if len(self.levels) > 1 else 1

    @cached_property
    def groups(self) -> tuple[HostGroup, ...]:
        """The groups of hosts in the order of devices; one where all are alike."""
        hosts = self.devices // self.host_devices
        whole = HostGroup(name=self.device.name, hosts=hosts)
        return self.host_groups or (whole,)

    @cached_property
    def kinds(self) -> tuple[Device, ...]:
        """The kinds of devices, each once, in the order of the groups."""
        return distinct_devices(map(self.device_of, self.groups))

    @property
    def has_uneven_links(self) -> bool:
        """Whether links of a group, or between groups, are not those of the levels."""
        own = any(group.links for group in self.host_groups)
        return own or bool(self.inter_group_links)

    def device_of(self, group: HostGroup) -> Device:
        """Return the kind of a group's devices."""
        return group.device or self.device

    def levels_of(self, group: HostGroup) -> tuple[Level, ...]:
        """Return the levels as the units of a group are connected."""
        if not group.links:
            return self.levels
        found = {level.name: level for level in self.levels}
        for link in group.links:
            changed: dict[str, Any] = {}
            if link.alpha is not None:
                changed["alpha"] = link.alpha
            if link.bandwidth is not None:
                # What is given for the group is all that its unit sends.
                changed |= {"bandwidth": link.bandwidth, "port_bandwidth": None}
            found[link.level] = replace(found[link.level], **changed)
        return tuple(found.values())

    def group_ranges(
        self, order: Sequence[str] = ()
    ) -> tuple[tuple[HostGroup, range], ...]:
        """Return the groups with the devices of each, as a mesh is laid on them.

        Args:
            order: names of the groups that come first; others follow in their order.

        Raises:
            BadInput: a name that no group has, or one twice.
        """
        named = {group.name: group for group in self.groups}
        where = f"the order of the groups of {self.name}"
        for name in order:
            check_known(name, list(named), where)
        check_once(order, where)
        found, end = [], 0
        for name in dict.fromkeys((*order, *named)):
            start, end = end, end + named[name].hosts * self.host_devices
            found.append((named[name], range(start, end)))
        return tuple(found)

    def only_device(self, purpose: str) -> Device:
        """Return the kind of device where there is one alone.

        Args:
            purpose: what asks for it, for the refusal: `jaxdist score`.

        Raises:
            BadInput: devices of several kinds, or links that are uneven.
        """
        if len(self.kinds) > 1 or self.has_uneven_links:
            said = ", ".join(f"{group.name}: {group.hosts}" for group in self.groups)
            raise BadInput(
                f"{purpose} is for clusters of one kind",
                rule=f"{purpose} has one kind of device and links that are alike; "
                "jaxdist plan and jaxdist predict take several",
                values=f"{self.name} has the groups {said}",
                remedy="a cluster file without host_groups",
            )
        return self.kinds[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices in one unit of each level, innermost first."""
        return tuple(accumulate((level.size for level in self.levels), mul))

    @property
    def devices(self) -> int:
        """All devices."""
        return self.sizes[-1]

    def level_of(self, devices: int) -> int:
        """Return the innermost level, counted from 0, that connects so many devices.

        Args:
            devices: neighbours, the first of which is the first of a unit.

        Raises:
            BadInput: more than the cluster has.
        """
        for place, size in enumerate(self.sizes):
            if devices <= size:
                return place
        raise BadInput(
            f"{self.name} has too few devices",
            rule=f"{self.name} has {self.devices:,} devices",
            values=f"devices = {devices:,}",
            remedy=f"--devices {self.devices}",
        )

    def numbers(self) -> Iterator[tuple[str, SourcedNumber]]:
        """Yield every number with its path: `levels.host.alpha`."""
        return _numbers(self, "")

    @property
    def paths(self) -> list[str]:
        """Paths of `numbers`, and of its own fields that are None: `price`."""
        # What is None has no number to yield, but may be given one.
        known = [name for name, _ in self.numbers()]
        return known + [x.name for x in fields(self) if getattr(self, x.name) is None]

    def with_number(self, path: str, number: SourcedNumber) -> "Cluster":
        """Return the cluster with another number at one of its `paths`.

        Raises:
            BadInput: no such path.
        """
        check_fields({path: number}, self.paths, self.name)
        return _replaced(self, path.split("."), number)

    def to_json(self) -> str:
        """Write the cluster; `from_json` reads the same value back."""
        return json_text(_tree(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Cluster":
        """Read a cluster that `to_json` wrote.

        Raises:
            BadInput: a field that no cluster has, or numbers that no machine has.
        """
        return cls.from_tree(parse_json(text))

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Cluster":
        """Make a cluster of plain values in SI units, each number with its origin.

        Raises:
            BadInput: as `from_json`.
        """
        # From the inside out: each class refuses its own numbers as it is made.
        values = _read(cls, tree, "a cluster")
        levels = []
        for entry in values["levels"]:
            level = _read(Level, entry, "a level")
            lines = [_read(CollectiveCost, x, "a line") for x in level.get("lines", ())]
            level["lines"] = tuple(
                CollectiveCost(**line | {"bend": _float_pairs(line.get("bend", ()))})
                for line in lines
            )
            levels.append(Level(**level))
        groups = []
        for entry in values.get("host_groups", ()):
            group = _read(HostGroup, entry, "a host group")
            if group.get("device") is not None:
                group["device"] = _read_device(group["device"])
            links = (_read(GroupLink, one, "a link") for one in group.get("links", ()))
            group["links"] = tuple(GroupLink(**link) for link in links)
            groups.append(HostGroup(**group))
        between = []
        for entry in values.get("inter_group_links", ()):
            link = _read(InterGroupLink, entry, "a link between groups")
            between.append(InterGroupLink(**link | {"groups": tuple(link["groups"])}))
        made = {
            "device": _read_device(values["device"]),
            "levels": tuple(levels),
            "host_groups": tuple(groups),
            "inter_group_links": tuple(between),
        }
        return cls(**values | made)


def _read_device(tree: Mapping[str, Any]) -> Device:
    check_required_fields(tree, ("efficiency", "flops"), "a device")
    device = _read(Device, tree, "a device")
    curve = _read(EfficiencyCurve, device["efficiency"], "an efficiency")
    curve["points"] = _float_pairs(curve["points"])
    device["efficiency"] = EfficiencyCurve(**curve)
    if device.get("kernels"):
        kernels = _read(KernelTimings, device["kernels"], "kernels")
        kernels["timed"] = tuple(map(KernelTiming.of_row, kernels["timed"]))
        device["kernels"] = KernelTimings(**kernels)
    if device.get("blocks"):
        blocks = _read(BlockTimings, device["blocks"], "blocks")
        blocks["timed"] = tuple(map(BlockTiming.of_row, blocks["timed"]))
        device["blocks"] = BlockTimings(**blocks)
    if device.get("layers"):
        layers = _read(LayerTimings, device["layers"], "layers")
        layers["timed"] = tuple(map(LayerTiming.of_row, layers["timed"]))
        device["layers"] = LayerTimings(**layers)
    for table in ("flops", "packing"):
        device[table] = {
            name: _number(value, f"{table}.{name}")
            for name, value in device.get(table, {}).items()
        }
    return Device(**device)


def _float_pairs(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[float, float], ...]:
    # PyYAML reads 1e6 as text: floats of YAML 1.1 have a point.
    return tuple((float(a), float(b)) for a, b in pairs)


def _read(kind: type, tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a table, with its numbers as `SourcedNumber`."""
    known = {field.name: field for field in fields(kind)}
    check_fields(tree, known, where)
    needed = [
        name
        for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING
    ]
    check_required_fields(tree, needed, where)
    # Annotations say which fields are numbers, so that a new one is read by itself;
    # mappings of numbers are read where their names are known.
    numbers = {
        name: _number(tree[name], f"{where}: {name}")
        for name in tree
        if "Number" in str(known[name].type) and "Mapping" not in str(known[name].type)
    }
    return dict(tree) | numbers


def _number(value: Any, where: str) -> SourcedNumber | None:
    """Read what `SourcedNumber.tree` wrote."""
    if value is None:
        return None
    check_fields(value, ("value", "origin"), where)
    check_required_fields(value, ("value", "origin"), where)
    return SourcedNumber(**value)


def _tree(value: Any) -> Any:
    """Return plain values, without fields that are not known."""
    if isinstance(value, SourcedNumber):
        return value.tree()
    # A table may have thousands of timings: as rows they need no names of fields.
    if isinstance(value, KernelTiming | BlockTiming | LayerTiming):
        return value.row
    if isinstance(value, Mapping):
        return {key: _tree(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_tree(one) for one in value]
    if not is_dataclass(value):
        return value
    # What is as its default says nothing: files of one kind name no groups.
    return {
        key: _tree(one)
        for key, one in _fields_of(value).items()
        if one is not None and not (key in _GROUP_FIELDS and not one)
    }


def _fields_of(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _parts(value: Any) -> dict[str, Any]:
    """Return what lies below a value of a cluster; levels and lines by their names."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return {one.name: one for one in value if isinstance(one, _NAMED)}
    if is_dataclass(value) and not isinstance(value, type):
        return _fields_of(value)
    return {}


def _numbers(value: Any, path: str) -> Iterator[tuple[str, SourcedNumber]]:
    for name, part in _parts(value).items():
        here = f"{path}.{name}".strip(".")
        if isinstance(part, SourcedNumber):
            yield here, part
        else:
            yield from _numbers(part, here)


def _replaced(value: Any, path: list[str], number: SourcedNumber) -> Any:
    """Return the value with another number at the path."""
    if not path:
        return number
    first, *rest = path
    part = _replaced(_parts(value)[first], rest, number)
    if isinstance(value, Mapping):
        return {**value, first: part}
    if isinstance(value, tuple):
        return tuple(part if one.name == first else one for one in value)
    return replace(value, **{first: part})
