"""The blocks at which stages begin, by predicted seconds instead of FLOPs.

    step = all stages once + (m - 1) slowest + 2 E seconds(longest)

All stages go from exchange to exchange together: the first microbatch passes through
each of them, the others follow as fast as the slowest stage lets them. In each of the E
exchanges the longest message counts, there and back (once where links carry both at the
same time), since all messages of a permutation have one length. For every length that a
cut may have, dynamic programming finds the stages whose slowest is fastest, exactly.

Where stages stand on unlike devices the sum of all stages depends on the cuts as well.
Dynamic programming then finds the least sum, the least sum whose slowest stage is
faster than that, and so on: every pair of the two that no cuts beat in both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from jaxdist.core.cluster.host_group import distinct_devices
from jaxdist.core.plan import Plan
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import LinkGroup, link_group
from jaxdist.oracle.rank_devices import rank_devices
from jaxdist.oracle.stage_times import permutes_are_serialized
from jaxdist.pipeline.plan_schedule import plan_schedule, stage_placement
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.space import Column

StageStarts = tuple[int, ...]
"""The first block of each stage but the first, by its place."""


@dataclass(frozen=True, kw_only=True)
class StageCutSolver:
    """Blocks that are cut into stages."""

    block_seconds: Column
    """Of each block in one microbatch, forward and backward: [block], or [stage, block]
    where stages stand on unlike devices."""
    output_bytes: Column
    """Bytes of each block's output, of one microbatch."""

    def stage_seconds(self, starts: StageStarts) -> Column:
        """Return the seconds of each stage."""
        ends = (*starts, len(self.output_bytes))
        rows = np.broadcast_to(self.block_seconds, (len(ends), len(self.output_bytes)))
        spans = zip((0, *starts), ends, strict=True)
        return np.array([row[a:b].sum() for row, (a, b) in zip(rows, spans)])

    def slowest_stage(self, starts: StageStarts) -> float:
        """Return the seconds of the slowest stage."""
        return float(self.stage_seconds(starts).max())

    def longest_message(self, starts: StageStarts) -> float:
        """Return the bytes of the longest message between stages."""
        return float(self.output_bytes[np.array(starts, int) - 1].max(initial=0.0))

    def optimal_cuts(self, stages: int) -> Iterator[StageStarts]:
        """Yield for every longest message the cuts that no others beat.

        They are those whose slowest stage is fastest, and on unlike devices those with
        the least sum of all stages for each slowest one.
        """
        blocks = len(self.output_bytes)
        rows = np.broadcast_to(self.block_seconds, (stages, blocks))
        # Prefix sums: sums[s, b] - sums[s, a] are the seconds of blocks a to b - 1.
        sums = np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))
        # Seconds of blocks a to b - 1 as a stage, infinite where b is not behind a.
        every = np.maximum(0.0, sums[:, None] - sums[:, :, None])
        every[:, *np.tril_indices(blocks + 1)] = np.inf
        for limit in np.unique(self.output_bytes[:-1]):
            # No stage ends where a message longer than the limit would be sent.
            own = every.copy()
            own[:, :, 1:-1][:, :, self.output_bytes[:-1] > limit] = np.inf
            yield from _unbeaten_cuts(own)


def _unbeaten_cuts(spans: Column) -> Iterator[StageStarts]:
    """Yield the cuts that no others beat in the slowest stage and the sum of stages.

    Args:
        spans: seconds of blocks a to b - 1 as stage s, `[s, a, b]`.
    """
    fastest = _least_cuts(spans, np.maximum)
    if fastest is None:
        return
    yield fastest
    # On like devices the sum is the same wherever they are cut.
    if (spans == spans[0]).all():
        return
    slowest = np.inf
    while True:
        # Stages as slow as the last answer's slowest are forbidden, so each answer is
        # faster in that and dearer in the sum: the Pareto front, from one end.
        starts = _least_cuts(np.where(spans < slowest, spans, np.inf), np.add)
        if starts is None:
            return
        yield starts
        ends = (*starts, spans.shape[1] - 1)
        each = zip(range(len(ends)), (0, *starts), ends, strict=True)
        slowest = max(float(spans[place]) for place in each)


