"""The places where a graph may be cut, and the cost of what lies before each.

A place is a set of nodes that holds, with a node, all that the node reads. A stage is
the difference of two places; the bytes that cross a place are those of the nodes before
it that a node behind it reads, each once.

With U seconds of a known plan, a place is useless where no plan in U has a cut: the
nodes before it need C / U devices, those behind it theirs, and there are not as many;
or its bytes take longer than U on the fastest links, divided over as many copies as
there may be.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.planner.stages.cost_conventions import CostConvention, FloatArray
from jaxdist.planner.stages.graph import LayerGraph
from jaxdist.planner.stages.link_hierarchy import LinkLevel

MAX_NODE_SETS: Final = 60_000
"""Sets of nodes that are walked through at most, cut at or not."""
MAX_CUT_POINTS: Final = {False: 4_000, True: 1_500}
"""Places that a search takes on one level of devices, and on several: then it looks at
each three places."""
_SLACK: Final = 1 + 1e-9
"""Factor by which rounding may move a bound."""


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
    """Bytes of activations that they save."""
    output_bytes: FloatArray
    """Bytes of their outputs."""
    crossing_bytes: FloatArray
    """Bytes that cross it, one way."""
    passed_bytes: FloatArray
    """Bytes of these that the nodes in front of it were handed themselves: a stage that
    begins here holds them as long as what it saves."""
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
        # Larger sets come later, so only j > i can hold place i.
        more = np.triu(np.ones(found.shape, bool), 1)
        if self.contains is not None:
            more &= self.contains
        return np.where(more, np.maximum(found, 0.0), fill)

    def stage_saved_bytes(self) -> FloatArray:
        """Return [i, j]: the activations that a stage from place i to j holds."""
        saved = self.pairwise_difference(self.saved_bytes, 0.0)
        return saved + self.passed_bytes[:, None]


def ordered_cut_points(graph: LayerGraph) -> CutPoints:
    """Return the places between neighbours in the graph's order."""
    members, before = [0], 0
    for node in graph.order:
        before |= 1 << node
        if graph.nodes[node].cut_after:
            members.append(before)
    # The end is a place even where the last node may not be cut behind.
    if members[-1] != before:
        members.append(before)
    return _cut_points(graph, members)


