"""A graph: what each node of a network costs, and which node feeds which."""

import heapq
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean

_NODE_QUANTITIES: Final = ("forward", "backward", "output", "kept", "parameters")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One piece of a network that is never split, and one minibatch through it."""

    name: str
    """As edges name it."""
    label: str = ""
    """What it is, for people."""
    forward: float
    """Seconds of the forward pass."""
    backward: float
    """Seconds of the backward pass."""
    output: float
    """Bytes that it hands on."""
    kept: float
    """Bytes of activations that lie until its backward pass."""
    parameters: float
    """Bytes of its parameters."""
    cut_after: bool = True
    """Whether the network may be cut behind it."""

    @property
    def seconds(self) -> float:
        """Forward and backward pass together."""
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class LayerGraph:
    """Nodes, and the edges from the one that makes something to the one that reads it.

    Raises:
        BadInput: no nodes, two of a name, an edge to none, a number that is none, no
            time at all, or a cycle.
    """

    source: str
    """Where it was read, for errors."""
    nodes: tuple[Node, ...]
    """In the order they were given."""
    edges: tuple[tuple[str, str], ...]
    """(maker, reader), each once."""
    origin: str = "measured"
    """Where the times are from."""

    def __post_init__(self) -> None:
        _check_names(self)
        _check_edges(self)
        for node in self.nodes:
            _check_numbers(self.source, node)
        if len(self.order) < len(self.nodes):
            raise _cycle_error(self)
        _check_times(self)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Places of the nodes, each behind all that it reads; least number first."""
        place = {node.name: i for i, node in enumerate(self.nodes)}
        rank = _node_ranks(self.nodes)
        waits = dict.fromkeys(place, 0)
        for _, reader in self.edges:
            waits[reader] += 1
        ready = [rank[name] for name, count in waits.items() if not count]
        heapq.heapify(ready)
        readers = self.readers
        found = []
        while ready:
            _, name = heapq.heappop(ready)
            found.append(place[name])
            for reader in readers[name]:
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, rank[reader])
        return tuple(found)

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the nodes that read what each node makes."""
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for maker, reader in self.edges:
            found[maker].append(reader)
        return {name: tuple(own) for name, own in found.items()}

    @property
    def is_chain(self) -> bool:
        """Whether each node reads the one before it, and no other."""
        ordered = [self.nodes[i].name for i in self.order]
        return set(self.edges) == set(itertools.pairwise(ordered))


def _node_ranks(nodes: Sequence[Node]) -> dict[str, tuple[int, str]]:
    """Number nodes as their names do; where a name has no number, as they stand."""
    numbers = [re.search(r"(\d+)$", node.name) for node in nodes]
    whole = all(numbers) and len({n[1] for n in numbers if n}) == len(nodes)
    return {
        node.name: (int(n[1]) if whole and n else i, node.name)
        for i, (node, n) in enumerate(zip(nodes, numbers))
    }


def _check_names(graph: LayerGraph) -> None:
    if not graph.nodes:
        raise BadInput(
            f"{graph.source} has no node that computes",
            rule="a profile has at least one node besides its inputs",
            values=f"{graph.source}: 0 nodes",
            remedy="jaxdist profile resnet50 -o resnet50.json",
        )
    seen = set()
    for node in graph.nodes:
        if node.name in seen:
            raise BadInput(
                f"{graph.source} has two nodes {node.name}",
                rule="each node of a profile has a name of its own",
                values=f"the second is {node.label or node.name}",
                remedy=f"another name for one of the two {node.name}",
            )
        seen.add(node.name)


def _check_edges(graph: LayerGraph) -> None:
    names = [node.name for node in graph.nodes]
    known = set(names)
    for edge in graph.edges:
        for end in edge:
            if end not in known:
                near = did_you_mean(end, names)
                raise BadInput(
                    f"{graph.source} has an edge to no node: {end}",
                    rule="both ends of an edge are nodes of the profile",
                    values=f"edge {edge[0]} -- {edge[1]}",
                    remedy=f"did you mean {near}?"
                    if near
                    else f"a line for {end}, or no edge to it",
                )


def _check_numbers(source: str, node: Node) -> None:
    for name in _NODE_QUANTITIES:
        value = getattr(node, name)
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(
                f"{source}: {node.name} has no {name} of {value:g}",
                rule="seconds and bytes of a node are 0 or above, and finite",
                values=f"{node.name} ({node.label or 'no text'}): {name} = {value:g}",
                remedy=f"profile {node.name} again",
            )


def _check_times(graph: LayerGraph) -> None:
    if any(node.seconds for node in graph.nodes):
        return
    first, *more = graph.nodes
    raise zero_time_error(graph.source, first, len(more))


def zero_time_error(source: str, node: Node, other_nodes: int = 0) -> BadInput:
    """Return the refusal of a node that was not timed, and of more like it.

    A reshape may well take no time at all, but not a layer.
    """
    return BadInput(
        f"{source}: {node.name} takes no time",
        rule="a layer takes time, and so does a network",
        values=f"{node.name} ({node.label or 'no text'}): 0 s forward, 0 s backward"
        + f"; {other_nodes} more like it" * bool(other_nodes),
        remedy=f"profile {node.name} again",
    )


def _cycle_error(graph: LayerGraph) -> BadInput:
    cycle = _find_cycle(graph)
    return BadInput(
        f"{graph.source} has a cycle through {cycle[0]}",
        rule="what a node makes never comes back to it",
        values=" -> ".join((*cycle, cycle[0])),
        remedy=f"no edge {cycle[-1]} -- {cycle[0]}",
    )


def _find_cycle(graph: LayerGraph) -> list[str]:
    """Walk backwards among nodes that never get ready, until one comes twice."""
    done = {graph.nodes[i].name for i in graph.order}
    makers = {reader: maker for maker, reader in graph.edges if maker not in done}
    path = [
        next(n.name for n in graph.nodes if n.name in makers and n.name not in done)
    ]
    while makers[path[-1]] not in path:
        path.append(makers[path[-1]])
    return path[path.index(makers[path[-1]]) :][::-1]
