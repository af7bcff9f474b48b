"""Condense: a graph with fewer nodes, whose best plans are as fast.

Three kinds of nodes never need a cut of their own, so that fewer sets of nodes have to
be looked at. `free` means no seconds, no parameters, nothing kept where memory counts:

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
    """A smaller graph, and what its nodes stand for."""

    graph: LayerGraph
    """Fewer nodes."""
    merged_nodes: dict[str, tuple[str, ...]]
    """Names of the nodes that each of its nodes stands for."""
    first_stage_nodes: tuple[str, ...]
    """Nodes that belong into the first stage, whatever that is."""

    def original_names(self, node_mask: int) -> frozenset[str]:
        """Return what some of its nodes stand for.

        Args:
            node_mask: bit i is its node i.
        """
        own = (n.name for i, n in enumerate(self.graph.nodes) if node_mask >> i & 1)
        return frozenset(name for one in own for name in self.merged_nodes[one])


def contract_graph(graph: LayerGraph, *, memory_limited: bool) -> ContractedGraph:
    """Return a smaller graph that has as good plans, but for stages without work.

    Args:
        graph: any.
        memory_limited: whether bytes that are kept count.
    """
    first = tuple(_leading_free_nodes(graph, memory_limited))
    nodes = {n.name: n for n in graph.nodes if n.name not in first}
    edges = {e for e in graph.edges if e[0] in nodes}
    groups: dict[str, tuple[str, ...]] = {name: (name,) for name in nodes}
    while pair := next(_contractible_edges(nodes, edges, memory_limited), None):
        maker, reader = pair
        last = all(a != reader for a, _ in edges)
        nodes[maker] = _merge_nodes(nodes[maker], nodes.pop(reader), last=last)
        groups[maker] += groups.pop(reader)
        edges = {(maker if a == reader else a, b) for a, b in edges if (a, b) != pair}
    small = LayerGraph(
        source=graph.source, nodes=tuple(nodes.values()), edges=tuple(sorted(edges))
    )
    return ContractedGraph(graph=small, merged_nodes=groups, first_stage_nodes=first)


def identity_contraction(graph: LayerGraph) -> ContractedGraph:
    """Return a graph as it is."""
    return ContractedGraph(
        graph=graph,
        merged_nodes={node.name: (node.name,) for node in graph.nodes},
        first_stage_nodes=(),
    )


def _is_free(node: Node, memory_limited: bool) -> bool:
    return not (node.seconds or node.parameters or (memory_limited and node.kept))


def _leading_free_nodes(graph: LayerGraph, memory_limited: bool) -> Iterator[str]:
    makers: dict[str, list[str]] = {node.name: [] for node in graph.nodes}
    for maker, reader in graph.edges:
        makers[reader].append(maker)
    found: set[str] = set()
    for place in graph.order:
        node = graph.nodes[place]
        if (
            _is_free(node, memory_limited)
            and not node.output
            and found.issuperset(makers[node.name])
        ):
            found.add(node.name)
            yield node.name


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
            only = len(readers[maker]) == 1 and node.output <= nodes[maker].output
            if (last or only) and nodes[maker].cut_after == node.cut_after:
                yield maker, name


def _merge_nodes(maker: Node, reader: Node, *, last: bool) -> Node:
    """Return both as one: it makes what the reader makes, if anybody reads that."""
    output = maker.output if last else reader.output
    return replace(maker, output=output, kept=maker.kept + reader.kept)
