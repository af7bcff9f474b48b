"""Reading a platform file: a named topology with settings, or devices and cables."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.text.parsing import parse_bandwidth, parse_duration
from jaxdist.core.validation import load_yaml_mapping
from jaxdist.network.platforms.built import build_topology
from jaxdist.network.topologies.registry import (
    FABRICS,
    make_topology,
    settings_of,
    unknown_topology_error,
)
from jaxdist.network.topology import Topology

PLATFORM_NAMES: Final = ("tsubame3", "abci")
"""Platforms that have a file here."""
_NON_SETTINGS: Final = ("name", "source", "topology", "devices", "adding", "merging")


def find_topology(name: str, ranks: int, settings: Mapping[str, object]) -> Topology:
    """Return what is meant by a name or a path.

    Args:
        name: of a topology, of a platform, or of a .yaml file.
        ranks: devices that are needed; a topology by name has as many.
        settings: of a topology by name.

    Raises:
        BadInput: no such name or file, or what it says makes no network.
    """
    path = Path(name)
    named = name in PLATFORM_NAMES
    if named:
        path = Path(__file__).parent / f"{name}.yaml"
    if not named and path.suffix not in (".yaml", ".yml"):
        _suggest_platform(name)
        return make_topology(name, ranks, settings)
    tree = load(path)
    if "topology" in tree:
        return _topology_from_settings(tree, ranks, settings, str(path))
    if settings:
        raise BadInput(
            f"{name} has no settings",
            rule="settings are for topologies by name; a platform says all itself",
            values=", ".join(f"{key}={value}" for key, value in settings.items()),
            remedy=f"--topology {name} alone, or another file",
        )
    return build_topology(tree, path.stem)


def load(path: Path) -> dict[str, Any]:
    """Read a file as a table.

    Raises:
        BadInput: no file, or no table in it.
    """
    found: dict[str, Any] = load_yaml_mapping(
        path,
        kind="a platform",
        contents="topology, or devices and cables",
        option="--topology",
        doc_page="docs/network.md",
    )
    return found


def _topology_from_settings(
    tree: dict[str, Any], ranks: int, settings: Mapping[str, object], where: str
) -> Topology:
    """Return a topology whose settings a file has; those of the command win."""
    kind = str(tree["topology"])
    if kind.replace("-", "_") not in FABRICS:
        raise unknown_topology_error(kind)
    own = {key: value for key, value in tree.items() if key not in _NON_SETTINGS}
    known = settings_of(kind.replace("-", "_"))
    for key, value in own.items():
        if key not in known:
            near = did_you_mean(key, [*known, *_NON_SETTINGS])
            raise BadInput(
                f"{where}: {kind} has no setting {key}",
                rule=f"its settings are {', '.join(known)}",
                values=f"{key}: {value}",
                remedy=f"did you mean {near}?" if near else f"without {key}",
            )
    devices = tree.get("devices", ranks)
    if not isinstance(devices, int) or isinstance(devices, bool):
        raise BadInput(
            f"{where}: devices: {devices!r} is not a whole number",
            rule="devices of a topology by name are counted",
            values=f"devices: {devices!r}",
            remedy=f"devices: {ranks}",
        )
    made = make_topology(kind, devices, {**own, **settings})
    return replace(
        made,
        name=f"{tree.get('name', where)}, {made.name}",
        reduce_s_per_byte=reduce_s_per_byte(tree),
        merge_s_per_entry=merge_s_per_entry(tree),
    )


def reduce_s_per_byte(tree: Mapping[str, Any]) -> float:
    """Return the seconds a byte that a device takes to add what it received."""
    return 1 / parse_bandwidth(tree["adding"], "adding") if "adding" in tree else 0.0


def merge_s_per_entry(tree: Mapping[str, Any]) -> float:
    """Return the seconds an entry that a device takes to merge sparse lists."""
    return parse_duration(tree["merging"], "merging") if "merging" in tree else 0.0


def _suggest_platform(name: str) -> None:
    if name.replace("-", "_") in FABRICS:
        return
    near = did_you_mean(name.replace("-", "_"), [*FABRICS, *PLATFORM_NAMES])
    if near in PLATFORM_NAMES:
        raise BadInput(
            f"no topology named {name}",
            rule=f"one of {', '.join([*FABRICS, *PLATFORM_NAMES])}, or a .yaml file",
            values=f"--topology {name}",
            remedy=f"did you mean {near}?",
        )
