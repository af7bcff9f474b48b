"""Places: where a graph may be cut, and what lies before each cut.

A place is a set of nodes that holds, with a node, all that the node reads. A stage is
what one place has more than another; the bytes that cross a place are those of the
nodes before it that somebody behind it reads, each once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.planner.stages.graph import LayerGraph

FloatArray = NDArray[np.float64]

MAX_NODE_SETS: Final = 60_000
"""Sets of nodes that are walked through at most, cut at or not."""
MAX_CUT_POINTS: Final = {False: 4_000, True: 1_500}
"""Places that a search takes on one tier of devices, and on several: with them it looks
at each three places.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class CutPoints:
    """Sets of nodes, none to all, smaller ones first; arrays have an entry each."""

    node_masks: tuple[int, ...]
    """Which nodes are before it: bit i is node i of the graph."""
    seconds: FloatArray
    """Forward and backward, of all before it."""
    parameters: FloatArray
    """Bytes of theirs."""
    saved_bytes: FloatArray
    """Bytes of activations they keep."""
    output_bytes: FloatArray
    """Bytes that they hand on."""
    crossing_bytes: FloatArray
    """Bytes that cross it, one way."""
    contains: NDArray[np.bool_] | None = None
    """[i, j]: place j has all nodes of place i; None where it does for all i < j."""

    def __len__(self) -> int:
        """Count them, both ends included."""
        return len(self.node_masks)

    def pairwise_difference(self, sums: FloatArray, fill: float) -> FloatArray:
        """Return [i, j]: what place j has more than place i, `fill` where it has not.

        Args:
            sums: of each place, as `seconds`.
            fill: where place j does not hold place i, or is it.
        """
        found = sums[None, :] - sums[:, None]
        more = np.triu(np.ones(found.shape, bool), 1)
        if self.contains is not None:
            more &= self.contains
        return np.where(more, np.maximum(found, 0.0), fill)


def ordered_cut_points(graph: LayerGraph) -> CutPoints:
    """Return the places between neighbours in the graph's order."""
    members, before = [0], 0
    for node in graph.order:
        before |= 1 << node
        if graph.nodes[node].cut_after:
            members.append(before)
    if members[-1] != before:
        members.append(before)
    return _cut_points(graph, members)


def all_cut_points(
    graph: LayerGraph,
    keep_mask: Callable[[CutPoints], NDArray[np.bool_]],
    *,
    multi_level: bool,
) -> CutPoints:
    """Return every set of nodes that is a place, the ones without a use left out.

    Args:
        graph: any; the number of places grows with its branches, steeply.
        keep_mask: which of some places may be in the answer.
        multi_level: whether there are several tiers of devices.

    Raises:
        BadInput: there are too many.
    """
    every = _cut_points(graph, _ancestor_sets(graph))
    keep = keep_mask(every)
    keep[[0, -1]] = True
    members = [m for m, use in zip(every.node_masks, keep) if use]
    if len(members) > MAX_CUT_POINTS[multi_level]:
        raise _too_many_error(graph, len(members), MAX_CUT_POINTS[multi_level])
    within = _containment(members, len(graph.nodes))
    return replace(_cut_points(graph, members), contains=within)


def _ancestor_sets(graph: LayerGraph) -> list[int]:
    """Walk from no node to all, one more at a time."""
    readers = _reader_indices(graph)
    needs = [0] * len(graph.nodes)
    for maker, own in enumerate(readers):
        for reader in own:
            needs[reader] |= 1 << maker
    start = sum(1 << node for node, need in enumerate(needs) if not need)
    level, found = {0: start}, [0]
    for _ in graph.nodes:
        following: dict[int, int] = {}
        for before, ready in level.items():
            for node in _set_bits(ready):
                after = before | 1 << node
                if after not in following:
                    opened = [r for r in readers[node] if not needs[r] & ~after]
                    more = sum(1 << reader for reader in set(opened))
                    following[after] = ready & ~(1 << node) | more
            if len(found) + len(following) > MAX_NODE_SETS:
                raise _too_many_error(graph, len(found) + len(following), MAX_NODE_SETS)
        level = following
        found += sorted(level)
    return found


def _set_bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _reader_indices(graph: LayerGraph) -> list[list[int]]:
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    return [[place[r] for r in graph.readers[node.name]] for node in graph.nodes]


def _cut_points(graph: LayerGraph, node_masks: Sequence[int]) -> CutPoints:
    nodes = graph.nodes
    held = _unpack_masks(node_masks, len(nodes))
    each = [[n.seconds, n.parameters, n.kept, n.output] for n in nodes]
    seconds, parameters, kept, made = (held @ np.array(each, float)).T
    crossing = np.zeros(len(node_masks))
    for node, readers in enumerate(_reader_indices(graph)):
        over = held[:, node] & ~held[:, readers].all(axis=1)
        crossing += np.where(over, nodes[node].output, 0.0)
    return CutPoints(
        node_masks=tuple(node_masks),
        seconds=seconds,
        parameters=parameters,
        saved_bytes=kept,
        output_bytes=made,
        crossing_bytes=crossing,
    )


def _unpack_masks(node_masks: Sequence[int], nodes: int) -> NDArray[np.bool_]:
    """Return [place, node]: whether the node is before it."""
    width = -(-nodes // 8)
    packed = b"".join(one.to_bytes(width, "little") for one in node_masks)
    rows = np.frombuffer(packed, np.uint8).reshape(len(node_masks), width)
    return np.unpackbits(rows, axis=1, count=nodes, bitorder="little").astype(bool)


def _containment(node_masks: Sequence[int], nodes: int) -> NDArray[np.bool_]:
    """Return [i, j]: place j has all nodes of place i."""
    width = -(-nodes // 64)
    packed = b"".join(one.to_bytes(8 * width, "little") for one in node_masks)
    words = np.frombuffer(packed, "<u8").reshape(len(node_masks), width).T
    lacks = np.zeros((len(node_masks),) * 2, bool)
    for word in words:
        lacks |= (word[:, None] & ~word[None, :]) != 0
    return ~lacks


def _too_many_error(graph: LayerGraph, found: int, most: int) -> BadInput:
    return BadInput(
        f"{graph.source} has too many places to be cut at",
        rule=f"--cuts any looks at each set of nodes that may come first, {most:,} at "
        "most",
        values=f"{found:,} or more, of {len(graph.nodes)} nodes",
        remedy="--cuts order, between neighbours in one order of the nodes",
    )
