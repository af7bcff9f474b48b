"""Cutting: where the stages of a plan begin by seconds, not by FLOPs.

    step = all stages once + (m - 1) slowest + 2 E seconds(longest)

All stages go from exchange to exchange together: the first microbatch passes through
each of them, the others come behind it as fast as the slowest lets them, and in each of
the E exchanges the longest of what stages hand on counts, there and back (once where
links carry both at the same time), since messages have one length. For every length
that a cut may have, the stages whose slowest is fastest are found by dynamic
programming, which is exact.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from jaxdist.core.plan import Plan
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import link_group
from jaxdist.oracle.stage_times import permutes_are_serialized
from jaxdist.pipeline.plan_schedule import plan_schedule
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.space import Column

StageStarts = tuple[int, ...]
"""The first block of each stage but the first, by its place."""


@dataclass(frozen=True, kw_only=True)
class StageCutSolver:
    """Blocks that are cut into stages."""

    block_seconds: Column
    """Of each block in one microbatch, forward and backward."""
    output_bytes: Column
    """Bytes that each hands on, of one microbatch."""

    def slowest_stage(self, starts: StageStarts) -> float:
        """Return the seconds of the slowest stage."""
        return float(np.add.reduceat(self.block_seconds, (0, *starts)).max())

    def longest_message(self, starts: StageStarts) -> float:
        """Return the bytes of the longest message between stages."""
        return float(self.output_bytes[np.array(starts, int) - 1].max(initial=0.0))

    def optimal_cuts(self, stages: int) -> Iterator[StageStarts]:
        """Yield for every longest message the cuts whose slowest stage is fastest."""
        for limit in np.unique(self.output_bytes[:-1]):
            found = self._solve_limit(float(limit), stages)
            if found is not None:
                yield found

    def _solve_limit(self, limit: float, stages: int) -> StageStarts | None:
        """Return the best cuts where little enough is handed on; None: too few."""
        sums = np.concatenate([[0.0], np.cumsum(self.block_seconds)])
        # Seconds of blocks a to b - 1, where a cut in front of b may be.
        own = np.maximum(0.0, sums[None] - sums[:, None])
        own[np.tril_indices(len(sums))] = np.inf
        own[:, 1:-1][:, self.output_bytes[:-1] > limit] = np.inf
        best, before = own[0], []
        for _ in range(stages - 1):
            both = np.maximum(best[:, None], own)
            before.append(both.argmin(axis=0))
            best = both.min(axis=0)
        if not np.isfinite(best[-1]):
            return None
        starts, end = [], len(sums) - 1
        for table in reversed(before):
            end = int(table[end])
            starts.append(end)
        return tuple(reversed(starts))


def fastest_cuts(estimate: CostEstimate, plan: Plan) -> tuple[str, ...]:
    """Return the first block of each stage but the first that make a step shortest.

    Args:
        estimate: the network, its pieces and the cluster.
        plan: with stages, not more than blocks, and microbatches.
    """
    chain, names = stage_cut_solver(estimate, plan), estimate.block_costs.block_names
    best = min(
        chain.optimal_cuts(plan.stages), key=make_step_estimate(estimate, plan, chain)
    )
    return tuple(names[start] for start in best)


def stage_cut_solver(estimate: CostEstimate, plan: Plan) -> StageCutSolver:
    """Return the blocks, one microbatch through a device's part of each."""
    pieces, mesh = estimate.block_costs, plan.mesh
    parts = plan.batch_shards * mesh.spatial_shards * plan.microbatches
    forward, backward = pieces.block_seconds(parts, mesh.tensor)
    handed = np.array([block.output_bytes for block in pieces.profile.blocks])
    again = np.isin(pieces.block_names, plan.remade(pieces.block_names))
    return StageCutSolver(
        block_seconds=(1 + again) * forward + backward,
        output_bytes=handed / parts,
    )


def make_step_estimate(
    estimate: CostEstimate, plan: Plan, solver: StageCutSolver
) -> Callable[[StageStarts], float]:
    """Return what says about how many seconds a step takes that is cut somewhere.

    Args:
        estimate: says the cluster.
        plan: with stages and microbatches.
        solver: its blocks.
    """
    cluster, whole = estimate.cluster, float(solver.block_seconds.sum())
    behind = plan.microbatches * plan.pipe.chunks - 1
    exchanges = plan_schedule(plan, plan.microbatches).exchanges
    ways = (1 + permutes_are_serialized(cluster)) * exchanges
    group = link_group(cluster, plan.placed, ("pipe",))

    def step(starts: StageStarts) -> float:
        one = collective_seconds(
            "collective-permute", solver.longest_message(starts), 1, group
        )
        return whole + behind * solver.slowest_stage(starts) + ways * one

    return step