def _least_cuts(spans: Column, combine: np.ufunc) -> StageStarts | None:
    """Return the cuts with the least combination of stages; None: there are none.

    Args:
        spans: as of `_unbeaten_cuts`.
        combine: `np.maximum` for the slowest stage, `np.add` for the sum of them.
    """
    # best[b]: the least of blocks before b in the stages so far.
    best, before = spans[0, 0], []
    for row in spans[1:]:
        both = combine(best[:, None], row)
        before.append(both.argmin(axis=0))
        best = both.min(axis=0)
    if not np.isfinite(best[-1]):
        return None
    starts, end = [], spans.shape[1] - 1
    # Back from the last block: each table has the start of its stage by the end of it.
    for table in reversed(before):
        end = int(table[end])
        starts.append(end)
    return tuple(reversed(starts))


@dataclass(frozen=True, kw_only=True)
class StageCutCost:
    """The seconds of a plan's step by its cuts."""

    solver: StageCutSolver
    """The blocks, with a device's part of one microbatch."""
    behind: int
    """Microbatches that follow the first, and wait for the slowest stage."""
    messages: int
    """Exchanges of a step, in each direction that has a time of its own."""
    pipe_links: LinkGroup
    """The links between stages."""

    def step_seconds(self, starts: StageStarts) -> float:
        """Return about how many seconds a step takes that is cut there."""
        longest = self.solver.longest_message(starts)
        one = collective_seconds("collective-permute", longest, 1, self.pipe_links)
        each = self.solver.stage_seconds(starts)
        slowest = float(each.max())
        return float(each.sum()) + self.behind * slowest + self.messages * one


def stage_cut_cost(estimate: CostEstimate, plan: Plan) -> StageCutCost:
    """Return what the cuts of a plan with stages and microbatches cost.

    Args:
        estimate: the network, its blocks and the cluster.
        plan: with stages, not more than blocks.
    """
    pieces, mesh, cluster = estimate.block_costs, plan.mesh, estimate.cluster
    parts = plan.batch_shards * mesh.position_shards * plan.microbatches
    # Rematerialized blocks run their forward pass twice.
    again = np.isin(pieces.block_names, plan.remade(pieces.block_names))
    rows = []
    for ranks in stage_placement(plan).stage_devices:
        # A stage waits for the slowest of its devices.
        kinds = distinct_devices(
            kind for rank in ranks for kind in rank_devices(cluster, plan.placed, rank)
        )
        passes = [estimate.costs_of(x).block_seconds(parts, mesh.tensor) for x in kinds]
        forward, backward = np.max(passes, axis=0)
        rows.append((1 + again) * forward + backward)
    outputs = np.array([block.output_bytes for block in pieces.profile.blocks])
    exchanges = plan_schedule(plan, plan.microbatches).exchanges
    return StageCutCost(
        solver=StageCutSolver(
            block_seconds=np.array(rows), output_bytes=outputs / parts
        ),
        behind=plan.microbatches * plan.pipe.chunks - 1,
        messages=(1 + permutes_are_serialized(cluster)) * exchanges,
        pipe_links=link_group(cluster, plan.placed, ("pipe",)),
    )


def stage_cut_variants(plan: Plan, estimate: CostEstimate) -> Iterator[Plan]:
    """Yield a plan in stages of equal FLOPs with the cuts that make its step shortest.

    Messages decide on slow links, and the time of small kernels on fast devices; FLOPs
    say nothing of either.

    Args:
        plan: one of the space.
        estimate: the space, estimated.
    """
    if plan.stages > 1 and not plan.pipe.cuts and not plan.pipe.flows:
        cost, names = stage_cut_cost(estimate, plan), estimate.block_costs.block_names
        best = min(cost.solver.optimal_cuts(plan.stages), key=cost.step_seconds)
        cuts = tuple(names[start] for start in best)
        yield replace(plan, pipe=replace(plan.pipe, cuts=cuts))
