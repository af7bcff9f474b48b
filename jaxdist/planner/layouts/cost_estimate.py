"""A first estimate of the seconds and the memory of every plan of a space at once.

    compute     the oracle's seconds of each block (`block_costs.py`), summed to stages
                of equal FLOPs; the longest stage counts, in every tick of the schedule
    traffic     of a small layout of each axis alone (`traffic_probes.py`), scaled:
                gradients and gathers with the parameters of a device, traffic inside
                of layers with its samples, messages with the microbatches; at the
                oracle's price of a collective
    overlap     as the oracle has it (`jaxdist.oracle.overlap`)
    memory      state and gradients with the parameters of a device, activations with
                its samples and its part of the weights, times microbatches in flight

It orders plans before they are described, which takes ten thousand times as long. The
search looks at the best of this order alone: what it leaves out is not found. All that
the oracle computes is asked of it; what is here are the sizes that it is asked for, and
closed forms of what schedules count, since building them all would take too long.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.core.axes import (
    BATCH_AXES,
    CONTEXT_AXIS,
    EXPERT_AXIS,
    POSITION_AXES,
)
from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.device import Device
from jaxdist.core.plan.placement import MeshPlacement
from jaxdist.oracle.collective_times import collective_seconds
from jaxdist.oracle.compute_times import ACCUMULATION_PASSES
from jaxdist.oracle.flow_shop import concurrent_time
from jaxdist.oracle.link_groups import link_group
from jaxdist.oracle.overlap import bucket_bytes
from jaxdist.oracle.predict import (
    MEMORY_MARGIN,
    UPDATE_PASSES,
    least_memory_bandwidth,
)
from jaxdist.oracle.rank_devices import rank_devices
from jaxdist.oracle.stage_times import permute_skew, permutes_are_serialized
from jaxdist.partition.gradient_buckets import UNCOMPRESSED
from jaxdist.pipeline.sync_schedule import EAGER_1F1B, ZERO_BUBBLE_H1
from jaxdist.planner.layouts.block_costs import BlockCosts
from jaxdist.planner.layouts.space import Column, PlanSpace, distinct_rows
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
"""About the part of the bytes that a compressor sends (docs/compression.md)."""
_SINGLE_STAGE_EXCHANGES: Final = 2
"""Exchanges of a direction before which one stage alone works: the first and last."""
_ARRAY_SIZES: Final = np.array([0, *(1 << power for power in range(10, 29, 2))])
"""Bytes of an array at which collectives are priced: none, and 1 KiB to 256 MiB."""
_MIN_ARRAYS: Final = 1e-9
"""Arrays at least: bytes of no array are priced as bytes of a very large one."""
_RATIOS: Final = np.logspace(-4, 4, 161)
"""Communication over compute at which their overlap is tabulated."""
_MIN_SECONDS: Final = 1e-12
"""Seconds at least, so that every ratio is finite."""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The estimate of a space's plans; columns have an entry for each of them."""

    space: PlanSpace
    """The plans."""
    cluster: Cluster
    """The machines."""
    block_costs: BlockCosts
    """Seconds and bytes of the network's blocks."""
    traffic: TrafficProbes
    """Traffic of each axis alone."""
    needs_margin: bool = False
    """Whether plans must fit with a margin: no step is traced."""

    @cached_property
    def seconds(self) -> Column:
        """Seconds a step, to order plans by."""
        # Updates are bound by memory, and fsdp divides them as it divides the
        # parameters.
        bandwidth = least_memory_bandwidth(self.kinds)
        own = self.traffic.trained_fraction * self._parameter_bytes
        update = UPDATE_PASSES * own / bandwidth
        total: Column = self._compute_seconds + self._comm_seconds + update
        return total

    @cached_property
    def memory_bytes(self) -> Column:
        """Bytes of a device, about."""
        parts = self.space.sizes("replica", *BATCH_AXES, CONTEXT_AXIS)
        read = self.traffic.batch_bytes / parts
        state = self.traffic.state * self._parameter_bytes
        # Only activations are uncertain: state and gradients are counted.
        margin = 1 + MEMORY_MARGIN * self.needs_margin
        total: Column = state + self._gradient_bytes
        total = total + margin * self._activation_bytes + read
        return total

    # Kinds of devices.

    @cached_property
    def kinds(self) -> tuple[Device, ...]:
        """Kinds of the devices that plans stand on, by the order of the space."""
        if not self.space.placed:
            return self.cluster.kinds
        # All meshes have as many devices, so the first stands for all.
        return rank_devices(self.cluster, self.space.placed[0])

    def costs_of(self, device: Device) -> BlockCosts:
        """Return the seconds and bytes of the network's blocks on a kind of device."""
        for known in (self.block_costs, *self._other_costs):
            if known.device == device:
                return known
        # Another order of the cluster's groups may stand on kinds that this has not.
        self._other_costs.append(replace(self.block_costs, device=device))
        return self._other_costs[-1]

    @cached_property
    def _other_costs(self) -> list[BlockCosts]:
        return []

    @cached_property
    def _kind_shares(self) -> Column:
        """The part of the devices that each of `kinds` has."""
        counts = np.zeros(len(self.kinds))
        used = self.space.meshes[0].devices if self.space.meshes else 1
        ranges = self.cluster.group_ranges(self.space.base.host_order)
        for group, places in ranges:
            device = self.cluster.device_of(group)
            if device in self.kinds:
                own = min(places.stop, used) - min(places.start, used)
                counts[self.kinds.index(device)] += own
        return counts / counts.sum()

    @property
    def _core_contention(self) -> float:
        return min(kind.crowd.value for kind in self.kinds)

    @cached_property
    def memory_capacity(self) -> Column:
        """Bytes that a device may have, about: of stages the mean of their devices."""
        each = np.array([kind.memory.value for kind in self.kinds])
        staged = self.space.sizes("pipe") > 1
        return np.where(staged, each @ self._kind_shares, each.min())

    # Compute.

    @cached_property
    def _compute_seconds(self) -> Column:
        forward, backward, _ = self._longest_stage
        total: Column = self._forward_ticks * forward
        total = total + (2 * self._ticks - self._forward_ticks) * backward
        skews = [permute_skew(self.cluster, placed) for placed in self.space.placed]
        # Devices that end together are late at every exchange behind several stages.
        several = (self.space.micro > 1) & (self.space.sizes("pipe") > 1)
        common = np.maximum(self._exchanges - 2 * _SINGLE_STAGE_EXCHANGES, 0)
        late = np.array(skews)[self.space.mesh] * np.where(several, common, 0)
        total = total - self._contention_savings * (forward + backward)
        return np.where(self._is_zero_bubble, self._zero_bubble_seconds, total) + late

    @cached_property
    def _longest_stage(self) -> tuple[Column, Column, Column]:
        """Seconds of a microbatch in the longest stage, as `BlockCosts` has them."""
        columns = self._sample_parts, self.space.sizes("tensor"), self._stages
        each = np.array(
            [self.costs_of(kind).longest_stage(*columns) for kind in self.kinds]
        )
        slowest = each.max(axis=0)
        # A stage on a faster device gets more blocks: all are as fast as work that is
        # divided in proportion to the speeds. Without stages the slowest device counts.
        faster = np.maximum(slowest, _MIN_SECONDS) / np.maximum(each, _MIN_SECONDS)
        speed = np.tensordot(self._kind_shares, faster, axes=1)
        staged = self.space.sizes("pipe") > 1
        forward, backward, weights = np.where(staged, slowest / speed, slowest)
        # Remat repeats the forward pass; gradients are added up in the same tick.
        again, added = forward * self.space.remat, self._accumulation_seconds
        return forward, backward + again + added, weights + added

    @cached_property
    def _is_zero_bubble(self) -> Column:
        """Tell which plans have ticks for the gradients of weights."""
        staged = self.space.sizes("pipe") > 1
        found: Column = (self.space.schedule_names == ZERO_BUBBLE_H1) & staged
        return found

    @cached_property
    def _zero_bubble_seconds(self) -> Column:
        """Seconds of the ticks of plans with zero bubble H1.

        A tick has devices with up to three kinds of work, and lasts as long as the
        longest of them. In the first P ticks devices go forward, one more in every
        second tick; in the next P so do they, and come back; in the last P + 1 they
        come back, and at last have gradients of weights alone. Between, all kinds meet
        in 3 (m - P) + P - 2 ticks. Two stages take turns there: each pair of kinds has
        m - 2 ticks.
        """
        forward, backward, weights = self._longest_stage
        backward = backward - weights
        micro, pipe = self.space.micro, self.space.sizes("pipe")
        contention, counts = self._core_contention, np.unique(pipe)
        # Devices that rest leave their share of the processor cores to the others.
        shares = []
        for stages in counts:
            working = np.arange(2 * stages) // 2 + 1
            share = np.maximum(1 / contention, working / stages)
            shares.append([share[:stages].sum(), share[stages:].sum()])
        filling, turning = np.array(shares)[np.searchsorted(counts, pipe)].T
        both, late = np.maximum(forward, backward), np.maximum(backward, weights)
        turns = both + late + np.maximum(forward, weights)
        every = np.maximum(both, weights)
        steady = np.where(
            pipe == 2, (micro - 2) * turns, (3 * micro - 2 * pipe - 2) * every
        )
        total: Column = filling * forward + turning * both + steady
        return total + pipe * late + weights

    @cached_property
    def _accumulation_seconds(self) -> Column:
        """Seconds in which a stage adds the gradients of a microbatch to a sum."""
        summed = (self.space.micro > 1) | (self.space.sizes("pipe") > 1)
        # Both are read, and the sum is written; chunks of a device take turns.
        passed = ACCUMULATION_PASSES * self._unsharded_parameters / self.space.chunks
        bandwidth = least_memory_bandwidth(self.kinds)
        return np.where(summed, passed / bandwidth, 0.0)

    @cached_property
    def _stages(self) -> Column:
        return self.space.sizes("pipe") * self.space.chunks

    @cached_property
    def _sample_shards(self) -> Column:
        """Devices over which the samples of a microbatch are split."""
        return self.space.sizes("replica", *BATCH_AXES, *POSITION_AXES)

    @cached_property
    def _sample_parts(self) -> Column:
        """Parts into which samples are split, microbatches included."""
        parts: Column = self._sample_shards * self.space.micro
        return parts

    # Schedules of P stages with m microbatches in closed form; `plan_schedule` counts
    # the same for one plan.

    @cached_property
    def _ticks(self) -> Column:
        """Passes of one direction that follow one another: m chunks + P - 1."""
        # Interleaving divides a stage into chunks, which follow one another.
        long: Column = self.space.micro * self.space.chunks
        return long + self.space.sizes("pipe") - 1

    @cached_property
    def _forward_ticks(self) -> Column:
        """Ticks without a backward pass, of the 2 (m chunks + P - 1) of a step.

        They are all forward ones of gpipe and of eager 1F1B, P chunks of 1F1B: behind
        those the devices do forward and backward passes in the same tick, and the
        backward passes are longer.
        """
        pipe = self.space.sizes("pipe")
        apart = np.isin(self.space.schedule_names, ("gpipe", EAGER_1F1B)) | (pipe == 1)
        warm = np.minimum(pipe * self.space.chunks, self._ticks)
        return np.where(apart, self._ticks, warm)

    @cached_property
    def _exchanges(self) -> Column:
        """Exchanges between stages: one a tick, but one for two of eager 1F1B."""
        pipe, chunks = self.space.sizes("pipe"), self.space.chunks
        both = self.space.micro * chunks + pipe - pipe * chunks
        eager = self.space.schedule_names == EAGER_1F1B
        found = np.where(eager, 2 * self._ticks - both, 2 * self._ticks)
        # Gradients of weights have a tick for each microbatch.
        return np.where(self._is_zero_bubble, self._ticks + 2 * self.space.micro, found)

    @cached_property
    def _contention_savings(self) -> Column:
        """Ticks of a direction by which a step is shorter, as some devices rest."""
        contention, pipe = self._core_contention, self.space.sizes("pipe")
        pairs, place = distinct_rows(pipe, self._ticks)
        found = []
        for stages, ticks in pairs:
            # A pipeline fills and drains by one device a tick.
            tick = np.arange(ticks)
            working = np.minimum(np.minimum(tick + 1, ticks - tick), stages)
            working = np.minimum(working, ticks - stages + 1)
            saved = 1 - np.maximum(1 / contention, working / stages)
            found.append(float(saved.sum()))
        rested: Column = np.array(found)[place]
        return rested

    @cached_property
    def _microbatches_in_flight(self) -> Column:
        """Stage inputs that wait for their backward pass at most."""
        pipe, micro = self.space.sizes("pipe"), self.space.micro
        chunks, names = self.space.chunks, self.space.schedule_names
        # Eager 1F1B sends ahead, so it has nearly twice as many inputs in flight as
        # 1F1B.
        eager = np.minimum(micro * chunks, (chunks + 1) * pipe - 1)
        flying = np.minimum(micro, pipe) * chunks
        flying = np.where(names == "gpipe", micro, flying)
        flying = np.where(names == EAGER_1F1B, eager, flying)
        return np.where(pipe == 1, 1, flying)

    # Communication.

    @cached_property
    def _comm_seconds(self) -> Column:
        space, micro, found = self.space, self.space.micro, self.traffic
        pipe, tensor = space.sizes("pipe"), space.sizes("tensor")
        batch, shards = space.sizes("replica", *BATCH_AXES), self._sample_shards
        # What overlaps slows computing, so less is gained than is hidden.
        disturbed = max(kind.interference.value for kind in self.kinds)
        gained = (1 - disturbed) * self._overlapped_seconds
        once = self._reduction_seconds + self._gather_seconds - gained

        # In every microbatch: the traffic inside of layers. Other stages wait for it as
        # they wait for compute, so it counts in every tick.
        norms = found.norm_statistics
        said = self._price(
            "all-reduce",
            (*BATCH_AXES, *POSITION_AXES),
            micro * norms.arrays / pipe,
            micro * norms.payload / pipe,
        )
        for kind, moved in found.tensor_collectives.items():
            # A scattered result is a part on each device, and the probe counts it
            # whole.
            each = tensor if kind == "reduce-scatter" else 1
            payload = moved.payload / shards / pipe / each
            said += self._price(kind, ("tensor",), micro * moved.arrays / pipe, payload)
        for axis, edges in found.halo_exchange.items():
            payload, arrays = edges.payload / batch / pipe, micro * edges.arrays / pipe
            said += self._price("collective-permute", (axis,), arrays, payload)
        sent, context = found.expert_exchange, space.sizes(CONTEXT_AXIS)
        # With a capacity more than its tokens' part of the slots may be a device's.
        payload = sent.payload / batch / pipe / context
        arrays = micro * sent.arrays / pipe
        said += self._price("all-to-all", (EXPERT_AXIS,), arrays, payload)
        for kind, read in found.context_collectives.items():
            # All keys and values, whatever the devices are, or parts of them.
            whole = kind in ("all-gather", "collective-permute")
            payload = read.payload / batch / pipe / tensor / np.where(whole, 1, context)
            hops = np.where(kind == "collective-permute", context, 1)
            arrays = micro * read.arrays * hops / pipe
            said += self._price(kind, (CONTEXT_AXIS,), arrays, payload)
        held_up = self._ticks / (micro * space.chunks)
        # Half of it in every tick with a forward or a backward pass.
        between = (self._exchanges - 1) / (2 * micro)
        held_up = np.where(self._is_zero_bubble, between, held_up)
        return once + held_up * said + self._stage_transfer_seconds

    @cached_property
    def _reduction_seconds(self) -> Column:
        """Seconds of the reductions of gradients, in a step."""
        space, found, pipe = self.space, self.traffic, self.space.sizes("pipe")
        ratios = [_COMPRESSION_RATIOS.get(way, 1.0) for way in space.choices.ways]
        # Inside of fsdp gradients are never compressed.
        own = found.trained_fraction * self._parameter_bytes
        sent = np.array(ratios)[space.way] * own
        arrays = found.gradient_all_reduce.arrays / pipe
        # Those of experts are whole along their axis, where their tokens came to them.
        share, apart = self._expert_share, found.expert_gradient_arrays / pipe
        axes = ("data", *POSITION_AXES)
        sums = self._price(
            "all-reduce", (*axes, EXPERT_AXIS), arrays - apart, (1 - share) * sent
        )
        if found.expert_fraction:
            sums += self._price("all-reduce", axes, apart, share * sent)
        arrays = found.gradient_reduce_scatter.arrays / pipe
        return sums + self._price("reduce-scatter", ("fsdp",), arrays, own)

    @cached_property
    def _gather_seconds(self) -> Column:
        """Seconds in which fsdp gathers parameters, in a step."""
        gathered, pipe = self.traffic.parameter_all_gather, self.space.sizes("pipe")
        # Each microbatch gathers them, but stages once for a step.
        times = np.where(pipe == 1, self.space.micro, 1)
        own = self._unsharded_parameters / self.traffic.parameter_bytes
        arrays, payload = times * gathered.arrays / pipe, times * gathered.payload * own
        return self._price("all-gather", ("fsdp",), arrays, payload)

    @cached_property
    def _stage_transfer_seconds(self) -> Column:
        """Seconds of what stages send each other at every exchange.

        Of two stages one sends activations alone, and one gradients alone; where
        permutations were measured each waits for both (`jaxdist.oracle.stage_times`).
        """
        pieces = self.block_costs
        boundary = pieces.max_stage_bytes(
            pieces.output_bytes, self._stages, at_end=True
        )
        hop = boundary / self._sample_shards / self.space.micro
        one = (self._stages == 2) & (not permutes_are_serialized(self.cluster))
        payload = np.where(one, 1, 2) * self._exchanges * hop
        return self._price(
            "collective-permute", ("pipe",), 2 * self._exchanges, payload
        )

    def _price(
        self, kind: str, axes: tuple[str, ...], arrays: Column, payload: Column
    ) -> Column:
        meshes, own = self.space.placed, self.space.mesh
        return price_collectives(kind, self.cluster, meshes, axes, own, arrays, payload)

    @cached_property
    def _overlapped_seconds(self) -> Column:
        """Seconds of collectives that overlap with passes; none in stages.

        As `jaxdist.oracle.overlap`, with a device's part of each layer at the samples
        of one device: only the ratios between layers count.
        """
        space, traffic = self.space, self.traffic
        overlap, found = self.cluster.overlap.value, np.zeros(len(space))
        (rows,) = np.nonzero(space.sizes("pipe") == 1)
        if not overlap or not len(rows):
            return found
        micro = space.micro[rows]
        forward, backward = (micro * one[rows] for one in self._longest_stage[:2])
        # All meshes have as many devices, so the first stands for all.
        own, back = self.block_costs.layer_seconds(space.meshes[0].devices)
        layers = self.block_costs.profile.layers
        sizes = np.array([layer.parameter_bytes for layer in layers], float)
        shares = sizes / max(1.0, sizes.sum())

        # Of what a microbatch gathers, the first time is for its forward pass.
        fetched = self._gather_seconds[rows] * self._is_zero(3)[rows]
        whole = traffic.parameter_all_gather.payload
        used = traffic.gathered_ratio * traffic.parameter_bytes
        first = min(1.0, used / whole) if whole else 1.0
        ahead = _concurrent_columns(shares, own, first * fetched, forward)
        again = _concurrent_columns(
            shares[::-1], back[::-1], (1 - first) * fetched, backward
        )
        left = backward - overlap * again

        # Several microbatches reduce their sum behind the last pass. Compressed
        # gradients are reduced in buckets, others array by array.
        reduced = self._reduction_seconds[rows] * (micro == 1)
        total = np.zeros(len(rows))
        plain = np.array([way in UNCOMPRESSED for way in space.choices.ways])
        bucket = space.base.reduce.bucket_mib * 2**20
        full = bucket * space.sizes("fsdp") / traffic.parameter_bytes
        full = np.where(plain[space.way], 0.0, np.minimum(1.0, full))[rows]
        for size in np.unique(full):
            ready = bucket_bytes(shares[::-1], float(size))
            after = _concurrent_columns(back[::-1], ready, left, reduced)
            total = np.where(full == size, after, total)
        found[rows] = overlap * (ahead + again + total)
        return found

    # Memory.

    def _is_zero(self, stage: int) -> Column:
        """Tell which plans shard with fsdp at a stage of ZeRO: 1 or 3."""
        space = self.space
        own = np.array(
            [m.fsdp > 1 and space.zero_stage(m) == stage for m in space.meshes]
        )
        found: Column = own[space.mesh]
        return found

    @cached_property
    def _unsharded_parameters(self) -> Column:
        """Bytes of the parameters of a device before fsdp shards them."""
        largest = self.block_costs.max_stage_bytes(
            self.block_costs.parameter_bytes, self._stages
        )
        # Norms and the like are whole on each device of the tensor axis.
        split = self.traffic.tensor_split_fraction
        tensor = self.space.sizes("tensor")
        # What the expert axis takes away was split by tensor before, or was whole.
        gone = self.traffic.expert_fraction * (1 - 1 / self.space.sizes(EXPERT_AXIS))
        gone = gone / (tensor if split else 1)
        return self.space.chunks * largest * (1 - split + split / tensor - gone)

    @cached_property
    def _expert_share(self) -> Column:
        """The part of a device's parameters that are those of experts."""
        experts = self.traffic.expert_fraction
        held = experts / self.space.sizes(EXPERT_AXIS)
        share: Column = held / (1 - experts + held)
        return share

    @cached_property
    def _parameter_bytes(self) -> Column:
        held: Column = self._unsharded_parameters / self.space.sizes("fsdp")
        return held

    @cached_property
    def _gradient_bytes(self) -> Column:
        """Bytes of gradients, and of parameters that a pipeline gathers."""
        staged, summed = self.space.sizes("pipe") > 1, self.space.micro > 1
        whole, own = self._unsharded_parameters, self._parameter_bytes
        joins, keeps = self._is_zero(3), self._is_zero(1)
        # A sum over microbatches is of whole parameters, and in their dtype.
        gradients = np.where(joins & summed, whole, own)
        # With ZeRO 1 a device has whole parameters and gradients.
        gradients = np.where(keeps, whole, gradients)
        beside = np.where(keeps, whole - own, 0.0)
        gradients = self.traffic.trained_fraction * gradients
        total: Column = gradients + np.where(joins & staged, whole, beside)
        return total

    @cached_property
    def _activation_bytes(self) -> Column:
        """Bytes that forward passes save, and of a block that is recomputed."""
        parts, tensor = self._sample_parts, self.space.sizes("tensor")
        pieces, stages = self.block_costs, self._stages
        # Results of the tensor axis's collectives are saved where blocks are not; half
        # of the all-reduces are of the backward pass.
        kinds, brought = self.traffic.tensor_collectives, 0.0
        if "all-reduce" in kinds:
            brought += kinds["all-reduce"].payload / 2
        if "all-gather" in kinds:
            brought += kinds["all-gather"].payload
        received = np.where(tensor > 1, brought / parts / stages, 0.0)
        outputs = pieces.max_stage_bytes(pieces.made_bytes, stages, with_handed=True)
        between = outputs / parts + received
        inside = pieces.max_activations(tensor, stages) / parts
        kept = np.where(self.space.remat == 1, between, inside)
        block = pieces.max_activations(tensor, stages, of_block=True) / parts
        total: Column = kept * self._microbatches_in_flight + self.space.remat * block
        # Of as many backward passes as stages the gradients of weights are to come.
        late = np.where(
            self.space.remat == 1,
            *(
                pieces.max_weight_residuals(tensor, stages, is_remade=again)
                for again in (True, False)
            ),
        )
        pending = self._is_zero_bubble * self.space.sizes("pipe")
        return total + pending * late / parts


