"""Platform files: a named topology with settings, or devices and cables."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.validation import load_yaml_mapping
from jaxdist.network.platforms.built import (
    build_topology,
    merge_s_per_entry,
    reduce_s_per_byte,
)
from jaxdist.network.topologies.registry import (
    FABRICS,
    make_topology,
    settings_of,
    unknown_topology_error,
)
from jaxdist.network.topology import Topology

PLATFORM_NAMES: Final = ("tsubame3", "abci")
"""Platforms that have a file here: the wiring that published tables were simulated on.
The clusters of these names in `meshes/clusters` are levels of latency and bandwidth of
the real machines; neither description follows from the other."""
_NON_SETTINGS: Final = ("name", "source", "topology", "devices", "adding", "merging")


def find_topology(name: str, ranks: int, settings: Mapping[str, object]) -> Topology:
    """Return the topology of a name or a path.

    Args:
        name: of a topology, of a platform, or of a .yaml file.
        ranks: devices that are needed; a topology by name has as many.
        settings: of a topology by name.

    Raises:
        BadInput: no such name or file, or what it says makes no network.
    """
    path, key = Path(name), name.replace("-", "_")
    if name in PLATFORM_NAMES:
        path = Path(__file__).parent / f"{name}.yaml"
    elif path.suffix not in (".yaml", ".yml"):
        near = did_you_mean(key, [*FABRICS, *PLATFORM_NAMES])
        # `make_topology` knows no platforms, so a name near to one is refused here.
        if key not in FABRICS and near in PLATFORM_NAMES:
            raise BadInput(
                f"no topology named {name}",
                rule=f"one of {', '.join([*FABRICS, *PLATFORM_NAMES])}, or a .yaml "
                "file",
                values=f"--topology {name}",
                remedy=f"did you mean {near}?",
            )
        return make_topology(name, ranks, settings)
    tree: dict[str, Any] = load_yaml_mapping(
        path,
        kind="a platform",
        contents="topology, or devices and cables",
        option="--topology",
        doc_page="docs/network.md",
    )
    # A file may name a topology, or list its parts.
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


def _topology_from_settings(
    tree: dict[str, Any], ranks: int, settings: Mapping[str, object], where: str
) -> Topology:
    """Return a topology with the settings of a file; those of the command win."""
    kind = str(tree["topology"])
    if kind.replace("-", "_") not in FABRICS:
        raise unknown_topology_error(kind)
    # What a device takes to add or merge is of the platform, not of the fabric.
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
    # Without a number, as many devices as ranks.
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
