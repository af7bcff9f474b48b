"""Cutting: where the stages of a plan begin by the seconds of blocks, not their FLOPs.

PipeDream's recurrences (`jaxdist/planner/search.py`) with a device for each stage, on
what the oracle predicts of each block at the part of it that a device of the plan has.
A block of small kernels takes longer than its FLOPs say.
"""

import itertools

from jaxdist.core.plan import Plan
from jaxdist.oracle.groups import group_of
from jaxdist.planner.answer import Question
from jaxdist.planner.coarse import Coarse
from jaxdist.planner.graph import Graph, Node
from jaxdist.planner.stages import partition
from jaxdist.planner.tiers import Tier


def faster_cuts(coarse: Coarse, plan: Plan) -> tuple[str, ...]:
    """Return the first block of each stage but the first, whose slowest is fastest.

    Args:
        coarse: the network, its pieces and the cluster.
        plan: with stages and microbatches.
    """
    group = group_of(coarse.cluster, plan.mesh, ("pipe",))
    asked = Question(
        graph=_chain(coarse, plan),
        tiers=(Tier(size=plan.stages, bandwidth=group.rate),),
        straight=True,
    )
    return partition(asked).cuts


def _chain(coarse: Coarse, plan: Plan) -> Graph:
    """Return the blocks as a chain, one microbatch through a device's part of each."""
    pieces, mesh = coarse.pieces, plan.mesh
    parts = plan.batch_shards * mesh.spatial_shards * plan.microbatches
    forward, backward = pieces.at(parts, mesh.tensor)
    nodes = tuple(
        Node(
            name=block.name,
            forward=float(ahead),
            backward=float(back + plan.remat * ahead),
            output=block.output_bytes / parts,
            kept=block.output_bytes / parts,
            parameters=block.parameter_bytes,
        )
        for block, ahead, back in zip(
            pieces.profile.blocks, forward, backward, strict=True
        )
    )
    names = [node.name for node in nodes]
    return Graph(
        source=pieces.profile.model,
        nodes=nodes,
        edges=tuple(itertools.pairwise(names)),
        origin=f"predicted for {coarse.cluster.device.name}",
    )
