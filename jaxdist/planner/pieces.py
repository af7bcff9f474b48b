"""Pieces: what blocks take and keep by the part of them that a device has.

The oracle prices each layer at parts of 1, 1/2, 1/4, ... of a batch; in between it is
straight. So a hundred thousand plans are priced by looking rows of a table up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from jaxdist.core.device import Device
from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.profile import Profile
from jaxdist.oracle.case import Case
from jaxdist.oracle.work import Spent, Worker
from jaxdist.partition.ledger import Ledger
from jaxdist.pipeline.stages import balanced
from jaxdist.planner.space import Column

_FINEST: Final = 24
"""The smallest part of the table is 2 to the power of minus this."""


@dataclass(frozen=True, kw_only=True)
class Longest:
    """Seconds of the longest stage in one microbatch."""

    forward: Column
    backward: Column


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A network in blocks, on one device."""

    profile: Profile
    """On a global batch."""
    device: Device
    """How fast it is."""
    dtype: str
    """Of the activations."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The blocks; one without a name where the network is no chain."""
        return tuple(block.name for block in self.profile.blocks) or ("",)

    @cached_property
    def places(self) -> Column:
        """The block of each layer; layers of none are in the last."""
        last = len(self.names) - 1
        found = {name: place for place, name in enumerate(self.names)}
        layers = self.profile.layers
        return np.array([found.get(layer.block, last) for layer in layers], int)

    def longest(self, parts: Column, tensor: Column, stages: Column) -> Longest:
        """Return the seconds of the longest stage.

        Args:
            parts: of the samples, microbatches included.
            tensor: parts of the weights.
            stages: of the network.
        """
        keys, place = np.unique(
            np.stack([parts, tensor, stages]), axis=1, return_inverse=True
        )
        found = np.array([self._longest(*map(int, key)) for key in keys.T])
        forward, backward = found[place.ravel()].T
        return Longest(forward=forward, backward=backward)

    def at(self, parts: int, tensor: int) -> Column:
        """Return the seconds of each block, forward and backward, at a part.

        Args:
            parts: of the samples, microbatches included.
            tensor: parts of the weights.
        """
        kernels, others = self._table
        return _between(kernels, parts * tensor) + _between(others, parts)

    def parameters(self, stages: Column) -> Column:
        """Return the bytes of the stage that has most."""
        own = self._by_block([layer.parameter_bytes for layer in self.profile.layers])
        return self._each(stages, lambda cut: self._sums(own, cut).max())

    def handed(self, stages: Column) -> Column:
        """Return the bytes of the global batch that most is handed on of."""
        handed = np.array([block.output_bytes for block in self.profile.blocks] or [0])
        starts = self._starts
        return self._each(
            stages,
            lambda cut: handed[np.array(starts(cut)[1:], int) - 1].max(initial=0),
        )

    def made(self, parts: Column, stages: Column, remat: Column) -> Column:
        """Return the bytes that the fullest stage keeps of one microbatch."""
        own = self._by_block(
            [layer.output_bytes + layer.inner_bytes for layer in self.profile.layers]
        )
        handed = np.array([block.output_bytes for block in self.profile.blocks] or [0])

        def again(cut: int) -> float:
            most = np.maximum.reduceat(own, self._starts(cut))
            return float((self._sums(handed, cut) + most).max())

        kept = self._each(stages, lambda cut: self._sums(own, cut).max())
        return np.where(remat == 1, self._each(stages, again), kept) / parts

    def _longest(self, parts: int, tensor: int, stages: int) -> tuple[float, float]:
        each = self.at(parts, tensor)
        sums = np.add.reduceat(each, self._starts(stages), axis=1)
        forward, backward = sums[:, sums.sum(axis=0).argmax()]
        return float(forward), float(backward)

    @cached_property
    def _table(self) -> tuple[Column, Column]:
        """Seconds of layers with kernels, and of others: [part, way, block]."""
        shape = (_FINEST + 1, 2, len(self.names))
        found = np.zeros(shape), np.zeros(shape)
        for power in range(_FINEST + 1):
            worker = self._worker(power)
            for place, layer in zip(self.places, self.profile.layers, strict=True):
                spent: Spent = worker.spent(layer)
                kind = 0 if layer.flops else 1
                found[kind][power, :, place] += spent.forward, spent.backward
        return found

    def _worker(self, power: int) -> Worker:
        """Return a device that has one part of 2 ** power of all layers."""
        plan = Plan(mesh=MeshShape(data=2**power))
        work = {x.name: max(1, x.flops >> power) for x in self.profile.layers}
        ledger = Ledger(plan=plan, rows=(), work=work)
        case = Case(
            profile=self.profile, plan=plan, ledgers=(ledger,), dtype=self.dtype
        )
        return Worker(case=case, device=self.device, ledger=ledger, microbatches=1)

    @cached_property
    def _cuts(self) -> dict[int, list[int]]:
        return {}

    def _starts(self, stages: int) -> list[int]:
        """Return where stages begin whose largest has the fewest FLOPs."""
        if stages not in self._cuts:
            flops = [block.flops for block in self.profile.blocks] or [0]
            self._cuts[stages] = [0, *balanced(flops, stages)]
        return self._cuts[stages]

    def _by_block(self, sizes: list[int]) -> Column:
        return np.bincount(self.places, weights=sizes, minlength=len(self.names))

    def _sums(self, sizes: Column, stages: int) -> Column:
        return np.add.reduceat(sizes, self._starts(stages))

    def _each(self, stages: Column, of: Callable[[int], float]) -> Column:
        """Return a number of every plan's stages."""
        counts, place = np.unique(stages, return_inverse=True)
        return np.array([of(int(count)) for count in counts])[place.ravel()]


def _between(table: Column, parts: int) -> Column:
    """Read a table by powers of two between its rows."""
    power = min(float(np.log2(parts)), len(table) - 1.0)
    low = int(power)
    high = min(low + 1, len(table) - 1)
    return table[low] + (power - low) * (table[high] - table[low])
