"""The block where the split of images ends, and what that costs and saves.

    step(b) = compute(blocks before b, on parts) + compute(b and behind)
              + halos * share before b + statistics + exchange(b)

After b `samples` splits the images again, by samples: what is behind b is computed on
parts too, with statistics of all devices. `repeat` computes whole images on each device
of a spatial group, whose statistics are summed over replicas alone. Layers with a
window fetch halos from their neighbours: the share is that of such layers. The exchange
is of the output of the block before b, there and back. The estimate says which ends are
described; the oracle has the last word. Source: Kahira et al. 2021, arXiv:2104.09075,
section 3, data + spatial.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.core.axes import BATCH_AXES, SPATIAL_AXES
from jaxdist.core.plan import AfterSpatial, Plan
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import link_group
from jaxdist.planner.layouts.cost_estimate import CostEstimate
from jaxdist.planner.layouts.space import Column
from jaxdist.planner.layouts.traffic_probes import ProbedTraffic

MAX_SPATIAL_ENDS: Final = 4
"""Ends of a plan that are described."""


def spatial_end_variants(
    plan: Plan, estimate: CostEstimate, slack_seconds: float
) -> Iterator[Plan]:
    """Yield a plan with other ends of its split of images, the best of them first.

    Args:
        plan: one of the space.
        estimate: the space, estimated.
        slack_seconds: seconds by which an end may make the plan's step longer; negative
            where it has to be shorter.
    """
    base, choices = estimate.space.base, estimate.space.choices
    if plan.mesh.spatial_shards == 1:
        return
    names = estimate.block_costs.block_names[1:]
    if base.spatial_end:
        names = (base.spatial_end,)
    ends = SpatialEndCost(plan=plan, estimate=estimate)
    some = {
        replace(plan, spatial_end=name, spatial_end_mode=then): ends.seconds(name, then)
        for name in names
        for then in choices.ends
    }
    # Estimates of ends are compared with that of the plan's own end, so what they leave
    # out cancels.
    most = slack_seconds + ends.seconds(plan.spatial_end, plan.spatial_end_mode)
    best = sorted(some, key=lambda one: some[one])[:MAX_SPATIAL_ENDS]
    yield from (one for one in best if some[one] <= most)


@dataclass(frozen=True, kw_only=True)
class SpatialEndCost:
    """The seconds of a plan that splits images, by the end of the split."""

    plan: Plan
    """Its mesh, its microbatches and its remat count."""
    estimate: CostEstimate
    """The network in blocks, the traffic of the axes, and the machines."""

    @cached_property
    def _window_layers(self) -> Column:
        """Layers with a window in each block."""
        pieces = self.estimate.block_costs
        shapes = [layer.kernel for layer in pieces.profile.layers]
        wide = [
            x is not None and x.kind == "convolution" and x.taps > 1 for x in shapes
        ]
        blocks = len(pieces.block_names)
        return np.bincount(pieces.block_index, weights=wide, minlength=blocks)

    def seconds(self, until: str, after_spatial: AfterSpatial) -> float:
        """Return the seconds of a step that depend on the end, about.

        Args:
            until: a block; empty where images are split as far as they go.
            after_spatial: what devices do behind it.
        """
        plan, pieces, mesh = self.plan, self.estimate.block_costs, self.plan.mesh
        micro, by_samples = plan.microbatches, after_spatial == "samples"
        end = pieces.block_names.index(until) if until else len(pieces.block_names)

        # Blocks before the end run on parts of images; behind it whole images or parts
        # of the samples.
        few = plan.batch_shards * micro
        own = pieces.block_seconds(few * mesh.spatial_shards, mesh.tensor)
        behind = own if by_samples else pieces.block_seconds(few, mesh.tensor)
        forward, backward = own[:, :end].sum(axis=1) + behind[:, end:].sum(axis=1)
        computed = float(micro * ((1 + plan.remat) * forward + backward))

        # Halos are counted by layers with a window, since only the sum of their bytes
        # is known.
        windows = self._window_layers
        split = float(windows[:end].sum() / max(1.0, windows.sum()))
        shared = tuple(axis for axis in SPATIAL_AXES if mesh.size(axis) > 1)
        replicas = tuple(axis for axis in BATCH_AXES if mesh.size(axis) > 1)
        alike = 1.0 if by_samples else split
        moved: list[tuple[str, float, float, tuple[str, ...]]] = []
        norms = self.estimate.traffic.norm_statistics
        # Norms reduce their statistics over all devices that have parts of the batch,
        # and over replicas alone where images are repeated.
        for share, axes in ((alike, replicas + shared), (1 - alike, replicas)):
            times = share * micro
            payload, count = times * norms.payload, times * norms.arrays
            moved.append(("all-reduce", payload, count, axes))
        for axis in shared:
            halos = self.estimate.traffic.halo_exchange.get(axis, ProbedTraffic())
            payload = split * halos.payload / plan.batch_shards
            count = split * micro * halos.arrays
            moved.append(("collective-permute", payload, count, (axis,)))
            if not until:
                continue
            # There and back, in every microbatch.
            whole = pieces.profile.blocks[end - 1].output_bytes
            part = whole / plan.batch_shards / mesh.spatial_shards
            if by_samples:
                moved += [("all-to-all", part, micro, (axis,))] * 2
            else:
                gathered = part * mesh.size(axis)
                moved.append(("all-gather", gathered, micro, (axis,)))
                moved.append(("reduce-scatter", part, micro, (axis,)))
        cluster, placed = self.estimate.cluster, plan.placed
        return computed + sum(
            collective_seconds(
                kind, payload, round(count), link_group(cluster, placed, axes)
            )
            for kind, payload, count, axes in moved
        )
