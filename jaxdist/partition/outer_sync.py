"""Outer steps: which parameters replicas average when, and what that moves.

Rule: replicas share the global batch, and nothing travels between them in a step. The
blocks of a network are dealt out to fragments, the largest first, each to the fragment
that has least; fragment f of F is averaged after step

    every (f + 1) // F      of each period of `every` steps,

so the last one, and running statistics with it, at the end of a period.
Traffic of a sync of G parameters' bytes on a device: an all-reduce of G over replica,
or what the way of `plan.outer.via` moves for its matrices. Source: Douillard et al.
2025, arXiv:2501.18512, section 2 (fragments).
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.collectives.compress.method import AllReduceAlgorithm
from jaxdist.collectives.registry import make_stateless_compressor
from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.partition.traffic import PlannedCollective

REPLICA_AXIS: Final = "replica"


@dataclass(frozen=True, kw_only=True)
class OuterSync:
    """What replicas average together at one place of the period."""

    step_in_period: int
    """Steps of the period that are done then, from 1 to `sync_interval`."""
    sync_interval: int
    """Steps of a period."""
    exact_params: tuple[int, ...]
    """Parameters whose differences are summed as they are, in the tree's order."""
    compressed_params: tuple[int, ...]
    """Parameters whose differences are summed by `algorithm`."""
    algorithm: AllReduceAlgorithm
    """How."""
    averages_statistics: bool
    """Whether running statistics are averaged, too."""
    rows: tuple[PlannedCollective, ...]
    """What it moves."""

    def due(self, step: int) -> bool:
        """Whether it follows step `step`, counted from 1."""
        return step % self.sync_interval == self.step_in_period % self.sync_interval


def plan_syncs(
    plan: Plan, leaves: Sequence[LeafSharding], stats: Sequence[LeafSharding]
) -> tuple[OuterSync, ...]:
    """Say what replicas average, in the order of the period.

    Args:
        plan: the layout.
        leaves: all parameters, in the tree's order.
        stats: all running statistics.

    Raises:
        BadInput: more fragments than blocks.
    """
    asked = plan.outer
    if plan.replicas == 1:
        if asked.every:
            warnings.warn(
                f"plan.outer.every = {asked.every} does nothing: "
                f"no replicas train on their own in {plan.title}",
                JaxdistWarning,
                stacklevel=2,
            )
        return ()
    dealt = assign_fragments(leaves, asked.fragments)
    return tuple(
        _make_sync(
            plan, leaves, stats if number == asked.fragments else (), places, number
        )
        for number, places in enumerate(dealt, start=1)
    )


def assign_fragments(
    leaves: Sequence[LeafSharding], count: int
) -> tuple[tuple[int, ...], ...]:
    """Deal the blocks out, so that each parameter is in one fragment.

    A block is what the first word of a parameter's path names.

    Raises:
        BadInput: more fragments than blocks.
    """
    blocks: dict[str, list[int]] = defaultdict(list)
    for place, leaf in enumerate(leaves):
        blocks[leaf.name.split("/")[0]].append(place)
    if count > len(blocks):
        raise BadInput(
            "the network has fewer blocks than fragments",
            rule="plan.outer.fragments is at most the blocks of the network",
            values=f"plan.outer.fragments = {count}, "
            f"{len(blocks)} blocks: {', '.join(blocks)}",
            remedy=f"plan.outer.fragments={len(blocks)}",
        )
    held: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for block in sorted(blocks.values(), key=lambda b: -_count_elements(leaves, b)):
        least = sizes.index(min(sizes))
        held[least] += block
        sizes[least] += _count_elements(leaves, block)
    return tuple(tuple(sorted(places)) for places in held)


def _count_elements(leaves: Sequence[LeafSharding], places: Sequence[int]) -> int:
    return sum(math.prod(leaves[place].shape) for place in places)


def _make_sync(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    stats: Sequence[LeafSharding],
    places: Sequence[int],
    number: int,
) -> OuterSync:
    """Describe the sync of fragment `number`, counted from 1."""
    asked = plan.outer
    method, codec = make_stateless_compressor(asked.via, 256)
    packed = [p for p in places if codec and len(leaves[p].shape) > 1]
    exactly = [p for p in places if p not in packed]
    plain = [leaves[p].local_shape(plan, include_fsdp=plan.zero == 3) for p in exactly]
    plain += [leaf.local_shape(plan, include_fsdp=False) for leaf in stats]
    types = [leaves[p].dtype for p in exactly] + [leaf.dtype for leaf in stats]
    size = sum(math.prod(s) * np.dtype(t).itemsize for s, t in zip(plain, types))
    rows = [_traffic_row("all-reduce", size)] if size else []
    if packed:
        shapes = [
            leaves[p].local_shape(plan, include_fsdp=plan.zero == 3) for p in packed
        ]
        sizes, dtype = {REPLICA_AXIS: plan.mesh.replica}, leaves[packed[0]].dtype
        moved = method.payloads(shapes, dtype, sizes)
        rows += [_traffic_row(payload.kind, payload.payload_bytes) for payload in moved]
    return OuterSync(
        step_in_period=asked.every * number // asked.fragments,
        sync_interval=asked.every,
        exact_params=tuple(exactly),
        compressed_params=tuple(packed),
        algorithm=method,
        averages_statistics=bool(stats),
        rows=tuple(rows),
    )


def _traffic_row(kind: str, payload: int) -> PlannedCollective:
    return PlannedCollective(
        what="outer step",
        kind=kind,
        axes=(REPLICA_AXIS,),
        payload=payload,
        layer="outer_step",
    )
