"""Pieces: what blocks take and keep by the part of them that a device has.

The oracle prices each layer at parts of 1, 1/2, 1/4, ... of a batch; in between it is
straight. So a hundred thousand plans are priced by looking rows of a table up. Layers
of equal numbers are priced once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.core.cluster.block_timings import block_signature
from jaxdist.core.cluster.device import Device
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.profile import LayerProfile, Profile
from jaxdist.oracle.compute_times import ComputeCostModel
from jaxdist.oracle.step_description import StepDescription
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.stages import balanced_cuts
from jaxdist.planner.layouts.space import Column

_MAX_SPLIT_POWER: Final = 24
"""The smallest part of the table is 2 to the power of minus this."""


@dataclass(frozen=True, kw_only=True)
class LongestStage:
    """Seconds of the longest stage in one microbatch."""

    forward: Column
    backward: Column


@dataclass(frozen=True, kw_only=True)
class BlockCosts:
    """A network in blocks, on one device."""

    profile: Profile
    """On a global batch."""
    device: Device
    """How fast it is."""
    dtype: str
    """Of the activations."""
    tensor_parallel_layers: frozenset[str] = frozenset()
    """Layers whose work the tensor axis divides."""

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

    def longest_stage(
        self, parts: Column, tensor: Column, stages: Column
    ) -> LongestStage:
        """Return the seconds of the longest stage.

        Args:
            parts: of the samples, microbatches included.
            tensor: parts of the weights.
            stages: of the network.
        """
        keys, place = np.unique(
            np.stack([parts, tensor, stages]), axis=1, return_inverse=True
        )
        found = np.array([self._longest_stage(*map(int, key)) for key in keys.T])
        forward, backward = found[place.ravel()].T
        return LongestStage(forward=forward, backward=backward)

    def block_seconds(self, parts: int, tensor: int) -> Column:
        """Return the seconds of each block, forward and backward, at a part.

        Args:
            parts: of the samples, microbatches included.
            tensor: parts of the weights.
        """
        if tensor not in self._tables:
            self._tables[tensor] = self._table(tensor)
        return _interpolate(self._tables[tensor], parts)

    def layer_seconds(self, parts: int) -> tuple[Column, Column]:
        """Return the seconds of each layer, forward and backward, at about a part.

        Args:
            parts: of the samples.
        """
        layers = self.profile.layers
        worker = self._cost_model(round(np.log2(parts)), 1, layers)
        spent = [worker.microbatch_time(layer) for layer in layers]
        forward = np.array([one.forward for one in spent])
        return forward, np.array([one.backward for one in spent])

    def max_stage_parameters(self, stages: Column) -> Column:
        """Return the bytes of the stage that has most."""
        own = self._by_block([layer.parameter_bytes for layer in self.profile.layers])
        return self._per_stage_count(
            stages, lambda cut: self._stage_sums(own, cut).max()
        )

    def max_boundary_bytes(self, stages: Column) -> Column:
        """Return the bytes of the global batch that most is handed on of."""
        handed = np.array([block.output_bytes for block in self.profile.blocks] or [0])
        starts = self._balanced_starts
        return self._per_stage_count(
            stages,
            lambda cut: handed[np.array(starts(cut)[1:], int) - 1].max(initial=0),
        )

    def max_stage_activations(
        self, parts: Column, tensor: Column, stages: Column
    ) -> Column:
        """Return the bytes that the fullest stage makes of one microbatch.

        Args:
            parts: of the samples, microbatches included.
            tensor: parts of the weights.
            stages: of the network.
        """
        return self._max_activations(tensor, stages, self._stage_sums) / parts

    def max_block_activations(
        self, parts: Column, tensor: Column, stages: Column
    ) -> Column:
        """Return the most bytes a block makes of one microbatch, of each candidate."""
        return self._max_activations(tensor, stages, lambda sizes, _: sizes) / parts

    def max_stage_outputs(self, parts: Column, stages: Column) -> Column:
        """Return the bytes that the blocks of a stage hand on, of each candidate."""
        handed = np.array([block.output_bytes for block in self.profile.blocks] or [0])
        most = self._per_stage_count(
            stages, lambda cut: self._stage_sums(handed, cut).max()
        )
        return most / parts

    def _max_activations(
        self, tensor: Column, stages: Column, over: Callable[[Column, int], Column]
    ) -> Column:
        layers = self.profile.layers
        sizes = np.array([x.output_bytes + x.inner_bytes for x in layers], float)
        split = np.array([x.name in self.tensor_parallel_layers for x in layers])
        own, whole = self._by_block(sizes * split), self._by_block(sizes * ~split)
        keys, place = np.unique(np.stack([tensor, stages]), axis=1, return_inverse=True)
        found = [over(whole + own / n, int(cut)).max() for n, cut in keys.T]
        return np.array(found)[place.ravel()]

    def _longest_stage(
        self, parts: int, tensor: int, stages: int
    ) -> tuple[float, float]:
        each = self.block_seconds(parts, tensor)
        sums = np.add.reduceat(each, self._balanced_starts(stages), axis=1)
        forward, backward = sums[:, sums.sum(axis=0).argmax()]
        return float(forward), float(backward)

    @cached_property
    def _tables(self) -> dict[int, Column]:
        return {}

    def _table(self, tensor: int) -> Column:
        """Return the seconds of blocks: [part, way, block]."""
        kinds, counts = self._unique_layers
        found = []
        for power in range(_MAX_SPLIT_POWER + 1):
            worker = self._cost_model(power, tensor, kinds)
            spent = [worker.microbatch_time(layer) for layer in kinds]
            each = np.array([(one.forward, one.backward) for one in spent])
            found.append(each.T @ counts)
        return np.array(found)

    @cached_property
    def _unique_layers(self) -> tuple[tuple[LayerProfile, ...], Column]:
        """One of each kind of layers of equal numbers; how many blocks have: [., .]."""
        first: dict[tuple[LayerProfile, bool, str], LayerProfile] = {}
        timed = self.device.blocks is not None and self.profile.blocks
        of_block = {
            name: block_signature(self.profile, name)
            for name in self.block_names
            if timed
        }
        owners: dict[str, list[int]] = {}
        for place, layer in zip(self.block_index, self.profile.layers, strict=True):
            block = of_block.get(self.block_names[place], "")
            alike = replace(layer, name="", block="")
            key = alike, layer.name in self.tensor_parallel_layers, block
            one = first.setdefault(key, layer)
            owners.setdefault(one.name, []).append(place)
        counts = [
            np.bincount(x, minlength=len(self.block_names)) for x in owners.values()
        ]
        return tuple(first.values()), np.array(counts)

    def _cost_model(
        self, power: int, tensor: int, layers: tuple[LayerProfile, ...]
    ) -> ComputeCostModel:
        """Return a device that has one part of 2 ** power of samples, and weights."""
        plan = Plan(mesh=MeshShape(data=2**power, tensor=tensor))
        work = {
            x.name: max(
                1,
                x.flops // (tensor if x.name in self.tensor_parallel_layers else 1)
                >> power,
            )
            for x in layers
        }
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
        """Return where stages begin whose largest has the fewest FLOPs."""
        if stages not in self._stage_starts:
            flops = [block.flops for block in self.profile.blocks] or [0]
            self._stage_starts[stages] = [0, *balanced_cuts(flops, stages)]
        return self._stage_starts[stages]

    def _by_block(self, sizes: Column | list[int]) -> Column:
        return np.bincount(
            self.block_index, weights=sizes, minlength=len(self.block_names)
        )

    def _stage_sums(self, sizes: Column, stages: int) -> Column:
        return np.add.reduceat(sizes, self._balanced_starts(stages))

    def _per_stage_count(self, stages: Column, of: Callable[[int], float]) -> Column:
        """Return a number of every plan's stages."""
        counts, place = np.unique(stages, return_inverse=True)
        return np.array([of(int(count)) for count in counts])[place.ravel()]


def _interpolate(table: Column, parts: int) -> Column:
    """Read a table by powers of two between its rows."""
    power = min(float(np.log2(parts)), len(table) - 1.0)
    low = int(power)
    high = min(low + 1, len(table) - 1)
    return table[low] + (power - low) * (table[high] - table[low])
