"""Piper's graphs: JSON with the options of each node, as its public inputs have them.

    {"maxDevices": 10, "maxMemoryPerDevice": 8e10, "bandwidth": 2.5e10,
     "mbsInBatch": 1920,
     "nodes": [{"id": 0, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 1, ...}]}}],
     "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 8192}]}

Sizes are bytes, times seconds of a microbatch. (Format: github.com/msr-fiddle/piper.)
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.validation import parse_json
from jaxdist.planner.stages.option_graph import NodeOption, OptionGraph, OptionNode

_GRAPH_FIELDS: Final = (
    "maxDevices",
    "maxMemoryPerDevice",
    "bandwidth",
    "nodes",
    "edges",
)
_OWN_FIELDS: Final = ("maxDevices", "maxMemoryPerDevice", "mbsInBatch", "nodes")
"""Fields that no other format has that is read here."""
_BATCH_FIELDS: Final = ("mbsInBatch", "maxBatchSize")
"""Names of one number: the files have the first, their description the second."""


def read_piper_tree(text: str) -> dict[str, Any] | None:
    """Return the JSON of a file that is meant as a graph of Piper's; None of another.

    Args:
        text: of the file.
    """
    # Editors may have put a byte order mark in front.
    try:
        tree = parse_json(text.lstrip("\ufeff"))
    except ValueError:
        return None
    # Profiles of ours have blocks, and none of these.
    return tree if isinstance(tree, dict) and {*tree} & {*_OWN_FIELDS} else None


def parse_piper_graph(tree: Any, source: str) -> OptionGraph:
    """Read a graph.

    Args:
        tree: of the JSON file.
        source: its name, for errors.

    Raises:
        BadInput: a field that is missing or no number, an edge to nowhere or twice, an
            edge that an option does not price, or what `OptionGraph` refuses.
    """
    for field in _GRAPH_FIELDS:
        _field(tree, field, source, source)
    # Without either the refusal names the field that the files have.
    batch = next((name for name in _BATCH_FIELDS if name in tree), _BATCH_FIELDS[0])
    ends = {}
    for i, edge in enumerate(_list(tree["edges"], source, "edges")):
        where = f"{source}, edge {i}"
        pair = tuple(
            str(_field(edge, k, source, where)) for k in ("sourceId", "destId")
        )
        # A mapping by ends would keep the second and lose the bytes of the first.
        if pair in ends:
            raise BadInput(
                f"{where} is there twice",
                rule="two nodes have at most one edge",
                values=f"{pair[0]} to {pair[1]}",
                remedy="one of them, with the bytes of both",
            )
        ends[pair[0], pair[1]] = _number(edge, "communicationCost", source, where)
    inputs: dict[str, list[str]] = {}
    outputs: dict[str, list[str]] = {}
    for maker, reader in ends:
        inputs.setdefault(reader, []).append(maker)
        outputs.setdefault(maker, []).append(reader)
    nodes = []
    for i, node in enumerate(_list(tree["nodes"], source, "nodes")):
        name = str(_field(node, "id", source, f"{source}, node {i}"))
        # Ids are numbers in the files; names are what people know the layers by.
        label = str(node.get("name", ""))
        where = f"{source}, node {name}" + f" ({label})" * bool(label)
        options = {}
        degrees = _field(node, "TMPCs", source, where)
        # JSON keys are text, so degrees have to be read as numbers.
        for degree, ways in (degrees if isinstance(degrees, dict) else {}).items():
            if not (degree.isdecimal() and int(degree) > 0):
                raise BadInput(
                    f"{where} has options of degree {degree}",
                    rule="options are by their degree of tensor parallelism, 1 or more",
                    values=f"TMPCs: {', '.join(degrees)}",
                    remedy='"1": [...]',
                )
            found = tuple(
                _parse_option(
                    way, inputs.get(name, []), outputs.get(name, []), source, where
                )
                for way in _list(ways, source, f"TMPCs of {name}")
            )
            # A degree with an empty list is one at which the node cannot be run.
            if found:
                options[int(degree)] = found
        if not options:
            raise BadInput(
                f"{where} has no option",
                rule="a node can be run in one way or more",
                values="TMPCs is empty",
                remedy='"TMPCs": {"1": [...]}',
            )
        nodes.append(OptionNode(name=name, label=label, options=options))
    return OptionGraph(
        source=source,
        nodes=tuple(nodes),
        edges=ends,
        devices=round(_number(tree, "maxDevices", source, source)),
        bandwidth=_number(tree, "bandwidth", source, source),
        memory=_number(tree, "maxMemoryPerDevice", source, source),
        microbatches=round(_number(tree, batch, source, source)),
    )


def _parse_option(
    way: Any, makers: list[str], readers: list[str], source: str, where: str
) -> NodeOption:
    syncs = []
    for field, others in (("syncTimeFw", makers), ("syncTimeBw", readers)):
        given = _field(way, field, source, where)
        priced = given if isinstance(given, dict) else {}
        # A neighbour that is left out would be priced as free.
        if wrong := priced.keys() ^ {*others}:
            raise BadInput(
                f"{where}: {field} does not have the node's edges",
                rule="syncTimeFw has each node that an edge comes from, syncTimeBw "
                "each that one goes to",
                values=f"{', '.join(sorted(wrong))} in one of edges and {field} alone",
                remedy=f'"{field}": '
                + "{"
                + ", ".join(f'"{other}": ...' for other in others)
                + "}",
            )
        syncs.append({one: _number(priced, one, source, where) for one in priced})
    return NodeOption(
        name=str(_field(way, "id", source, where)),
        seconds=_number(way, "timePerSample", source, where),
        parameters=_number(way, "parameterSize", source, where),
        memory_per_microbatch=_number(way, "memoryUsageA", source, where),
        memory_fixed=_number(way, "memoryUsageB", source, where),
        input_sync=syncs[0],
        output_sync=syncs[1],
    )


def _list(value: Any, source: str, what: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise BadInput(
        f"{source}: {what} is no list",
        rule="nodes, edges and the options of a degree are lists",
        values=f"{what} = {str(value)[:40]}",
        remedy=f"{what}: [...]",
    )


def _field(tree: Any, field: str, source: str, where: str) -> Any:
    if isinstance(tree, Mapping) and field in tree:
        return tree[field]
    known = [*tree] if isinstance(tree, Mapping) else []
    near = did_you_mean(field, known)
    raise BadInput(
        f"{where} has no {field}",
        rule="in Piper's form a graph has maxDevices, maxMemoryPerDevice, bandwidth, "
        "mbsInBatch, nodes and edges; a node id and TMPCs",
        values=f"{where} has {', '.join(known) or str(tree)[:40]}",
        remedy=f"{field} instead of {near}" if near else f'"{field}": ... in {source}',
    )


def _number(tree: Any, field: str, source: str, where: str) -> float:
    value = _field(tree, field, source, where)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and math.isfinite(value) and value >= 0:
        return float(value)
    raise BadInput(
        f"{where} has no {field} of {value!r}",
        rule="seconds, bytes and counts are numbers, 0 or above",
        values=f"{field} = {value!r}",
        remedy=f'"{field}": 0, where there is none',
    )
