"""Reading a cluster: a name, a YAML file as people write it, or what calibrate wrote.

A number is written with its unit, `12.5 GB/s`, and takes the `origin` of its table, of
the table around it, or else the file's name; `{value: 12.5 GB/s, origin: ...}` gives a
number one of its own.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text import parsing
from jaxdist.core.validation import check_fields, load_yaml_mapping
from jaxdist.meshes.clusters.schema import check_cluster_tree

_HERE: Final = Path(__file__).parent
_SUFFIXES: Final = (".yaml", ".yml", ".json")


def cluster_names() -> list[str]:
    """Return the clusters that have a name."""
    return sorted(path.stem for path in _HERE.glob("*.yaml"))


def load_cluster(name: str) -> Cluster:
    """Return the cluster of a name or of a file.

    Args:
        name: one of `cluster_names()`, or a path that ends in .yaml, .yml or .json.

    Raises:
        BadInput: no such cluster, or a file that describes none.

    >>> load_cluster("dgx-a100").levels[0].name
    'host'
    """
    known = cluster_names()
    path = Path(name)
    # A name wins over a file of the same name in the working directory.
    if name in known:
        path = _HERE / f"{name}.yaml"
    elif path.suffix not in _SUFFIXES:
        near = did_you_mean(name, known)
        raise BadInput(
            f"no cluster named {name}",
            rule=f"one of {', '.join(known)}, or a file: {', '.join(_SUFFIXES)}",
            values=f"--cluster {name}",
            remedy=f"did you mean {near}?" if near else f"--cluster {known[0]}",
        )
    tree = load_yaml_mapping(
        path,
        kind="a cluster",
        contents="a device and levels",
        option="--cluster",
        doc_page="docs/clusters.md",
    )
    return cluster_from_tree(tree, path.stem)


def cluster_from_tree(tree: Mapping[str, Any], default_name: str) -> Cluster:
    """Make a cluster of what a file says.

    Args:
        tree: as YAML or JSON has it.
        default_name: of the file, for the name and for numbers without an origin.

    Raises:
        BadInput: it describes none, naming the place.
    """
    check_cluster_tree(tree, default_name)
    origin = tree.get("origin", f"given: {default_name}")
    # The file's name is the default of the cluster's own.
    top = _parse_table(
        {"name": default_name, **tree}, _CLUSTER_PARSERS, "cluster", origin
    )
    levels = tree["levels"]
    made = [
        _parse_table(level, _LEVEL_PARSERS, f"levels[{i}]", origin)
        for i, level in enumerate(levels)
    ]
    groups = [
        _parse_group(group, f"host_groups[{i}]", origin)
        for i, group in enumerate(tree.get("host_groups", ()))
    ]
    between = [
        _parse_table(link, _LEVEL_PARSERS, f"inter_group_links[{i}]", origin)
        for i, link in enumerate(tree.get("inter_group_links", ()))
    ]
    # Where every group has a device of its own, that of the first is the cluster's.
    if "device" in tree:
        device = _parse_device(tree["device"], "device", origin)
    else:
        # Popped: a group without a device of its own has the cluster's.
        device = groups[0].pop("device")
    own = {"device": device, "levels": made}
    uneven = {"host_groups": groups, "inter_group_links": between}
    return Cluster.from_tree({**top, **own, **uneven})


def _parse_group(tree: Mapping[str, Any], where: str, origin: str) -> dict[str, Any]:
    """Return a group of hosts with its numbers in SI units."""
    values: dict[str, Any] = {"links": [], **tree}
    own = values.pop("origin", origin)
    if "device" in values:
        values["device"] = _parse_device(values["device"], f"{where}.device", own)
    values["links"] = [
        _parse_table(link, _LEVEL_PARSERS, f"{where}.links[{i}]", own)
        for i, link in enumerate(values["links"])
    ]
    return values


def _parse_device(
    tree: Mapping[str, Any] | str, where: str, origin: str
) -> dict[str, Any]:
    """Return a device with its numbers in SI units; a name is of a cluster with it.

    Raises:
        BadInput: no cluster of that name, or one with several kinds of devices.
    """
    if not isinstance(tree, str):
        return _parse_table(tree, _DEVICE_PARSERS, where, origin)
    known = cluster_names()
    if tree not in known:
        near = did_you_mean(tree, known)
        raise BadInput(
            f"{where}: no cluster {tree} whose device it could be",
            rule=f"a device is a table, or the name of a cluster: {', '.join(known)}",
            values=f"device: {tree}",
            remedy=f"did you mean {near}?" if near else "device: {name: ..., ...}",
        )
    named = load_cluster(tree)
    named.only_device(f"{where}: a device by a cluster's name")
    # Numbers of that file keep their origins, and are in SI units already.
    found: dict[str, Any] = json.loads(named.to_json())["device"]
    return found


NumberParser = Callable[[object, str], float]


def _parse_unitless(value: object, where: str) -> float:
    """Read a number that has no unit."""
    # bool is an int in Python, and true is no number.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise BadInput(
        f"{where}: {value} is no number",
        rule=f"{where} has no unit",
        values=f"{value!r}",
        remedy=f"{where}: 1.0",
    )


_CLUSTER_PARSERS: Final[Mapping[str, NumberParser]] = {
    "host_link": parsing.parse_bandwidth,
    "host_memory": parsing.parse_bytes,
    "input_rate": parsing.parse_bandwidth,
    "price": _parse_unitless,
    "jitter": _parse_unitless,
    "overlap": _parse_unitless,
}
_DEVICE_PARSERS: Final[Mapping[str, NumberParser]] = {
    "memory": parsing.parse_bytes,
    "memory_bandwidth": parsing.parse_bandwidth,
    "launch": parsing.parse_duration,
    "crowd": _parse_unitless,
    "interference": _parse_unitless,
}
_LEVEL_PARSERS: Final[Mapping[str, NumberParser]] = {
    "alpha": parsing.parse_duration,
    "bandwidth": parsing.parse_bandwidth,
    "port_bandwidth": parsing.parse_bandwidth,
    "oversubscription": _parse_unitless,
    "length": parsing.parse_length,
}
_COLLECTIVE_COST_PARSERS: Final[Mapping[str, NumberParser]] = {
    "messages": _parse_unitless,
    "share": _parse_unitless,
    "skew": parsing.parse_duration,
}
_TIMINGS_PARSERS: Final[Mapping[str, NumberParser]] = {
    "peak": parsing.parse_flop_rate,
    "bandwidth": parsing.parse_bandwidth,
    "memory_rate": _parse_unitless,
    "launch": parsing.parse_duration,
}
"""Numbers of tables of timed work, which have one origin for all."""
_TABLE_PARSERS: Final[Mapping[str, NumberParser]] = {
    "flops": parsing.parse_flop_rate,
    "packing": parsing.parse_duration,
}
"""Numbers of a device by a name that is no field: of a dtype, of a way of summing."""


def parser_for(path: str) -> NumberParser:
    """Return what reads the number at a path of a cluster: its name says its unit."""
    table, _, name = path.rpartition(".")
    # Of the cluster's device or that of a group: host_groups.a100.device.flops.
    _, _, last = table.rpartition("device.")
    if last in _TABLE_PARSERS:
        return _TABLE_PARSERS[last]
    known = {
        **_CLUSTER_PARSERS,
        **_DEVICE_PARSERS,
        **_LEVEL_PARSERS,
        **_COLLECTIVE_COST_PARSERS,
    }
    return known.get(name, parsing.parse_flop_rate)


def _parse_table(
    tree: object, known: Mapping[str, NumberParser], where: str, origin: str
) -> dict[str, Any]:
    """Return a table with its numbers in SI units, each with an origin."""
    # check_fields refuses what is no table with a proper message.
    if not isinstance(tree, Mapping):
        check_fields(tree, known, where)
        return {}
    values = dict(tree)
    # The origin of a table holds for its numbers, unless one has its own.
    own = values.pop("origin", origin)
    for key, reader in known.items():
        if key in values:
            values[key] = _parse_number(values[key], reader, f"{where}.{key}", own)
    # Tables of numbers by name: FLOP/s of dtypes, times of ways of summing.
    for name, reader in _TABLE_PARSERS.items():
        if isinstance(values.get(name), Mapping):
            values[name] = {
                key: _parse_number(one, reader, f"{where}.{name}.{key}", own)
                for key, one in values[name].items()
            }
    if isinstance(values.get("lines"), list):
        values["lines"] = [
            _parse_table(line, _COLLECTIVE_COST_PARSERS, f"{where}.lines", own)
            for line in values["lines"]
        ]
    for name in ("kernels", "blocks", "layers"):
        if isinstance(values.get(name), Mapping):
            timed = {"origin": own, **values[name]}
            values[name] = timed | {
                key: _TIMINGS_PARSERS[key](timed[key], f"device.{name}.{key}")
                for key in _TIMINGS_PARSERS
                if key in timed
            }
    # One share of the peak, points of a curve, or points and an origin.
    if "efficiency" in values:
        given = values["efficiency"]
        if not isinstance(given, Mapping | list):
            given = [[1.0, _parse_unitless(given, "efficiency")]]
        curve = given if isinstance(given, Mapping) else {"points": given}
        values["efficiency"] = {"origin": own, **curve}
    # Links of several ports are given by the bandwidth of one.
    if "bandwidth" not in values and "port_bandwidth" in values:
        ports = int(values.get("ports", 1))
        port = values["port_bandwidth"]
        more = f"; times {ports} ports" if ports > 1 else ""
        values["bandwidth"] = {
            "value": ports * port["value"],
            "origin": port["origin"] + more,
        }
    return values


def _parse_number(
    value: object, reader: NumberParser, where: str, origin: str
) -> dict[str, Any]:
    if isinstance(value, Mapping):
        check_fields(value, ("value", "origin"), where)
        origin = value.get("origin", origin)
        value = value.get("value")
    return {"value": reader(value, where), "origin": origin}