def all_cut_points(
    graph: LayerGraph,
    keep_mask: Callable[[CutPoints], NDArray[np.bool_]],
    *,
    multi_level: bool,
) -> CutPoints:
    """Return every set of nodes that is a place, the useless ones left out.

    Args:
        graph: any; the number of places grows with its branches, steeply.
        keep_mask: which of some places may be in the answer.
        multi_level: whether there are several levels of devices.

    Raises:
        BadInput: there are too many.
    """
    readers, needs = _reader_indices(graph), [0] * len(graph.nodes)
    for maker, own in enumerate(readers):
        for reader in own:
            needs[reader] |= 1 << maker
    # From no node to all, one more at a time. Sets are bit masks; beside each are the
    # nodes that may come next, those of which all makers are in it.
    start = sum(1 << node for node, need in enumerate(needs) if not need)
    level, found = {0: start}, [0]
    for _ in graph.nodes:
        following: dict[int, int] = {}
        for before, ready in level.items():
            left = ready
            while left:
                # The lowest bit that is set, by two's complement.
                lowest = left & -left
                left ^= lowest
                after = before | lowest
                # Several orders lead to one set; what may follow depends on the set
                # alone.
                if after not in following:
                    opened = readers[lowest.bit_length() - 1]
                    more = {r for r in opened if not needs[r] & ~after}
                    ahead = ready & ~lowest | sum(1 << reader for reader in more)
                    following[after] = ahead
            if len(found) + len(following) > MAX_NODE_SETS:
                raise _too_many_error(graph, len(found) + len(following), MAX_NODE_SETS)
        level = following
        found += sorted(level)

    every = _cut_points(graph, found)
    keep = keep_mask(every)
    # Both ends are places of every plan.
    keep[[0, -1]] = True
    members = [m for m, use in zip(every.node_masks, keep) if use]
    if len(members) > MAX_CUT_POINTS[multi_level]:
        raise _too_many_error(graph, len(members), MAX_CUT_POINTS[multi_level])
    # Place j has all nodes of place i where no word of i has a bit that j lacks.
    width = -(-len(graph.nodes) // 64)
    packed = b"".join(one.to_bytes(8 * width, "little") for one in members)
    lacks = np.zeros((len(members),) * 2, bool)
    for word in np.frombuffer(packed, "<u8").reshape(len(members), width).T:
        lacks |= (word[:, None] & ~word[None, :]) != 0
    return replace(_cut_points(graph, members), contains=~lacks)


def useful_cut_mask(
    cut_points: CutPoints,
    levels: Sequence[LinkLevel],
    cost_convention: CostConvention,
    bound: float,
) -> NDArray[np.bool_]:
    """Return which places may be in a plan that is faster than a known one.

    Args:
        cut_points: any.
        levels: devices, innermost first.
        cost_convention: the cost of stages and cuts.
        bound: U, seconds of a plan that is known; infinite where none is.
    """
    if not math.isfinite(bound):
        return np.ones(len(cut_points), bool)
    limit = bound * _SLACK
    devices = math.prod(tier.size for tier in levels)
    before = np.ceil(cut_points.seconds / limit)
    behind = np.ceil((cut_points.seconds[-1] - cut_points.seconds) / limit)
    # At most as many copies of a level as the levels outside of it have components.
    copies = np.cumprod([1, *(tier.size for tier in reversed(levels))])[-2::-1]
    fastest = min(
        float(cost_convention.cut_seconds(np.array(1.0), tier.size, tier.bandwidth))
        / outside
        for tier, outside in zip(levels, copies)
    )
    return (before + behind <= devices) & (cut_points.crossing_bytes * fastest <= limit)


def _reader_indices(graph: LayerGraph) -> list[list[int]]:
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    return [[place[r] for r in graph.readers[node.name]] for node in graph.nodes]


def _cut_points(graph: LayerGraph, node_masks: Sequence[int]) -> CutPoints:
    # Sets as bits of bytes: a Python loop over places times nodes would take longer
    # than the search.
    nodes, width = graph.nodes, -(-len(graph.nodes) // 8)
    packed = b"".join(one.to_bytes(width, "little") for one in node_masks)
    rows = np.frombuffer(packed, np.uint8).reshape(len(node_masks), width)
    bits = np.unpackbits(rows, axis=1, count=len(nodes), bitorder="little")
    # [place, node]: whether the node is before the place.
    held = bits.astype(bool)
    each = [[n.seconds, n.parameters, n.kept, n.output - n.passed] for n in nodes]
    seconds, parameters, kept, made = (held @ np.array(each, float)).T
    crossing, passed = np.zeros((2, len(node_masks)))
    for node, readers in enumerate(_reader_indices(graph)):
        # A node's output crosses once, however many readers are behind.
        over = held[:, node] & ~held[:, readers].all(axis=1)
        crossing += np.where(over, nodes[node].output, 0.0)
        passed += np.where(over, nodes[node].passed, 0.0)
    return CutPoints(
        node_masks=tuple(node_masks),
        seconds=seconds,
        parameters=parameters,
        saved_bytes=kept,
        output_bytes=made,
        crossing_bytes=crossing,
        passed_bytes=passed,
    )


def _too_many_error(graph: LayerGraph, found: int, most: int) -> BadInput:
    return BadInput(
        f"{graph.source} has too many places to be cut at",
        rule=f"--cuts any looks at each set of nodes that may come first, {most:,} at "
        "most",
        values=f"{found:,} or more, of {len(graph.nodes)} nodes",
        remedy="--cuts order, between neighbours in one order of the nodes",
    )
