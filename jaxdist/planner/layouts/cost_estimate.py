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
from jaxdist.oracle.stage_transfers import permute_skew, permutes_are_serialized
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
    pieces: BlockCosts
    """What blocks take and keep."""
    samples: TrafficProbes
    """What the axes move, each by itself."""
    roomy: bool = False
    """Whether plans must fit with a margin: no step is traced."""

    @cached_property
    def seconds(self) -> Column:
        """Seconds a step, to order plans by."""
        total: Column = self._computed + self._moved + self._updated
        return total

    @cached_property
    def bytes(self) -> Column:
        """Bytes of a device, about."""
        read = self.samples.batch / self.space.sizes("replica", "data", "fsdp")
        total: Column = self.samples.state * self._held + self._together
        made = (1 + MEMORY_MARGIN * self.roomy) * self._activations
        total = total + made + read
        return total

    @cached_property
    def _together(self) -> Column:
        """Bytes of gradients, and of parameters that stages put together."""
        space, meshes = self.space, self.space.meshes
        staged, summed = space.sizes("pipe") > 1, space.micro > 1
        joined = np.array([m.fsdp > 1 and space.zero(m) == 3 for m in meshes])
        kept = np.array([m.fsdp > 1 and space.zero(m) == 1 for m in meshes])
        joins, keeps = joined[space.mesh], kept[space.mesh]
        used = np.where(staged, 1.0, self.samples.used) * self._whole
        gradients = np.where(joins & summed, used, self._held)
        gradients = np.where(keeps, self._whole, gradients)
        beside = np.where(keeps, self._whole - self._held, 0.0)
        total: Column = gradients + np.where(joins & staged, used, beside)
        return total

    @cached_property
    def _stages(self) -> Column:
        return self.space.sizes("pipe") * self.space.chunks

    @cached_property
    def _ticks(self) -> ScheduleCounts:
        return ScheduleCounts(space=self.space, crowd=self.cluster.device.crowd.value)

    @cached_property
    def _parts(self) -> Column:
        """Into how many parts the samples are divided, microbatches included."""
        shards = self.space.sizes("replica", "data", "fsdp", *SPATIAL_AXES)
        parts: Column = shards * self.space.micro
        return parts

    @cached_property
    def _computed(self) -> Column:
        one, ticks = self._pass, self._ticks
        total: Column = ticks.ahead * one.forward + ticks.back * one.backward
        skews = [permute_skew(self.cluster, placed) for placed in self.space.placed]
        late = np.array(skews)[self.space.mesh] * ticks.shared
        return total - ticks.rested * (one.forward + one.backward) + late

    @cached_property
    def _pass(self) -> LongestStage:
        """Seconds of a microbatch in the longest stage."""
        found = self.pieces.longest(
            self._parts, self.space.sizes("tensor"), self._stages
        )
        again = found.forward * self.space.remat
        backward = found.backward + again + self._summing
        return LongestStage(forward=found.forward, backward=backward)

    @property
    def _beside(self) -> OverlapEstimate:
        overlap = self.cluster.overlap.value
        return OverlapEstimate(
            space=self.space, pieces=self.pieces, samples=self.samples, overlap=overlap
        )

    @cached_property
    def _summing(self) -> Column:
        """Seconds in which a stage adds the gradients of a microbatch to a sum."""
        summed = (self.space.micro > 1) | (self.space.sizes("pipe") > 1)
        bandwidth = self.cluster.device.memory_bandwidth.value
        took: Column = ACCUMULATION_PASSES * self._whole / self.space.chunks / bandwidth
        return np.where(summed, took, 0.0)

    @cached_property
    def _whole(self) -> Column:
        """Bytes of the parameters of a device before fsdp shares them out."""
        most = self.space.chunks * self.pieces.parameters(self._stages)
        split = self.samples.split
        return most * (1 - split + split / self.space.sizes("tensor"))

    @cached_property
    def _held(self) -> Column:
        held: Column = self._whole / self.space.sizes("fsdp")
        return held

    @cached_property
    def _updated(self) -> Column:
        return UPDATE_PASSES * self._held / self.cluster.device.memory_bandwidth.value

    @cached_property
    def _activations(self) -> Column:
        parts, tensor = self._parts, self.space.sizes("tensor")
        between = self.pieces.between(parts, self._stages) + self._brought
        inside = self.pieces.made(parts, tensor, self._stages)
        kept = np.where(self.space.remat == 1, between, inside)
        once = self.space.remat * self.pieces.largest(parts, tensor, self._stages)
        total: Column = kept * self._flying + once
        return total

    @cached_property
    def _flying(self) -> Column:
        """Inputs of stages that wait for their backward pass at most."""
        pipe, micro = self.space.sizes("pipe"), self.space.micro
        chunks = self.space.chunks
        flying = np.minimum(micro, pipe) * chunks
        flying = np.where(self._ticks.names == "gpipe", micro, flying)
        eager = np.minimum(micro * chunks, (chunks + 1) * pipe - 1)
        flying = np.where(self._ticks.names == EAGER_1F1B, eager, flying)
        return np.where(pipe == 1, 1, flying)

    @cached_property
    def _brought(self) -> Column:
        """Bytes that the tensor axis brings a stage forward in one microbatch."""
        kinds = self.samples.tensor
        sums = kinds["all-reduce"].payload / 2 if "all-reduce" in kinds else 0.0
        gathers = kinds["all-gather"].payload if "all-gather" in kinds else 0.0
        own = (sums + gathers) / self._parts / self._stages
        return np.where(self.space.sizes("tensor") > 1, own, 0.0)

    @cached_property
    def _moved(self) -> Column:
        space, micro = self.space, self.space.micro
        pipe, tensor = space.sizes("pipe"), space.sizes("tensor")
        batch = space.sizes("replica", "data", "fsdp")
        shards = batch * space.sizes(*SPATIAL_AXES)
        once = np.where(pipe == 1, micro, 1)
        own = self._whole / self.samples.parameters
        found, by = self.samples, self._priced
        sends = np.array(
            [_COMPRESSION_RATIOS.get(way, 1.0) for way in space.choices.ways]
        )
        way = sends[space.way]
        sums = by("all-reduce", "data", *SPATIAL_AXES)(
            found.sums.arrays / pipe, way * self._held
        )
        gathers = by("all-gather", "fsdp")(
            once * found.gathers.arrays / pipe, once * found.gathers.payload * own
        )
        sums += by("reduce-scatter", "fsdp")(found.scatters.arrays / pipe, self._held)
        total = sums + gathers - self._beside.hidden(self._pass, sums, gathers)
        said = by("all-reduce", "data", "fsdp", *SPATIAL_AXES)(
            micro * found.statistics.arrays / pipe,
            micro * found.statistics.payload / pipe,
        )
        for kind, moved in found.tensor.items():
            each = tensor if kind == "reduce-scatter" else 1
            said += by(kind, "tensor")(
                micro * moved.arrays / pipe, moved.payload / shards / pipe / each
            )
        for axis, edges in found.edges.items():
            said += by("collective-permute", axis)(
                micro * edges.arrays / pipe, edges.payload / batch / pipe
            )
        held_up = self._ticks.long / (micro * space.chunks)
        return total + held_up * said + self._handed(shards)

    def _handed(self, shards: Column) -> Column:
        """Return the seconds of what stages hand on behind every beat.

        Of two stages one sends activations alone, and one gradients alone; where
        permutations were measured each waits for both
        (`jaxdist.oracle.stage_transfers`).
        """
        hop = self.pieces.handed(self._stages) / shards / self.space.micro
        one = (self._stages == 2) & (not permutes_are_serialized(self.cluster))
        ways = np.where(one, 1, 2)
        priced = self._priced("collective-permute", "pipe")
        return priced(2 * self._ticks.beats, ways * self._ticks.beats * hop)

    def _priced(self, kind: str, *axes: str) -> Callable[[Column, Column], Column]:
        """Return the seconds of so many arrays and bytes of each plan."""
        found = collective_cost_table(kind, self.cluster, self.space.placed, axes)
        return partial(found.seconds, self.space.mesh)
