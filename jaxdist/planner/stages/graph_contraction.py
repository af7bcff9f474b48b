"""The contraction of a graph to fewer nodes, whose best plans are as fast.

Three kinds of nodes never need a cut of their own, so that fewer sets of nodes have to
be looked at. `free` means no seconds, no parameters, nothing saved where memory counts:

    first   free, makes nothing, reads others of its kind alone: before all else
    last    free, read by nobody, reads one node: with that one
    next    free, the only reader of the only node it reads, and makes no more: with it

What is lost are stages without any work, which only take devices off others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxdist.planner.stages.graph import LayerGraph, Node


@dataclass(frozen=True, kw_only=True)
class ContractedGraph:
    """A smaller graph, and the nodes that its nodes stand for."""

    graph: LayerGraph
    """Fewer nodes."""
    merged_nodes: dict[str, tuple[str, ...]]
    """Names of the original nodes, by the name of a contracted one."""
    first_stage_nodes: tuple[str, ...] = ()
    """Nodes that belong into the first stage, whatever that is."""


def contract_graph(graph: LayerGraph, *, memory_limited: bool) -> ContractedGraph:
    """Return a smaller graph that has as good plans, but for stages without work.

    Args:
        graph: any.
        memory_limited: whether saved bytes count.
    """
    makers: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    for maker, reader in graph.edges:
        makers[reader].append(maker)
    # In the graph's order a node comes after all that it reads.
    first: dict[str, None] = {}
    for place in graph.order:
        node = graph.nodes[place]
        leads = first.keys() >= {*makers[node.name]} and not node.output
        if leads and _is_free(node, memory_limited):
            first[node.name] = None
    nodes = {n.name: n for n in graph.nodes if n.name not in first}
    edges = {e for e in graph.edges if e[0] in nodes}
    groups: dict[str, tuple[str, ...]] = {name: (name,) for name in nodes}
    while pair := next(_contractible_edges(nodes, edges, memory_limited), None):
        maker, reader = pair
        kept, gone = nodes[maker], nodes.pop(reader)
        # The merged node makes what the reader makes, unless nobody reads that.
        last = all(a != reader for a, _ in edges)
        made = kept if last else gone
        nodes[maker] = replace(
            kept, output=made.output, passed=made.passed, kept=kept.kept + gone.kept
        )
        groups[maker] += groups.pop(reader)
        # Edges of the merged node are those of both.
        edges = {(maker if a == reader else a, b) for a, b in edges if (a, b) != pair}
    small = LayerGraph(
        source=graph.source, nodes=tuple(nodes.values()), edges=tuple(sorted(edges))
    )
    return ContractedGraph(
        graph=small, merged_nodes=groups, first_stage_nodes=tuple(first)
    )


def _is_free(node: Node, memory_limited: bool) -> bool:
    return not (node.seconds or node.parameters or (memory_limited and node.kept))


def _contractible_edges(
    nodes: dict[str, Node], edges: set[tuple[str, str]], memory_limited: bool
) -> Iterator[tuple[str, str]]:
    """Yield (maker, reader) that may be one node."""
    makers: dict[str, list[str]] = {name: [] for name in nodes}
    readers: dict[str, list[str]] = {name: [] for name in nodes}
    for maker, reader in edges:
        makers[reader].append(maker)
        readers[maker].append(reader)
    for name, node in nodes.items():
        if _is_free(node, memory_limited) and len(makers[name]) == 1:
            maker = makers[name][0]
            last = not readers[name]
            # A cut between the two would send more than one behind them.
            only = len(readers[maker]) == 1 and node.output <= nodes[maker].output
            if (last or only) and nodes[maker].cut_after == node.cut_after:
                yield maker, name
