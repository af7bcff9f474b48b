"""The description of one training step of a network under a plan: what is predicted."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.plan import Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.plan_schedule import (
    DeviceWorkCounts,
    StagePlacement,
    device_work_counts,
    stage_placement,
)

FROZEN_TERM: Final = "frozen parameters"
"""The term of the state that is parameters without gradients."""


@dataclass(frozen=True, kw_only=True)
class StepDescription:
    """A training step: network, plan and traffic. Nothing in it was measured."""

    profile: Profile
    """The network, profiled on the whole global batch."""
    plan: Plan
    """How the network and its batch are split over devices."""
    ledgers: tuple[Ledger, ...]
    """Traffic and FLOPs of a device: one, or one for each rank of the pipe axis."""
    equal_ranks: tuple[int, ...] = ()
    """For each rank of the pipe axis the first one whose stages do and move the same,
    but for the names of their layers; empty where none stands for another."""
    microbatches: int = 1
    """Microbatches of a step."""
    stages: tuple[tuple[str, ...], ...] = ()
    """Blocks of each pipeline stage; empty without a pipeline."""
    dtype: str = "float32"
    """Of the activations."""
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the state on one device, by term: exact, from its shapes."""
    batch_bytes: int = 0
    """Bytes of the samples of a global batch."""
    traced_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes beside the state on one device, by term, from the step's traced program;
    empty where it was not traced."""
    traced_host_bytes: int = 0
    """Bytes of activations that a device has in the host's memory, likewise."""

    @property
    def stage_range(self) -> range:
        """The stages by number; a network without a pipeline is one stage."""
        return range(max(1, len(self.stages)))

    # A step is asked for both of these dozens of times, and the work counts of an
    # asynchronous pipeline are read off its whole schedule.
    @cached_property
    def placement(self) -> StagePlacement:
        """The ranks of the pipe axis that hold each stage."""
        return stage_placement(self.plan)

    @cached_property
    def work_counts(self) -> tuple[DeviceWorkCounts, ...]:
        """Microbatches and updates of a step, of each rank of the pipe axis."""
        return device_work_counts(self.plan, self.microbatches)

    def stages_of_equal_time(self, cluster: Cluster) -> Sequence[int]:
        """Return for each stage the first one that takes as long.

        Args:
            cluster: the machines; where they are not all alike no stage stands for
                another.
        """
        is_uniform = len(cluster.kinds) == 1 and not cluster.has_uneven_links
        return self._equal_stages if is_uniform else self.stage_range

    @cached_property
    def _equal_stages(self) -> tuple[int, ...]:
        """For each stage the first one that does and moves the same."""
        ranks = [self.placement.stage_devices[k][0] for k in self.stage_range]
        # Plans tell by the names of layers what is kept of them.
        if not self.equal_ranks or self.plan.remat_saves or self.plan.offload:
            return tuple(self.stage_range)
        first: dict[Hashable, int] = {}

        def form(stage: int) -> Hashable:
            place = self.placement.stages_of(ranks[stage]).index(stage)
            kinds = (
                (
                    self.profile.equal_blocks[block],
                    block in self._remat_blocks,
                    block in self._replicated_blocks,
                )
                for block in self.stages[stage]
            )
            # The last stage has the loss, and layers of no block.
            is_last = stage == len(self.stages) - 1
            return self.equal_ranks[ranks[stage]], place, is_last, *kinds

        return tuple(first.setdefault(form(k), k) for k in self.stage_range)

    @cached_property
    def sample_shards(self) -> int:
        """Devices over which the samples of one microbatch are split."""
        # Positions of a sample count like samples: a device computes that part of both.
        return self.plan.batch_shards * self.plan.mesh.position_shards

    def is_rematerialized(self, layer: LayerProfile) -> bool:
        """Tell whether the backward pass recomputes the layer's block."""
        plan = self.plan
        return layer.block in self._remat_blocks if plan.remat_end else plan.remat

    @cached_property
    def saved_layers(self) -> frozenset[str]:
        """Layers of blocks that the backward pass does not compute again."""
        layers = self.profile.layers
        return frozenset(x.name for x in layers if not self.is_rematerialized(x))

    @cached_property
    def _remat_blocks(self) -> frozenset[str]:
        # A plan names the first block without remat, so the blocks before it have it.
        return frozenset(self.plan.remade([x.name for x in self.profile.blocks]))

    def block_sample_shards(self, block: str) -> int:
        """Return the number of devices over which samples are split in a block.

        Behind `plan.spatial_end` the devices of a spatial group may repeat the same
        work on whole images, so there the spatial axes split nothing.

        Args:
            block: its name; the empty name of layers without a block is the last block.
        """
        return (
            self.plan.batch_shards
            if block in self._replicated_blocks
            else self.sample_shards
        )

    @cached_property
    def _replicated_blocks(self) -> frozenset[str]:
        """Blocks in which every device of a spatial group has whole images."""
        until, names = self.plan.spatial_end, [x.name for x in self.profile.blocks]
        # After the split, samples may be split over the spatial axes instead: then no
        # work is repeated.
        if until not in names or self.plan.spatial_end_mode == "samples":
            return frozenset()
        return frozenset(("", *names[names.index(until) :]))

    def stage_layers(self, stage: int) -> tuple[LayerProfile, ...]:
        """Return the layers of a stage; layers of no block are in the last one."""
        return self._stage_layers[stage]

    @cached_property
    def _stage_layers(self) -> tuple[tuple[LayerProfile, ...], ...]:
        # A network that is no chain of blocks runs in one piece.
        if not self.stages:
            return (self.profile.layers,)
        stage_of = {name: k for k, own in enumerate(self.stages) for name in own}
        found: list[list[LayerProfile]] = [[] for _ in self.stages]
        for layer in self.profile.layers:
            stage = stage_of.get(layer.block, -1)
            if layer.block in stage_of or not layer.block:
                found[stage].append(layer)
        return tuple(map(tuple, found))

    def compute_layers(self, stage: int) -> tuple[LayerProfile, ...]:
        """Return the layers whose work a stage does.

        They are the layers of its blocks, with one exception: an embedding table that
        the last stage uses as well (tied weights) costs time where it is read, there.
        """
        last, own = len(self.stages) - 1, self.stage_layers(stage)
        if last < 1:
            return own
        # Other stages hold the tied table but do not use it.
        if stage != last:
            return tuple(layer for layer in own if layer.name not in self._tied_layers)
        tied = (x for x in self.profile.layers if x.name in self._tied_layers)
        return (*tied, *own)

    @cached_property
    def _tied_layers(self) -> frozenset[str]:
        """Layers of other devices' blocks that the last stage's device works on."""
        device = self.placement.stage_devices[-1][0]
        stages = self.placement.stages_of(device)
        held = {layer.name for own in stages for layer in self.stage_layers(own)}
        # The ledger gives that device FLOPs of layers that its own blocks do not hold.
        return frozenset(self.ledgers[device].layer_flops.keys() - held)
