"""Coarse: a first estimate of every plan of a space at once, and of its memory.

    compute   the oracle's seconds of each block, read off a table by the part of it
              that a device has, summed to stages of equal FLOPs; the longest counts
    ticks     of the schedule (`ticks.py`); of the P - 1 in which some rest, the share
              of the replay; behind each exchange the skew of devices that end together
    moved     what a small layout of each axis by itself moves (`samples.py`), scaled:
              sums of gradients and gathers with the parameters of a device, sums and
              edges of layers with its samples, messages with the microbatches; what
              layers say holds other stages up as what they compute
    bytes     state and gradients with the parameters of a device, whole ones where
              stages put them together or microbatches add gradients up; what layers
              make with its samples and part of weights, times microbatches in flight

It orders plans before they are described, which takes ten thousand times as long. What
it leaves out of the best so many is not looked at: that is the bound of the search.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np

from jaxdist.core.axes import SPATIAL_AXES
from jaxdist.core.cluster import Cluster
from jaxdist.oracle.compute_times import ACCUMULATION_PASSES
from jaxdist.oracle.predict import MEMORY_MARGIN, UPDATE_PASSES
from jaxdist.oracle.stage_times import permute_skew, permutes_are_serialized
from jaxdist.pipeline.sync_schedule import EAGER_1F1B
from jaxdist.planner.layouts.block_costs import BlockCosts, LongestStage
from jaxdist.planner.layouts.collective_cost_table import collective_cost_table
from jaxdist.planner.layouts.overlap_estimate import OverlapEstimate
from jaxdist.planner.layouts.schedule_counts import ScheduleCounts
from jaxdist.planner.layouts.space import Column, PlanSpace
from jaxdist.planner.layouts.traffic_probes import TrafficProbes

_COMPRESSION_RATIOS: Final = {
    "bf16": 0.5,
    "fp8": 0.254,
    "int8": 0.254,
    "int4": 0.129,
    "sign": 0.04,
    "random_k": 0.01,
    "top_k": 0.04,
    "sparse": 0.02,
    "aligned": 0.02,
    "power": 0.02,
}
"""About the part of the bytes that a way sends (docs/compression.md)."""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The estimate of a space's plans."""

    space: PlanSpace
    """The plans."""
    cluster: Cluster
    """The machines."""
    block_costs: BlockCosts
    """What blocks take and keep."""
    traffic: TrafficProbes
    """What the axes move, each by itself."""
    needs_margin: bool = False
    """Whether plans must fit with a margin: no step is traced."""

    @cached_property
    def seconds(self) -> Column:
        """Seconds a step, to order plans by."""
        total: Column = (
            self._compute_seconds + self._comm_seconds + self._update_seconds
        )
        return total

    @cached_property
    def memory_bytes(self) -> Column:
        """Bytes of a device, about."""
        read = self.traffic.batch_bytes / self.space.sizes("replica", "data", "fsdp")
        total: Column = (
            self.traffic.state * self._parameter_bytes + self._gradient_bytes
        )
        made = (1 + MEMORY_MARGIN * self.needs_margin) * self._activation_bytes
        total = total + made + read
        return total

    @cached_property
    def _gradient_bytes(self) -> Column:
        """Bytes of gradients, and of parameters that stages put together."""
        space, meshes = self.space, self.space.meshes
        staged, summed = space.sizes("pipe") > 1, space.micro > 1
        joined = np.array([m.fsdp > 1 and space.zero(m) == 3 for m in meshes])
        kept = np.array([m.fsdp > 1 and space.zero(m) == 1 for m in meshes])
        joins, keeps = joined[space.mesh], kept[space.mesh]
        used = (
            np.where(staged, 1.0, self.traffic.gathered_ratio)
            * self._unsharded_parameters
        )
        gradients = np.where(joins & summed, used, self._parameter_bytes)
        gradients = np.where(keeps, self._unsharded_parameters, gradients)
        beside = np.where(
            keeps, self._unsharded_parameters - self._parameter_bytes, 0.0
        )
        total: Column = gradients + np.where(joins & staged, used, beside)
        return total

    @cached_property
    def _stages(self) -> Column:
        return self.space.sizes("pipe") * self.space.chunks

    @cached_property
    def _schedule_counts(self) -> ScheduleCounts:
        return ScheduleCounts(
            space=self.space, core_contention=self.cluster.device.crowd.value
        )

    @cached_property
    def _sample_parts(self) -> Column:
        """Into how many parts the samples are divided, microbatches included."""
        shards = self.space.sizes("replica", "data", "fsdp", *SPATIAL_AXES)
        parts: Column = shards * self.space.micro
        return parts

    @cached_property
    def _compute_seconds(self) -> Column:
        one, ticks = self._longest_stage, self._schedule_counts
        total: Column = (
            ticks.forward_ticks * one.forward + ticks.backward_ticks * one.backward
        )
        skews = [permute_skew(self.cluster, placed) for placed in self.space.placed]
        late = np.array(skews)[self.space.mesh] * ticks.multi_stage_exchanges
        return total - ticks.contention_savings * (one.forward + one.backward) + late

    @cached_property
    def _longest_stage(self) -> LongestStage:
        """Seconds of a microbatch in the longest stage."""
        found = self.block_costs.longest_stage(
            self._sample_parts, self.space.sizes("tensor"), self._stages
        )
        again = found.forward * self.space.remat
        backward = found.backward + again + self._accumulation_seconds
        return LongestStage(forward=found.forward, backward=backward)

    @property
    def _overlap_estimate(self) -> OverlapEstimate:
        overlap = self.cluster.overlap.value
        return OverlapEstimate(
            space=self.space,
            block_costs=self.block_costs,
            traffic=self.traffic,
            overlap=overlap,
        )

    @cached_property
    def _accumulation_seconds(self) -> Column:
        """Seconds in which a stage adds the gradients of a microbatch to a sum."""
        summed = (self.space.micro > 1) | (self.space.sizes("pipe") > 1)
        bandwidth = self.cluster.device.memory_bandwidth.value
        took: Column = (
            ACCUMULATION_PASSES
            * self._unsharded_parameters
            / self.space.chunks
            / bandwidth
        )
        return np.where(summed, took, 0.0)

    @cached_property
    def _unsharded_parameters(self) -> Column:
        """Bytes of the parameters of a device before fsdp shares them out."""
        most = self.space.chunks * self.block_costs.max_stage_parameters(self._stages)
        split = self.traffic.tensor_split_fraction
        return most * (1 - split + split / self.space.sizes("tensor"))

    @cached_property
    def _parameter_bytes(self) -> Column:
        held: Column = self._unsharded_parameters / self.space.sizes("fsdp")
        return held

    @cached_property
    def _update_seconds(self) -> Column:
        return (
            UPDATE_PASSES
            * self._parameter_bytes
            / self.cluster.device.memory_bandwidth.value
        )

    @cached_property
    def _activation_bytes(self) -> Column:
        parts, tensor = self._sample_parts, self.space.sizes("tensor")
        between = (
            self.block_costs.max_stage_outputs(parts, self._stages)
            + self._tensor_comm_bytes
        )
        inside = self.block_costs.max_stage_activations(parts, tensor, self._stages)
        kept = np.where(self.space.remat == 1, between, inside)
        once = self.space.remat * self.block_costs.max_block_activations(
            parts, tensor, self._stages
        )
        total: Column = kept * self._microbatches_in_flight + once
        return total

    @cached_property
    def _microbatches_in_flight(self) -> Column:
        """Inputs of stages that wait for their backward pass at most."""
        pipe, micro = self.space.sizes("pipe"), self.space.micro
        chunks = self.space.chunks
        flying = np.minimum(micro, pipe) * chunks
        flying = np.where(
            self._schedule_counts.schedule_names == "gpipe", micro, flying
        )
        eager = np.minimum(micro * chunks, (chunks + 1) * pipe - 1)
        flying = np.where(
            self._schedule_counts.schedule_names == EAGER_1F1B, eager, flying
        )
        return np.where(pipe == 1, 1, flying)

    @cached_property
    def _tensor_comm_bytes(self) -> Column:
        """Bytes that the tensor axis brings a stage forward in one microbatch."""
        kinds = self.traffic.tensor_collectives
        sums = kinds["all-reduce"].payload / 2 if "all-reduce" in kinds else 0.0
        gathers = kinds["all-gather"].payload if "all-gather" in kinds else 0.0
        own = (sums + gathers) / self._sample_parts / self._stages
        return np.where(self.space.sizes("tensor") > 1, own, 0.0)

    @cached_property
    def _comm_seconds(self) -> Column:
        space, micro = self.space, self.space.micro
        pipe, tensor = space.sizes("pipe"), space.sizes("tensor")
        batch = space.sizes("replica", "data", "fsdp")
        shards = batch * space.sizes(*SPATIAL_AXES)
        once = np.where(pipe == 1, micro, 1)
        own = self._unsharded_parameters / self.traffic.parameter_bytes
        found, by = self.traffic, self._collective_seconds
        sends = np.array(
            [_COMPRESSION_RATIOS.get(way, 1.0) for way in space.choices.ways]
        )
        way = sends[space.way]
        sums = by("all-reduce", "data", *SPATIAL_AXES)(
            found.gradient_all_reduce.arrays / pipe, way * self._parameter_bytes
        )
        gathers = by("all-gather", "fsdp")(
            once * found.parameter_all_gather.arrays / pipe,
            once * found.parameter_all_gather.payload * own,
        )
        sums += by("reduce-scatter", "fsdp")(
            found.gradient_reduce_scatter.arrays / pipe, self._parameter_bytes
        )
        total = (
            sums
            + gathers
            - self._overlap_estimate.overlapped_seconds(
                self._longest_stage, sums, gathers
            )
        )
        said = by("all-reduce", "data", "fsdp", *SPATIAL_AXES)(
            micro * found.norm_statistics.arrays / pipe,
            micro * found.norm_statistics.payload / pipe,
        )
        for kind, moved in found.tensor_collectives.items():
            each = tensor if kind == "reduce-scatter" else 1
            said += by(kind, "tensor")(
                micro * moved.arrays / pipe, moved.payload / shards / pipe / each
            )
        for axis, edges in found.halo_exchange.items():
            said += by("collective-permute", axis)(
                micro * edges.arrays / pipe, edges.payload / batch / pipe
            )
        held_up = self._schedule_counts.ticks_per_direction / (micro * space.chunks)
        return total + held_up * said + self._stage_transfer_seconds(shards)

    def _stage_transfer_seconds(self, shards: Column) -> Column:
        """Return the seconds of what stages hand on behind every beat.

        Of two stages one sends activations alone, and one gradients alone; where
        permutations were measured each waits for both
        (`jaxdist.oracle.stage_times`).
        """
        hop = (
            self.block_costs.max_boundary_bytes(self._stages)
            / shards
            / self.space.micro
        )
        one = (self._stages == 2) & (not permutes_are_serialized(self.cluster))
        ways = np.where(one, 1, 2)
        priced = self._collective_seconds("collective-permute", "pipe")
        return priced(
            2 * self._schedule_counts.exchanges,
            ways * self._schedule_counts.exchanges * hop,
        )

    def _collective_seconds(
        self, kind: str, *axes: str
    ) -> Callable[[Column, Column], Column]:
        """Return the seconds of so many arrays and bytes of each plan."""
        found = collective_cost_table(kind, self.cluster, self.space.placed, axes)
        return partial(found.seconds, self.space.mesh)
