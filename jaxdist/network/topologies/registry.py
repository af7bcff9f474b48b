"""Topologies by name, with their settings."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from jaxdist.core.errors import BadInput, did_you_mean, unknown_name_error
from jaxdist.core.text import parsing
from jaxdist.network.topologies.dln import dln
from jaxdist.network.topologies.dragonfly import dragonfly
from jaxdist.network.topologies.fabric import CableSpec, Fabric
from jaxdist.network.topologies.fat_tree import fat_tree
from jaxdist.network.topologies.hosts import HostSpec, attach_hosts, endpoint_count
from jaxdist.network.topologies.star import star
from jaxdist.network.topologies.torus import torus
from jaxdist.network.topology import Topology

FABRICS: Final[Mapping[str, Callable[..., Fabric]]] = MappingProxyType(
    {
        "star": star,
        "fat_tree": fat_tree,
        "torus": torus,
        "dragonfly": dragonfly,
        "dln": dln,
    }
)
"""Each takes the number of endpoints, a cable, and settings of its own."""

COMMON_SETTINGS: Final = (
    "bandwidth",
    "latency",
    "duplex",
    "per_host",
    "nics",
    "inside",
    "nvlink_bandwidth",
    "nvlink_latency",
    "pcie_bandwidth",
    "pcie_latency",
)
"""Settings that all of them have: of cables, and of hosts."""

DUPLEX_MODES: Final = ("full", "shared")
_MAX_DEVICES: Final = 1 << 22


def settings_of(name: str) -> tuple[str, ...]:
    """Return the settings that a topology takes.

    >>> settings_of("dln")[0]
    'per_switch'
    """
    # The keyword arguments of a fabric are its settings.
    own = inspect.signature(FABRICS[name]).parameters.values()
    return (*(p.name for p in own if p.kind is p.KEYWORD_ONLY), *COMMON_SETTINGS)


def make_topology(name: str, devices: int, settings: Mapping[str, object]) -> Topology:
    """Return a topology by name.

    Args:
        name: one of `FABRICS`; `-` may stand for `_`.
        devices: number of them, as many as there are ranks.
        settings: by name, as text or numbers.

    Raises:
        BadInput: no such topology or setting, or values that make none.

    >>> make_topology("fat-tree", 64, {"oversubscription": "2"}).name
    'fat tree 8:4, dmodk'
    """
    key = name.replace("-", "_")
    if key not in FABRICS:
        raise unknown_topology_error(name)
    if not 1 <= devices <= _MAX_DEVICES:
        raise BadInput(
            f"no network has {devices:,} devices",
            rule=f"1 to {_MAX_DEVICES:,} devices",
            values=f"devices={devices:,}",
            remedy="--ranks 1024",
        )
    known = settings_of(key)
    for setting in settings:
        if setting not in known:
            near = did_you_mean(setting, known)
            raise BadInput(
                f"{key} has no setting {setting}",
                rule=f"its settings are {', '.join(known)}",
                values=f"{setting}={settings[setting]}",
                remedy=f"did you mean {near}?" if near else f"{known[0]}=...",
            )
    # Each group of settings is popped below, until only those of the fabric are left.
    values = {word: _parse_setting(word, value) for word, value in settings.items()}
    hosts = HostSpec(
        per_host=values.pop("per_host", 1),
        nics=values.pop("nics", 1),
        inside=values.pop("inside", "nvlink"),
        nvlink=_cable_spec(values, "nvlink_", HostSpec.nvlink),
        pcie=_cable_spec(values, "pcie_", HostSpec.pcie),
    )
    cable = _cable_spec(values, "", CableSpec())
    duplex = values.pop("duplex", "full")
    if duplex not in DUPLEX_MODES:
        raise unknown_name_error("duplex", duplex, DUPLEX_MODES, "duplex=full")
    # What is left are settings of the fabric itself.
    bare = FABRICS[key](endpoint_count(devices, hosts), cable, **values)
    fabric = attach_hosts(bare, devices, hosts)

    # Cables become links: one for each direction, or one for both.
    def shared_routes(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return fabric.route_fn(sources, targets) // 2  # -1 stays -1

    shared = duplex == "shared"
    # Fabrics number directions 2 c and 2 c + 1 of cable c; a shared cable is one link.
    each = 1 if shared else 2
    return Topology(
        name=f"{fabric.name}{', one capacity for both directions' * shared}",
        devices=fabric.endpoints,
        capacity=np.repeat(fabric.capacity, each),
        latency=np.repeat(fabric.latency, each),
        route_fn=shared_routes if shared else fabric.route_fn,
        ports=fabric.ports,
        switches=fabric.switches,
        # Half where directions share a cable: as much is received meanwhile.
        injection_bandwidth=fabric.injection_bandwidth * each / 2,
        host_injection_bandwidth=fabric.host_injection_bandwidth * each / 2,
        per_host=hosts.per_host,
        per_switch=fabric.per_switch,
    )


def unknown_topology_error(name: str) -> BadInput:
    """Return the error for an unknown topology."""
    near = did_you_mean(name.replace("-", "_"), FABRICS)
    return BadInput(
        f"no topology named {name}",
        rule=f"one of {', '.join(FABRICS)}, a platform that is named, or a .yaml file",
        values=f"--topology {name}",
        remedy=f"did you mean {near}?" if near else "--topology fat_tree",
    )


def _parse_setting(key: str, value: object) -> Any:
    """Parse a setting; its name says what type it has."""
    if key.endswith("bandwidth"):
        return parsing.parse_bandwidth(value, key)
    if key.endswith("latency"):
        return parsing.parse_duration(value, key)
    if key in ("duplex", "routing", "inside"):
        return str(value)
    if key == "dims":
        words = value if isinstance(value, list) else str(value).split("x")
        return tuple(_parse_int(key, word) for word in words)
    return _parse_int(key, value)


def _parse_int(key: str, value: object) -> int:
    try:
        # `int(2.5)` would be 2, and `int(True)` 1.
        if isinstance(value, float | bool):
            raise ValueError
        return int(str(value))
    except ValueError:
        raise BadInput(
            f"{key}: {value} is not a whole number",
            rule=f"{key} is a whole number, or several with x between (dims)",
            values=f"{key}={value}",
            remedy="dims=32x32" if key == "dims" else f"{key}=4",
        ) from None


def _cable_spec(values: dict[str, Any], prefix: str, default: CableSpec) -> CableSpec:
    return CableSpec(
        bandwidth=values.pop(f"{prefix}bandwidth", default.bandwidth),
        latency=values.pop(f"{prefix}latency", default.latency),
    )
