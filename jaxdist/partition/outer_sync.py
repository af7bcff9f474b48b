"""Outer synchronisation: which parameters replicas average when, and its traffic.

Replicas share the global batch, and nothing travels between them in a step. The blocks
of a network are assigned to fragments; fragment f of F is averaged after step

    every (f + 1) // F      of each period of `sync_interval` steps,

so the last one, and running statistics with it, at the end of a period.
Traffic of a sync of G parameters' bytes on a device: an all-reduce of G over replica,
or what `plan.outer.compressor` moves for its matrices. Source: Douillard et al. 2025,
arXiv:2501.18512, section 2 (fragments).
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxdist.collectives.compress.method import AllReduceAlgorithm
from jaxdist.collectives.registry import make_outer_algorithm
from jaxdist.core.dtypes import is_complex
from jaxdist.core.errors import BadInput, JaxdistWarning
from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.partition.variable_sync import variable_traffic

REPLICA_AXIS: Final = "replica"


@dataclass(frozen=True, kw_only=True)
class OuterSync:
    """What replicas average together after one step of the period."""

    step_in_period: int
    """Steps of the period that are done then, from 1 to `sync_interval`."""
    sync_interval: int
    """Steps of a period."""
    exact_params: tuple[int, ...]
    """Parameters whose differences are summed as they are, in the tree's order."""
    compressed_params: tuple[tuple[int, ...], ...]
    """Parameters whose differences are summed by `algorithm`, those together that are
    split over the same axes."""
    algorithm: AllReduceAlgorithm
    """How those are summed."""
    averaged_stats: tuple[int, ...]
    """Running statistics and the like that are averaged, in the tree's order."""
    synced_stats: tuple[LeafSharding, ...]
    """All that the network keeps, where the replicas agree on counters, too."""
    rows: tuple[PlannedCollective, ...]
    """Its traffic."""

    def due(self, step: int) -> bool:
        """Whether it follows step `step`, counted from 1."""
        # The last fragment has step_in_period equal to the interval: remainder zero.
        return step % self.sync_interval == self.step_in_period % self.sync_interval


def outer_axes(leaves: Sequence[LeafSharding]) -> list[tuple[str, ...]]:
    """Return the axes over which replicas take the maximum of each variable."""
    return [(REPLICA_AXIS,) if leaf.update == "maximum" else () for leaf in leaves]


def plan_syncs(
    plan: Plan, leaves: Sequence[LeafSharding], stats: Sequence[LeafSharding]
) -> tuple[OuterSync, ...]:
    """Decide what replicas average, in the order of the period.

    Args:
        plan: the layout.
        leaves: all parameters, in the tree's order.
        stats: all running statistics.

    Raises:
        BadInput: more fragments than blocks.
    """
    asked = plan.outer
    if plan.replicas == 1:
        if asked.sync_interval:
            warnings.warn(
                f"plan.outer.sync_interval = {asked.sync_interval} does nothing: "
                f"no replicas train on their own in {plan.title}",
                JaxdistWarning,
                stacklevel=2,
            )
        return ()
    method = make_outer_algorithm(asked)
    # Differences of parameters are summed as they are stored, in shards with zero 3.
    sharded = plan.zero == 3
    syncs = []
    for number, indices in enumerate(assign_fragments(leaves, asked.fragments), 1):
        # Only matrices are worth compressing, and codecs are of real numbers.
        compressed = [
            i
            for i in indices
            if not method.lossless
            and len(leaves[i].shape) > 1
            and not is_complex(leaves[i].dtype)
        ]
        exact = [i for i in indices if i not in compressed]
        # What is sent of one matrix depends on those that are sent with it: a matrix
        # that devices have alike would diverge beside one that is split over them.
        groups: dict[frozenset[str], list[int]] = {}
        for i in compressed:
            spec = leaves[i].spec(include_fsdp=sharded)
            groups.setdefault(frozenset(filter(None, spec)), []).append(i)
        # Running statistics join the last sync of a period.
        last = number == asked.fragments
        means = [
            place
            for place, leaf in enumerate(stats)
            if last and leaf.update in ("synchronized", "mean")
        ]
        averaged = [stats[place] for place in means]
        synced = tuple(stats) if last else ()
        # Statistics are whole on every device.
        shapes = [leaves[i].local_shape(plan, include_fsdp=sharded) for i in exact]
        shapes += [leaf.local_shape(plan, include_fsdp=False) for leaf in averaged]
        types = [leaf.dtype for leaf in (*(leaves[i] for i in exact), *averaged)]
        size = sum(math.prod(s) * np.dtype(t).itemsize for s, t in zip(shapes, types))
        moved = [("all-reduce", size)] if size else []
        for group in groups.values():
            payloads = method.payloads(
                [leaves[i].local_shape(plan, include_fsdp=sharded) for i in group],
                leaves[group[0]].dtype,
                {REPLICA_AXIS: plan.mesh.replica},
            )
            moved += [(each.kind, each.payload_bytes) for each in payloads]
        # One row a collective; a compressed sum may be several of different kinds.
        rows = [
            PlannedCollective(
                what="outer step",
                kind=kind,
                axes=(REPLICA_AXIS,),
                payload=payload,
                layer="outer_step",
            )
            for kind, payload in moved
        ]
        rows += variable_traffic(plan, synced, outer_axes(synced))
        syncs.append(
            OuterSync(
                step_in_period=asked.sync_interval * number // asked.fragments,
                sync_interval=asked.sync_interval,
                exact_params=tuple(exact),
                compressed_params=tuple(map(tuple, groups.values())),
                algorithm=method,
                averaged_stats=tuple(means),
                synced_stats=synced,
                rows=tuple(rows),
            )
        )
    return tuple(syncs)


def assign_fragments(
    leaves: Sequence[LeafSharding], count: int
) -> tuple[tuple[int, ...], ...]:
    """Partition the parameters into fragments of about equal size, block by block.

    A block is what the first word of a parameter's path names.

    Raises:
        BadInput: more fragments than blocks.
    """
    blocks: dict[str, list[int]] = defaultdict(list)
    for index, leaf in enumerate(leaves):
        blocks[leaf.name.split("/")[0]].append(index)
    if count > len(blocks):
        raise BadInput(
            "the network has fewer blocks than fragments",
            rule="plan.outer.fragments is at most the blocks of the network",
            values=f"plan.outer.fragments = {count}, "
            f"{len(blocks)} blocks: {', '.join(blocks)}",
            remedy=f"plan.outer.fragments={len(blocks)}",
        )
    # Greedy: the largest block first, to the fragment that is smallest so far.
    # What counts on a link is the largest sync, so fragments are to be alike.
    sizes = {
        name: sum(math.prod(leaves[i].shape) for i in indices)
        for name, indices in blocks.items()
    }
    fragments: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for name in sorted(blocks, key=lambda name: -sizes[name]):
        least = totals.index(min(totals))
        fragments[least] += blocks[name]
        totals[least] += sizes[name]
    return tuple(tuple(sorted(indices)) for indices in fragments)
