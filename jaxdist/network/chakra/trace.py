"""Execution traces: what each rank does in a step, and in which order it may.

A rank's nodes are a graph: a node begins when all that it depends on is done. Ranks
meet in collectives and in messages, and nowhere else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from jaxdist.core.errors import BadInput

NodeKind = Literal["compute", "collective", "send", "receive"]
"""What a node is; `compute` is everything that takes a time of the rank alone."""

_MAX_NAMED = 3
"""Nodes that a refusal names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceNode:
    """One operation of one rank."""

    id: int
    """Its number among the rank's nodes."""
    name: str
    """Its name for people."""
    kind: NodeKind
    """What it is."""
    dependencies: tuple[int, ...] = ()
    """Nodes of the rank that are done before it begins."""
    duration_us: int = 0
    """Microseconds that it computes."""
    collective: str = ""
    """Kind of a collective, as the compiler names it: `all-reduce`."""
    group: str = ""
    """Process group of a collective; empty: all ranks."""
    size: int = 0
    """Bytes that the rank gives to a collective, or that a message has."""
    peer: int = 0
    """The other rank of a message."""
    tag: int = 0
    """Tells messages of the same two ranks apart."""


RankTrace = tuple[TraceNode, ...]
"""The nodes of one rank, in the order in which it issues what may begin."""


@dataclass(frozen=True, kw_only=True)
class ExecutionTrace:
    """The traces of all ranks.

    Raises:
        BadInput: nodes that wait for each other or for one that is not there, or a
            collective of a group that its rank is not in.
    """

    ranks: tuple[RankTrace, ...]
    """One for each rank."""
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of each process group, in the order of the group."""

    def __post_init__(self) -> None:
        for rank, nodes in enumerate(self.ranks):
            _check_order(rank, nodes)
            for node in nodes:
                if node.kind == "collective" and rank not in self.members(node):
                    raise BadInput(
                        f"rank {rank} is in a collective of a group that it is not in",
                        rule="a collective is of a process group of its rank",
                        values=f"node {node.id}, {node.name}: group {node.group!r}",
                        remedy="comm_groups.json of the same folder has all groups",
                    )

    def members(self, node: TraceNode) -> tuple[int, ...]:
        """Return the ranks of a collective; none where its group is not known."""
        if not node.group:
            return tuple(range(len(self.ranks)))
        return tuple(self.groups.get(node.group, ()))


def result_bytes(node: TraceNode, members: int) -> int:
    """Return the bytes of the result of a collective or a message on a rank.

    >>> node = TraceNode(id=0, name="", kind="collective", size=8,
    ...                  collective="all-gather")
    >>> result_bytes(node, members=4)
    32
    """
    if node.collective == "all-gather":
        return node.size * members
    return node.size // members if node.collective == "reduce-scatter" else node.size


def _check_order(rank: int, nodes: Sequence[TraceNode]) -> None:
    """Refuse nodes of a rank that can never all be done."""
    known = {node.id for node in nodes}
    if len(known) < len(nodes):
        raise BadInput(
            f"two nodes of rank {rank} have one number",
            rule="the nodes of a rank have numbers of their own",
            values=f"{len(nodes)} nodes, {len(known)} numbers",
            remedy="write the trace anew",
        )
    for node in nodes:
        if missing := [other for other in node.dependencies if other not in known]:
            raise BadInput(
                f"rank {rank} waits for a node that it does not have",
                rule="what a node depends on is a node of its rank",
                values=f"node {node.id}, {node.name}: {missing[:_MAX_NAMED]}",
                remedy="the file may be cut off: write it anew",
            )
    # Kahn's algorithm: what is left when nothing can begin any more is in a cycle or
    # behind one.
    waits = {node.id: len(node.dependencies) for node in nodes}
    after: dict[int, list[int]] = {number: [] for number in known}
    for node in nodes:
        for other in node.dependencies:
            after[other].append(node.id)
    ready = [number for number, count in waits.items() if not count]
    while ready:
        for number in after[ready.pop()]:
            waits[number] -= 1
            if not waits[number]:
                ready.append(number)
    stuck = [node for node in nodes if waits[node.id]]
    if stuck:
        named = "; ".join(f"{node.id}, {node.name}" for node in stuck[:_MAX_NAMED])
        raise BadInput(
            f"nodes of rank {rank} wait for each other",
            rule="the dependencies of a trace have no cycle",
            values=f"{len(stuck)} nodes never begin: {named}",
            remedy="write the trace anew",
        )
