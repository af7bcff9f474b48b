"""Ends: blocks where the split of images may end, and what that costs and saves.

    step(b) = compute(blocks in front of b, on parts) + compute(b and behind)
              + edges * share in front of b + statistics + exchange(b)

With `samples` what is behind b is computed on parts too, and statistics are those of
all devices. With `repeat` it is computed on whole images, and statistics of it are
summed over replicas alone. Layers with a window fetch rows of their neighbours: the
share is that of such layers. What is exchanged is what the block in front of b hands
on, there and back. The estimate says which ends are described; the oracle has the last
word. Source: Kahira et al. 2021, arXiv:2104.09075, section 3, data + spatial.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.core.axes import BATCH_AXES, SPATIAL_AXES
from jaxdist.core.kernel_shape import KernelShape
from jaxdist.core.plan import AfterSpatial, Plan
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.link_groups import LinkGroup, link_group
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
        slack_seconds: seconds by which an end may make the plan's step longer;
        negative where it
            has to be shorter.
    """
    base, choices = estimate.space.base, estimate.space.choices
    if plan.mesh.spatial_shards == 1:
        return
    names = (
        (base.spatial_until,)
        if base.spatial_until
        else estimate.block_costs.block_names[1:]
    )
    ends = SpatialEndCost(plan=plan, estimate=estimate)
    some = {
        replace(plan, spatial_until=name, spatial_then=then): ends.seconds(name, then)
        for name in names
        for then in choices.ends
    }
    most = slack_seconds + ends.seconds(plan.spatial_until, plan.spatial_then)
    best = sorted(some, key=lambda one: some[one])[:MAX_SPATIAL_ENDS]
    yield from (one for one in best if some[one] <= most)


@dataclass(frozen=True, kw_only=True)
class SpatialEndCost:
    """A plan that splits images, and what its ends take."""

    plan: Plan
    """Its mesh, its microbatches and its remat count."""
    estimate: CostEstimate
    """The network in pieces, what its axes move, and the machines."""

    def seconds(self, until: str, after_spatial: AfterSpatial) -> float:
        """Return the seconds of what an end changes in a step, about.

        Args:
            until: a block; empty where images are split as far as they go.
            after_spatial: what devices do behind it.
        """
        names = self.estimate.block_costs.block_names
        end = names.index(until) if until else len(names)
        split = self._window_share(end)
        alike = 1.0 if after_spatial == "samples" else split
        shared, replicas = self._used_axes(SPATIAL_AXES), self._used_axes(BATCH_AXES)
        moved = self._statistics_seconds(alike, replicas + shared)
        moved += self._statistics_seconds(1 - alike, replicas)
        for axis in shared:
            moved += self._halo_seconds(split, axis)
            moved += self._reshard_seconds(axis, end, after_spatial) if until else 0.0
        return self._compute_seconds(end, after_spatial) + moved

    def _used_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if self.plan.mesh.size(axis) > 1)

    @cached_property
    def _window_layers(self) -> Column:
        """Layers with a window in each block."""
        pieces = self.estimate.block_costs
        shapes = [layer.kernel for layer in pieces.profile.layers]
        wide = [shape is not None and _is_window(shape) for shape in shapes]
        return np.bincount(
            pieces.block_index, weights=wide, minlength=len(pieces.block_names)
        )

    def _window_share(self, end: int) -> float:
        """Return the part of layers with a window in front of a block."""
        return float(
            self._window_layers[:end].sum() / max(1.0, self._window_layers.sum())
        )

    def _compute_seconds(self, end: int, then: AfterSpatial) -> float:
        """Return the seconds of all blocks, forward and backward."""
        plan, pieces = self.plan, self.estimate.block_costs
        few = plan.batch_shards * plan.microbatches
        parts, tensor = few * plan.mesh.spatial_shards, plan.mesh.tensor
        own = pieces.block_seconds(parts, tensor)
        behind = own if then == "samples" else pieces.block_seconds(few, tensor)
        forward, backward = own[:, :end].sum(axis=1) + behind[:, end:].sum(axis=1)
        total = (1 + plan.remat) * forward + backward
        return float(plan.microbatches * total)

    def _statistics_seconds(self, share: float, axes: tuple[str, ...]) -> float:
        """Return the seconds of a part of the sums of norms."""
        found, times = (
            self.estimate.traffic.norm_statistics,
            share * self.plan.microbatches,
        )
        count, payload = times * found.arrays, times * found.payload
        return collective_seconds(
            "all-reduce", payload, round(count), self._link_group(*axes)
        )

    def _halo_seconds(self, share: float, axis: str) -> float:
        """Return the seconds of a part of the rows that neighbours fetch."""
        found, plan = (
            self.estimate.traffic.halo_exchange.get(axis, ProbedTraffic()),
            self.plan,
        )
        count = share * plan.microbatches * found.arrays
        payload = share * found.payload / plan.batch_shards
        kind = "collective-permute"
        return collective_seconds(kind, payload, round(count), self._link_group(axis))

    def _link_group(self, *axes: str) -> LinkGroup:
        return link_group(self.estimate.cluster, self.plan.placed, axes)

    def _reshard_seconds(self, axis: str, end: int, then: AfterSpatial) -> float:
        """Return the seconds in which images are put together, there and back."""
        plan, mesh = self.plan, self.plan.mesh
        group = self._link_group(axis)
        whole = self.estimate.block_costs.profile.blocks[end - 1].output_bytes
        part = whole / plan.batch_shards / mesh.spatial_shards
        times = plan.microbatches
        if then == "samples":
            return 2 * collective_seconds("all-to-all", part, times, group)
        gathered = collective_seconds(
            "all-gather", part * mesh.size(axis), times, group
        )
        return gathered + collective_seconds("reduce-scatter", part, times, group)


def _is_window(shape: KernelShape) -> bool:
    return shape.kind == "convolution" and shape.taps > 1
