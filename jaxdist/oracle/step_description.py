"""A case: what is predicted, one training step of a network under a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from jaxdist.core.plan import Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.partition.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class StepDescription:
    """A step as the rooms below describe it; nothing in it was measured."""

    profile: Profile
    """The network on the whole global batch."""
    plan: Plan
    """The layout."""
    ledgers: tuple[Ledger, ...]
    """What devices move and do: one, or one for each along the pipe axis."""
    microbatches: int = 1
    """Into how many parts a step divides its batch."""
    stages: tuple[tuple[str, ...], ...] = ()
    """Blocks of each stage; empty where the network is not cut."""
    dtype: str = "float32"
    """Of the activations."""
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the state on one device, by term: exact, from its shapes."""
    batch_bytes: int = 0
    """Bytes of the samples of a global batch."""

    traced_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes beside the state on one device, by term, from the step's traced program;
    empty where it was not traced."""

    @property
    def sample_shards(self) -> int:
        """Devices that share out the positions of one microbatch's samples."""
        return self.plan.batch_shards * self.plan.mesh.spatial_shards

    def with_plan(self, plan: Plan) -> "StepDescription":
        """Return the same step under a plan that differs in its placement alone."""
        ledgers = tuple(replace(ledger, plan=plan) for ledger in self.ledgers)
        return replace(self, plan=plan, ledgers=ledgers)

    def is_rematerialized(self, layer: LayerProfile) -> bool:
        """Tell whether the inside of a layer's block is computed again backward."""
        plan = self.plan
        return layer.block in self._remat_blocks if plan.remat_until else plan.remat

    @cached_property
    def _remat_blocks(self) -> frozenset[str]:
        return frozenset(self.plan.remade([x.name for x in self.profile.blocks]))

    def block_sample_shards(self, block: str) -> int:
        """Return the devices that share out the positions of samples in a block.

        Behind `plan.spatial_until` those that shared images may repeat the same work.

        Args:
            block: its name; that of layers without a block stands for the last one.
        """
        return (
            self.plan.batch_shards
            if block in self._replicated_blocks
            else self.sample_shards
        )

    @cached_property
    def _replicated_blocks(self) -> frozenset[str]:
        """The blocks in which every device has whole images."""
        until, names = self.plan.spatial_until, [x.name for x in self.profile.blocks]
        if until not in names or self.plan.spatial_then == "samples":
            return frozenset()
        return frozenset(("", *names[names.index(until) :]))

    def stage_layers(self, stage: int) -> tuple[LayerProfile, ...]:
        """Return the layers of a stage; those of no block are in the last one."""
        if not self.stages:
            return self.profile.layers
        own, last = self.stages[stage], stage == len(self.stages) - 1
        return tuple(
            layer
            for layer in self.profile.layers
            if layer.block in own or (last and not layer.block)
        )
