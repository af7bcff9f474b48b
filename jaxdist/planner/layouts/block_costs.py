"""The seconds and bytes of a network's blocks, by the part of them that a device has.

The oracle predicts each layer at parts of 1, 1/2, 1/4, ... of a batch; in between the
table is read linearly. So a hundred thousand plans are estimated by reading rows of a
table. Layers of equal numbers are predicted once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.core.cluster.device import Device
from jaxdist.core.cluster.kernel_timings import block_signature
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.oracle.compute_times import ComputeCostModel
from jaxdist.oracle.memory import weight_residual_bytes
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.stages import balanced_cuts
from jaxdist.planner.layouts.space import Column, distinct_rows

_MAX_SPLIT_POWER: Final = 24
"""The smallest part of the table is 2 to the power of minus this."""


@dataclass(frozen=True, kw_only=True)
class BlockCosts:
    """The blocks of a network on one device.

    Columns of arguments have an entry for each plan: `parts` are those of the samples,
    microbatches included, `tensor` those of the weights, `stages` those of the network.
    """

    profile: Profile
    """The network on a global batch."""
    device: Device
    """Its speed."""
    dtype: str
    """Of the activations."""
    tensor_parallel_layers: frozenset[str] = frozenset()
    """Layers whose work the tensor axis splits."""

    @cached_property
    def block_names(self) -> tuple[str, ...]:
        """The blocks; one without a name where the network is no chain."""
        return tuple(block.name for block in self.profile.blocks) or ("",)

    @cached_property
    def block_index(self) -> Column:
        """The block of each layer; layers of none are in the last."""
        last = len(self.block_names) - 1
        found = {name: place for place, name in enumerate(self.block_names)}
        layers = self.profile.layers
        return np.array([found.get(layer.block, last) for layer in layers], int)

    @cached_property
    def parameter_bytes(self) -> Column:
        """Bytes of the parameters of each block."""
        return self._sum_by_block([x.parameter_bytes for x in self.profile.layers])

    @cached_property
    def output_bytes(self) -> Column:
        """Bytes of each block's output on the global batch."""
        return np.array([block.output_bytes for block in self.profile.blocks] or [0])

    @cached_property
    def made_bytes(self) -> Column:
        """Bytes of each block's output without what it was handed, such as skips."""
        return self.output_bytes - self._passed_bytes

    @cached_property
    def _passed_bytes(self) -> Column:
        """Bytes of each block's output that it was handed, on the global batch."""
        return np.array([block.passed_bytes for block in self.profile.blocks] or [0])

    def _handed_bytes(self, starts: Sequence[int]) -> Column:
        """Return what stages hold of blocks farther back than the one before them."""
        found: Column = np.array([0, *self._passed_bytes])[starts]
        return found

    def longest_stage(
        self, parts: Column, tensor: Column, stages: Column
    ) -> tuple[Column, Column, Column]:
        """Return the seconds of a microbatch in the longest stage.

        Returns:
            Forward, backward, and the part of it that gradients of weights take.
        """
        # Plans repeat few combinations, so each is computed once.
        keys, place = distinct_rows(parts, tensor, stages)
        found = []
        for part, split, count in keys:
            each = self._pass_seconds(int(part), int(split))
            # [pass, stage]; all stages wait for the slowest, forward and backward
            # together.
            sums = np.add.reduceat(each, self._balanced_starts(int(count)), axis=1)
            found.append(sums[:, sums[:2].sum(axis=0).argmax()])
        forward, backward, weights = np.array(found)[place].T
        return forward, backward, weights

    def block_seconds(self, parts: int, tensor: int) -> Column:
        """Return the seconds of each block, [forward and backward, block], at a part.

        Args:
            parts: of the samples, microbatches included.
            tensor: parts of the weights.
        """
        found: Column = self._pass_seconds(parts, tensor)[:2]
        return found

    def _pass_seconds(self, parts: int, tensor: int) -> Column:
        """Return the same, with the part of backward that is of weights as third."""
        # Rows are made once for all plans: reading one costs a plan next to nothing.
        if tensor not in self._tables:
            kinds, counts = self._unique_layers
            rows = []
            for power in range(_MAX_SPLIT_POWER + 1):
                model = self._cost_model(power, tensor, kinds)
                spent = [model.microbatch_time(layer) for layer in kinds]
                # [kind, pass]; with counts [kind, block] the product is [pass, block].
                each = np.array([(x.forward, x.backward, x.weights) for x in spent])
                rows.append(each.T @ counts)
            self._tables[tensor] = np.array(rows)
        table = self._tables[tensor]
        # Linear over the logarithm: efficiency falls slowly with the size of kernels.
        place = min(float(np.log2(parts)), len(table) - 1.0)
        low = int(place)
        high = min(low + 1, len(table) - 1)
        found: Column = table[low] + (place - low) * (table[high] - table[low])
        return found

    def layer_seconds(self, parts: int) -> tuple[Column, Column]:
        """Return the seconds of each layer, forward and backward.

        Args:
            parts: of the samples, of which the nearest power of two counts.
        """
        layers = self.profile.layers
        model = self._cost_model(round(np.log2(parts)), 1, layers)
        spent = [model.microbatch_time(layer) for layer in layers]
        forward = np.array([one.forward for one in spent])
        return forward, np.array([one.backward for one in spent])

    def max_stage_bytes(
        self,
        sizes: Column,
        stages: Column,
        *,
        at_end: bool = False,
        with_handed: bool = False,
    ) -> Column:
        """Return the largest sum of a stage's blocks, of every plan.

        Args:
            sizes: of each block.
            stages: of each plan.
            at_end: the largest of the blocks that end a stage instead, but the last.
            with_handed: the sum includes the skips that a stage is handed.
        """
        counts, place = np.unique(stages, return_inverse=True)
        found = []
        for count in counts:
            starts = self._balanced_starts(int(count))
            each = np.add.reduceat(sizes, starts)
            if with_handed:
                each = each + self._handed_bytes(starts)
            # What a stage sends is the output of its last block; the last stage sends
            # nothing.
            if at_end:
                each = sizes[np.array(starts[1:], int) - 1]
            found.append(each.max(initial=0))
        return np.array(found)[place.ravel()]

    def max_activations(
        self, tensor: Column, stages: Column, *, of_block: bool = False
    ) -> Column:
        """Return the largest activation bytes of a stage on the batch, of every plan.

        Args:
            tensor: parts of the weights.
            stages: of the network.
            of_block: those of the largest single block instead.
        """
        sizes = [x.output_bytes + x.inner_bytes for x in self.profile.layers]
        return self._max_split_bytes(
            sizes, tensor, stages, of_block=of_block, with_handed=not of_block
        )

    def max_weight_residuals(
        self, tensor: Column, stages: Column, *, is_remade: bool
    ) -> Column:
        """Return the most that a stage keeps for the gradients of weights.

        Args:
            tensor: parts of the weights.
            stages: of the network.
            is_remade: whether activations are computed again in the backward pass.
        """
        sizes = [
            weight_residual_bytes(x, is_remade=is_remade) for x in self.profile.layers
        ]
        return self._max_split_bytes(sizes, tensor, stages)

    def _max_split_bytes(
        self,
        layer_sizes: Sequence[int],
        tensor: Column,
        stages: Column,
        *,
        of_block: bool = False,
        with_handed: bool = False,
    ) -> Column:
        sizes = np.array(layer_sizes, float)
        # Activations of split layers are split with their weights, others are whole.
        split = np.array(
            [x.name in self.tensor_parallel_layers for x in self.profile.layers]
        )
        own = self._sum_by_block(sizes * split)
        whole = self._sum_by_block(sizes * ~split)
        keys, place = distinct_rows(tensor, stages)
        found = []
        for parts, count in keys:
            each = whole + own / parts
            if not of_block:
                starts = self._balanced_starts(int(count))
                each = np.add.reduceat(each, starts)
                if with_handed:
                    each = each + self._handed_bytes(starts)
            found.append(each.max())
        return np.array(found)[place]

    @cached_property
    def _tables(self) -> dict[int, Column]:
        """Seconds by parts of the weights: [power of the part, pass, block]."""
        return {}

    @cached_property
    def _unique_layers(self) -> tuple[tuple[LayerProfile, ...], Column]:
        """One layer of each kind of equal numbers, and their counts: [kind, block]."""
        first: dict[tuple[LayerProfile, bool, str], LayerProfile] = {}
        # Where blocks were timed, the overhead of a layer's block is part of its time,
        # so layers are alike in alike blocks only.
        of_block = {}
        if self.device.blocks is not None and self.profile.blocks:
            of_block = {x: block_signature(self.profile, x) for x in self.block_names}
        owners: dict[str, list[int]] = {}
        for place, layer in zip(self.block_index, self.profile.layers, strict=True):
            block = of_block.get(self.block_names[place], "")
            # The name is left out of the key: equal blocks of a network differ in it
            # alone.
            key = layer.unnamed, layer.name in self.tensor_parallel_layers, block
            one = first.setdefault(key, layer)
            owners.setdefault(one.name, []).append(place)
        blocks = len(self.block_names)
        counts = [np.bincount(x, minlength=blocks) for x in owners.values()]
        return tuple(first.values()), np.array(counts)

    def _cost_model(
        self, power: int, tensor: int, layers: tuple[LayerProfile, ...]
    ) -> ComputeCostModel:
        """Return a device that has one part of 2 ** power of samples, and weights."""
        # How samples are split does not matter to a kernel, so data stands for all such
        # axes.
        plan = Plan(mesh=MeshShape(data=2**power, tensor=tensor))
        work = {}
        for layer in layers:
            split = tensor if layer.name in self.tensor_parallel_layers else 1
            # A ledger with 0 FLOPs would say nothing of the layer.
            work[layer.name] = max(1, layer.flops // split >> power)
        ledger = Ledger(plan=plan, rows=(), layer_flops=work)
        case = StepDescription(
            profile=self.profile, plan=plan, ledgers=(ledger,), dtype=self.dtype
        )
        return ComputeCostModel(
            case=case, device=self.device, ledger=ledger, microbatches=1
        )

    @cached_property
    def _stage_starts(self) -> dict[int, list[int]]:
        return {}

    def _balanced_starts(self, stages: int) -> list[int]:
        """Return the first blocks of stages whose largest has the fewest FLOPs."""
        if stages not in self._stage_starts:
            flops = [block.flops for block in self.profile.blocks] or [0]
            self._stage_starts[stages] = [0, *balanced_cuts(flops, stages)]
        return self._stage_starts[stages]

    def _sum_by_block(self, sizes: Column | list[int]) -> Column:
        blocks = len(self.block_names)
        return np.bincount(self.block_index, weights=sizes, minlength=blocks)
