"""PipeDream's profile files: a node a line, an edge a line, times in milliseconds.

    node4 -- Conv2d(64, 64, ...) -- forward_compute_time=46.201, \
backward_compute_time=113.330, activation_size=1644167168.000, parameter_size=147712.000
    <tab>node3 -- node4

Sizes are bytes of a whole minibatch; `[a; b; c]` is a tuple, whose parts add up. (Its
program is github.com/msr-fiddle/pipedream; Narayanan et al. 2019, SOSP.)
"""

import re
from collections.abc import Sequence
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.planner.stages.graph import LayerGraph, Node

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
"""Layers that take some time, if less than the file has digits for."""
_MS: Final = 1e-3


def parse_pipedream_profile(text: str, source: str) -> LayerGraph:
    """Read a profile.

    Inputs (nodes that read nothing and are called `Input...`) are left out, as the
    authors leave them out: they are wherever the first stage is. A node that works in
    place saves no second copy. Nodes may take no time: the profiler does not see views,
    and rounds to a microsecond.

    Args:
        text: of a `graph.txt`.
        source: its name, for errors.

    Raises:
        BadInput: a line that is neither node nor edge, a size or time that is missing
            or no number, no time at all, or what `LayerGraph` refuses.
    """
    nodes, edges = [], []
    # Files written on Windows begin with a byte order mark.
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        where, shown = f"{source}, line {number}", line.strip()
        parts = [part.strip() for part in line.split(_SEPARATOR)]
        if not shown:
            continue
        # A node without a module has two parts like an edge, but times in the second.
        if len(parts) >= 3 or "_time=" in parts[-1]:
            nodes.append(_parse_node(parts, shown, where))
        elif len(parts) == 2 and all(parts) and "=" not in parts[1]:
            edges.append((parts[0], parts[1]))
        else:
            raise BadInput(
                f"{where} is neither a node nor an edge",
                rule="a node is `name -- module -- "
                + ", ".join(f"{name}=..." for name in NODE_FIELDS)
                + "`, an edge is `name -- name`",
                values=shown[:80],
                remedy="a graph.txt of PipeDream's profiler, or a profile of ours as "
                "JSON",
            )
    read = {reader for _, reader in edges}
    # Their reader is in the first stage wherever they are, and they take no time.
    inputs = {
        node.name
        for node in nodes
        if node.name not in read and node.label.startswith("Input")
    }
    kept = tuple(node for node in nodes if node.name not in inputs)
    # Files have microseconds, and a small layer takes less. It costs what it says, and
    # whoever reads the answer is told: it may also not have been measured.
    idle = [
        node.name
        for node in kept
        if not node.seconds and (node.parameters or _COMPUTE_PATTERN.match(node.label))
    ]
    origin = "measured"
    if idle:
        origin += f"; 0 s for {', '.join(idle[:3])}"
        origin += f" and {len(idle) - 3} more layers" * (len(idle) > 3)
    inner = dict.fromkeys(edge for edge in edges if edge[0] not in inputs)
    graph = LayerGraph(source=source, nodes=kept, edges=tuple(inner), origin=origin)
    graph.check_time()
    return graph


def _parse_node(parts: Sequence[str], shown: str, where: str) -> Node:
    """Read a node, of which a line has the parts between its separators."""
    name, label = parts[0], parts[1] if len(parts) > 2 else ""
    values = dict(_FIELD_PATTERN.findall(parts[min(2, len(parts) - 1)]))
    numbers = []
    for field in NODE_FIELDS:
        if field not in values:
            others = [one for one in values if one not in NODE_FIELDS]
            near = did_you_mean(field, others)
            raise BadInput(
                f"{where}: {name} has no {field}",
                rule=f"a node has {', '.join(NODE_FIELDS)}",
                values=shown[:90],
                remedy=f"{field} instead of {near}" if near else f"{field}=...",
            )
    for field in NODE_FIELDS:
        # A module with several outputs has a tuple of sizes.
        inner = values[field].strip().strip("[]")
        try:
            numbers.append(sum(float(part) for part in re.split(r"[;,]", inner)))
        except ValueError as error:
            raise BadInput(
                f"{where}: {name} has no number for {field}",
                rule="times are milliseconds, sizes bytes; a tuple is [a; b; c]",
                values=f"{field}={values[field].strip()}",
                remedy=f"{field}=0.000, where there is none",
            ) from error
    forward, backward, output, parameters = numbers
    return Node(
        name=name,
        label=label,
        forward=forward * _MS,
        backward=backward * _MS,
        output=output,
        kept=0 if _IN_PLACE_PATTERN.search(label) else output,
        parameters=parameters,
    )
