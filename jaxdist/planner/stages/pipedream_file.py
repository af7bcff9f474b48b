"""PipeDream's profile files: a node a line, an edge a line, times in milliseconds.

    node4 -- Conv2d(64, 64, ...) -- forward_compute_time=46.201, \
backward_compute_time=113.330, activation_size=1644167168.000, parameter_size=147712.000
    <tab>node3 -- node4

Sizes are bytes of a whole minibatch; `[a; b; c]` is a tuple, whose parts add up. (Its
program is github.com/msr-fiddle/pipedream; Narayanan et al. 2019, SOSP.)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.planner.stages.graph import LayerGraph, Node, zero_time_error

NODE_FIELDS: Final = (
    "forward_compute_time",
    "backward_compute_time",
    "activation_size",
    "parameter_size",
)
_SEPARATOR: Final = " -- "
_FIELD_PATTERN: Final = re.compile(r"([A-Za-z_]+)\s*=\s*(\[[^\]]*\]|[^,]*)")
_IN_PLACE_PATTERN: Final = re.compile(r"\binplace\b(?!\s*=\s*False)")
_COMPUTE_PATTERN: Final = re.compile(
    r"\w*(Conv|Linear|LSTM|GRU|RNN|Norm|Pool|ReLU|Embedding|Attention|Softmax|Tanh)"
)
"""Layers that never take no time; views, additions and dropout may in these files."""
_MS: Final = 1e-3


@dataclass(frozen=True, kw_only=True)
class _ProfileLine:
    """A line of the file that says something."""

    number: int
    text: str
    parts: tuple[str, ...]


def parse_pipedream_profile(text: str, source: str) -> LayerGraph:
    """Read a profile.

    Inputs (nodes that read nothing and are called `Input...`) are left out, as the
    authors leave them out: they are wherever the first stage is. What a node does in
    place it does not keep a second time.

    Args:
        text: of a `graph.txt`.
        source: its name, for errors.

    Raises:
        BadInput: a line that is neither node nor edge, a size or time that is missing
            or no number, a layer that takes no time, or what `LayerGraph` refuses.
    """
    lines = list(_split_lines(text))
    nodes = [_parse_node(line, source) for line in lines if _is_node(line)]
    edges = [_parse_edge(line, source) for line in lines if not _is_node(line)]
    read = {reader for _, reader in edges}
    inputs = {
        node.name
        for node in nodes
        if node.name not in read and node.label.startswith("Input")
    }
    kept = tuple(node for node in nodes if node.name not in inputs)
    idle = [node for node in kept if not node.seconds and _must_take_time(node)]
    if idle:
        raise zero_time_error(source, idle[0], len(idle) - 1)
    inner = dict.fromkeys(edge for edge in edges if edge[0] not in inputs)
    return LayerGraph(source=source, nodes=kept, edges=tuple(inner))


def _must_take_time(node: Node) -> bool:
    return bool(node.parameters or _COMPUTE_PATTERN.match(node.label))


def _split_lines(text: str) -> list[_ProfileLine]:
    found = []
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        if line.strip():
            parts = tuple(part.strip() for part in line.split(_SEPARATOR))
            found.append(_ProfileLine(number=number, text=line.strip(), parts=parts))
    return found


def _is_node(line: _ProfileLine) -> bool:
    return len(line.parts) >= 3 or "_time=" in line.parts[-1]


def _parse_edge(line: _ProfileLine, source: str) -> tuple[str, str]:
    if len(line.parts) == 2 and all(line.parts) and "=" not in line.parts[1]:
        return line.parts[0], line.parts[1]
    raise BadInput(
        f"{source}, line {line.number} is neither a node nor an edge",
        rule="a node is `name -- module -- "
        + ", ".join(f"{name}=..." for name in NODE_FIELDS)
        + "`, an edge is `name -- name`",
        values=line.text[:80],
        remedy="a graph.txt of PipeDream's profiler, or a profile of ours as JSON",
    )


def _parse_node(line: _ProfileLine, source: str) -> Node:
    name, label = line.parts[0], line.parts[1] if len(line.parts) > 2 else ""
    values = dict(_FIELD_PATTERN.findall(line.parts[min(2, len(line.parts) - 1)]))
    for field in NODE_FIELDS:
        if field not in values:
            raise _missing_field_error(line, source, field, values)
    forward, backward, output, parameters = (
        _parse_number(values[field], f"{source}, line {line.number}: {name}", field)
        for field in NODE_FIELDS
    )
    return Node(
        name=name,
        label=label,
        forward=forward * _MS,
        backward=backward * _MS,
        output=output,
        kept=0 if _IN_PLACE_PATTERN.search(label) else output,
        parameters=parameters,
    )


def _missing_field_error(
    line: _ProfileLine, source: str, field: str, values: Mapping[str, str]
) -> BadInput:
    others = [name for name in values if name not in NODE_FIELDS]
    near = did_you_mean(field, others)
    return BadInput(
        f"{source}, line {line.number}: {line.parts[0]} has no {field}",
        rule=f"a node has {', '.join(NODE_FIELDS)}",
        values=line.text[:90],
        remedy=f"{field} instead of {near}" if near else f"{field}=...",
    )


def _parse_number(text: str, where: str, field: str) -> float:
    """Read a number, or a tuple of them as their sum."""
    inner = text.strip().strip("[]")
    try:
        return sum(float(part) for part in re.split(r"[;,]", inner))
    except ValueError as error:
        raise BadInput(
            f"{where} has no number for {field}",
            rule="times are milliseconds, sizes bytes; a tuple is [a; b; c]",
            values=f"{field}={text.strip()}",
            remedy=f"{field}=0.000, where there is none",
        ) from error