def price_collectives(
    kind: str,
    cluster: Cluster,
    meshes: Sequence[MeshPlacement],
    axes: Sequence[str],
    mesh_index: Column,
    arrays: Column,
    payload: Column,
) -> Column:
    """Return the seconds of collectives of one kind, of every plan.

    The oracle prices one array of each size of a table on each mesh; between two sizes,
    and behind the last, the price is linear in the bytes.

    Args:
        kind: as the compiler names it.
        cluster: the machines.
        meshes: of a space, placed on devices.
        axes: along which it communicates, where a mesh has more than one device.
        mesh_index: the place of each plan's mesh.
        arrays: how many each plan moves.
        payload: bytes of all of them.
    """
    prices: dict[tuple[int, tuple[tuple[int, int], ...]], list[float]] = {}
    table = []
    for placed in meshes:
        # A group that lies the same way in as large a mesh has the same links.
        along = [axis for axis in axes if placed.mesh.size(axis) > 1]
        key = placed.mesh.devices, tuple(placed.place(axis) for axis in along)
        if key not in prices:
            group = link_group(cluster, placed, along)
            each = (collective_seconds(kind, int(n), 1, group) for n in _ARRAY_SIZES)
            prices[key] = [*each] if along else [0.0] * len(_ARRAY_SIZES)
        table.append(prices[key])
    seconds = np.array(table)
    count = np.maximum(arrays, _MIN_ARRAYS)
    size = payload / count
    # The row of sizes above each array; behind the last one the line goes on.
    above = np.searchsorted(_ARRAY_SIZES, size, side="right")
    above = np.clip(above, 1, len(_ARRAY_SIZES) - 1)
    low, high = _ARRAY_SIZES[above - 1], _ARRAY_SIZES[above]
    first, last = seconds[mesh_index, above - 1], seconds[mesh_index, above]
    found: Column = count * (first + (last - first) * (size - low) / (high - low))
    return found


def _concurrent_columns(
    first: Column, second: Column, first_seconds: Column, second_seconds: Column
) -> Column:
    """Return the seconds in which two workers work at the same time, of every plan.

    With A and B seconds of the two it is min(A, B) h(B / A), and h is read off a table
    of ratios, so the layers are looked at once and not for every plan.

    Args:
        first: of each layer, in any unit.
        second: the same of what needs it.
        first_seconds: A, the sum of the first, of every plan.
        second_seconds: B, the same of the second.
    """
    # Only the shape over the layers counts; the table is over the ratio of sums.
    first = first / max(_MIN_SECONDS, first.sum())
    second = second / max(_MIN_SECONDS, second.sum())
    both = concurrent_time(first[None], _RATIOS[:, None] * second[None])
    part = both / np.minimum(1.0, _RATIOS)
    lengths = np.maximum(first_seconds, _MIN_SECONDS)
    ratio = np.maximum(second_seconds, _MIN_SECONDS) / lengths
    found: Column = np.interp(np.log(ratio), np.log(_RATIOS), part)
    return np.minimum(first_seconds, second_seconds) * found
