"""The graph of a network: the cost of each node, and the edges of its dataflow."""

import heapq
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean

_NODE_QUANTITIES: Final = (
    "forward",
    "backward",
    "output",
    "passed",
    "kept",
    "parameters",
)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A piece of a network that is never split, with its cost for one minibatch."""

    name: str
    """Its name in edges."""
    label: str = ""
    """Its kind, for people."""
    forward: float
    """Seconds of the forward pass."""
    backward: float
    """Seconds of the backward pass."""
    output: float
    """Bytes of its output."""
    passed: float = 0.0
    """Bytes of its output that it was handed and hands on as they are."""
    kept: float
    """Bytes of activations that it saves for its backward pass."""
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
    """Nodes, and the edges from each producer (maker) to its consumers (readers).

    Raises:
        BadInput: no nodes, two of a name, an edge to none, a number that is none, or a
            cycle.
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
        if not self.nodes:
            raise BadInput(
                f"{self.source} has no node that computes",
                rule="a profile has at least one node besides its inputs",
                values=f"{self.source}: 0 nodes",
                remedy=new_profile_remedy(self.source),
            )
        known: dict[str, None] = {}
        for node in self.nodes:
            if node.name in known:
                raise BadInput(
                    f"{self.source} has two nodes {node.name}",
                    rule="each node of a profile has a name of its own",
                    values=f"the second is {node.label or node.name}",
                    remedy=f"another name for one of the two {node.name}",
                )
            known[node.name] = None
        for edge in self.edges:
            for end in edge:
                if end not in known:
                    near = did_you_mean(end, [*known])
                    raise BadInput(
                        f"{self.source} has an edge to no node: {end}",
                        rule="both ends of an edge are nodes of the profile",
                        values=f"edge {edge[0]} -- {edge[1]}",
                        remedy=f"did you mean {near}?"
                        if near
                        else f"a line for {end}, or no edge to it",
                    )
        for node in self.nodes:
            for name in _NODE_QUANTITIES:
                value = getattr(node, name)
                if not (math.isfinite(value) and value >= 0):
                    what = f"{node.name} ({node.label or 'no text'})"
                    raise BadInput(
                        f"{self.source}: {node.name} has no {name} of {value:g}",
                        rule="seconds and bytes of a node are 0 or above, and finite",
                        values=f"{what}: {name} = {value:g}",
                        remedy=f"profile {node.name} again",
                    )
        # Nodes of a cycle never become ready.
        if len(self.order) < len(self.nodes):
            raise _cycle_error(self)

    def check_time(self) -> None:
        """Refuse a network that takes no time: nothing says where it should be cut.

        Single nodes may take none: profilers do not see views, nor small layers.

        Raises:
            BadInput: no node takes time.
        """
        if not any(node.seconds for node in self.nodes):
            first, more = self.nodes[0], len(self.nodes) - 1
            raise BadInput(
                f"{self.source}: {first.name} takes no time, and neither does the rest",
                rule="a network takes time",
                values=f"{first.name} ({first.label or 'no text'}): 0 s forward, 0 s "
                "backward" + f"; {more} more like it" * bool(more),
                remedy="profile the network again",
            )

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Places of the nodes, each behind all that it reads; least number first."""
        place = {node.name: i for i, node in enumerate(self.nodes)}
        # By the numbers in their names, as PipeDream orders its nodes; where a name has
        # no number of its own, as they stand.
        found = [re.search(r"(\d+)$", node.name) for node in self.nodes]
        numbers = [int(match[1]) for match in found if match]
        # `node04` and `node4` have one number and are two texts; equal texts are no
        # order.
        texts = {match[1] for match in found if match}
        if not all(found) or len(texts) < len(self.nodes):
            numbers = [*range(len(self.nodes))]
        names = [node.name for node in self.nodes]
        rank = {name: (n, name) for name, n in zip(names, numbers, strict=True)}
        # Kahn's algorithm, with a heap so that the least number comes first.
        waits = dict.fromkeys(place, 0)
        for _, reader in self.edges:
            waits[reader] += 1
        ready = [rank[name] for name, count in waits.items() if not count]
        heapq.heapify(ready)
        readers, order = self.readers, []
        while ready:
            _, name = heapq.heappop(ready)
            order.append(place[name])
            for reader in readers[name]:
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, rank[reader])
        return tuple(order)

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
        # A chain has one order, and its edges are between neighbours in it.
        ordered = [self.nodes[i].name for i in self.order]
        return set(self.edges) == set(itertools.pairwise(ordered))


def new_profile_remedy(source: str) -> str:
    """Return the command that writes a profile, to another file than the one read.

    >>> new_profile_remedy("graph.txt"), new_profile_remedy("resnet50.json")
    ('jaxdist profile resnet50 -o resnet50.json', \
'jaxdist profile resnet50 -o resnet50_profile.json')
    """
    # What was refused may be someone's only copy of something else.
    name = "resnet50_profile" if source.endswith("resnet50.json") else "resnet50"
    return f"jaxdist profile resnet50 -o {name}.json"


def _cycle_error(graph: LayerGraph) -> BadInput:
    """Return the refusal of a graph whose order lacks nodes, with a cycle of these."""
    done = {graph.nodes[i].name for i in graph.order}
    makers = {reader: maker for maker, reader in graph.edges if maker not in done}
    # Each node that is never ready reads another one, so a walk backwards among them
    # comes to one of its nodes twice.
    path = [next(n.name for n in graph.nodes if n.name in makers.keys() - done)]
    while makers[path[-1]] not in path:
        path.append(makers[path[-1]])
    cycle = path[path.index(makers[path[-1]]) :][::-1]
    return BadInput(
        f"{graph.source} has a cycle through {cycle[0]}",
        rule="what a node makes never comes back to it",
        values=" -> ".join((*cycle, cycle[0])),
        remedy=f"no edge {cycle[-1]} -- {cycle[0]}",
    )
