"""Partial-local shuffling: which partition holds a sample in which epoch.

N samples lie in V partitions of n = N // V slots; the first N mod V have one more. In
epoch e partition w reads its slots in the order of a permutation tau(e, w), keyed by
both. Of its reads k are outgoing, the j-th of them at position

    p_j = floor(j n / k),   to partition w + r_j mod V,   r_j = 1 + (g j + c_e) mod V-1

where it takes the slot that is read there at p_j as well; g has no divisor in common
with V - 1 and spreads few reads over all distances, so over all hosts. So every
partition sends and receives k samples, to each other equally many but for one, never
to itself, and a slot is free when it is needed. Everything is a function of (seed,
epoch, partition, slot): nothing is stored, nothing is sent to agree, and a place is
traced back through the epochs one step each.

The scheme with private orders, rotations and even spacing is ours; what it does, Q N/M
samples exchanged an epoch: Nguyen et al. 2022, "Why Globally Re-shuffle?", IPDPS.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.keyed_permutation import (
    UInt64Array,
    hash64,
    inverse_permute,
    permute,
)

IntArray = NDArray[np.int64]
_ROTATION_TAG: Final = 0xC0FFEE
"""Marks the key of an epoch's first rotation, apart from those of partitions."""


class SampleLocations(NamedTuple):
    """Where samples are at the start of an epoch."""

    partition: IntArray
    slot: IntArray


@dataclass(frozen=True, kw_only=True)
class PartialShuffle:
    """Partitions that exchange the same number of samples every epoch.

    Args:
        samples: N, in the data set.
        partitions: V.
        exchange_count: k, sent by each partition an epoch; 0 where V is 1.
        seed: another seed is another exchange.

    >>> shuffle = PartialShuffle(samples=10, partitions=2, exchange_count=1)
    >>> [sorted(shuffle.ids(0, w).tolist()) for w in (0, 1)]
    [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    >>> len(set(shuffle.ids(1, 0).tolist()) - {0, 1, 2, 3, 4})
    1
    """

    samples: int
    partitions: int
    exchange_count: int
    seed: int = 0

    @classmethod
    def from_fraction(
        cls, *, samples: int, partitions: int, q: float, seed: int = 0
    ) -> Self:
        """Make one that exchanges a part of each partition, rounded to samples.

        Raises:
            BadInput: fewer samples than partitions, or a part of less than a sample.
        """
        if not 1 <= partitions <= samples:
            raise BadInput(
                "there are more partitions than samples",
                rule="a partition holds at least one sample",
                values=f"{samples} samples, {partitions} partitions",
                remedy=f"plan.shuffle.partitions={max(samples, 1)}, or fewer",
            )
        # Of the smaller size: every partition sends equally many.
        slots = samples // partitions
        exchanged = round(q * slots) if partitions > 1 else 0
        if q and not exchanged and partitions > 1:
            raise BadInput(
                "a partition would exchange less than a sample",
                rule="q x samples / partitions rounds to at least 1",
                values=f"q = {q:g}, {slots} samples in each of {partitions} partitions",
                remedy=(
                    f"plan.shuffle.exchange_fraction={1 / slots:.2g}",
                    "fewer partitions",
                ),
            )
        return cls(
            samples=samples, partitions=partitions, exchange_count=exchanged, seed=seed
        )

    @property
    def slots(self) -> int:
        """Samples of every partition, but for one more in the first `remainder`."""
        return self.samples // self.partitions

    @property
    def remainder(self) -> int:
        """Partitions that have one more sample."""
        return self.samples % self.partitions

    def size(self, partition: int) -> int:
        """Return how many samples a partition has."""
        return self.slots + (partition < self.remainder)

    def ids(self, epoch: int, partition: int) -> IntArray:
        """Return the samples that a partition holds in an epoch, by slot: int64 [n]."""
        slots = np.arange(self.size(partition))
        places = SampleLocations(np.full_like(slots, partition), slots)
        first = self.trace(places, epoch, 0)
        return self.first_sample(first.partition) + first.slot

    def read_order(self, epoch: int, partition: int) -> IntArray:
        """Return the same samples in the order in which the epoch reads them."""
        positions = np.arange(self.size(partition))
        owner = np.full_like(positions, partition)
        return self.samples_at_positions(epoch, owner, positions)

    def samples_at_positions(
        self, epoch: int, partition: IntArray, position: IntArray
    ) -> IntArray:
        """Return the samples that partitions read at positions of an epoch: [m]."""
        slot = self.apply_read_order(permute, epoch, partition, position)
        first = self.trace(SampleLocations(partition, slot), epoch, 0)
        return self.first_sample(first.partition) + first.slot

    def first_sample(self, partition: IntArray) -> IntArray:
        """Return the sample in slot 0 of partitions before any exchange: int64 [m]."""
        return partition * self.slots + np.minimum(partition, self.remainder)

    def locate(self, epoch: int, ids: ArrayLike) -> SampleLocations:
        """Return where samples are when an epoch begins."""
        sample = np.asarray(ids, np.int64)
        # The first `remainder` partitions are one slot larger than the others.
        large = self.remainder * (self.slots + 1)
        behind = np.maximum(sample - large, 0)
        partition = np.where(
            sample < large,
            sample // (self.slots + 1),
            self.remainder + behind // self.slots,
        )
        slot = sample - self.first_sample(partition)
        return self.trace(SampleLocations(partition, slot), 0, epoch)

    def trace(self, places: SampleLocations, start: int, stop: int) -> SampleLocations:
        """Follow samples through the exchanges between the starts of two epochs.

        Args:
            places: where the samples are when epoch `start` begins.
            start: from 0.
            stop: before `start` traces the samples back.

        Returns:
            Where the same samples are when epoch `stop` begins.
        """
        if not self.exchange_count:
            return places
        sign = 1 if start < stop else -1
        # Exchange e lies between the starts of epochs e and e + 1.
        for epoch in range(start, stop) if sign > 0 else range(start - 1, stop - 1, -1):
            position = self.apply_read_order(inverse_permute, epoch, *places)
            sent = self.outgoing_index(position)
            moved = np.nonzero(sent >= 0)[0]
            partition, slot = (part.copy() for part in places)
            # A sample keeps its reading position and takes the slot that the other
            # partition reads there. So one formula undoes the move: turn back, and
            # apply the first partition's order to the same position.
            turn = sign * self.rotation(epoch, sent[moved])
            partition[moved] = (partition[moved] + turn) % self.partitions
            slot[moved] = self.apply_read_order(
                permute, epoch, partition[moved], position[moved]
            )
            places = SampleLocations(partition, slot)
        return places

    def rotation(self, epoch: int, outgoing: IntArray) -> IntArray:
        """Return how many partitions further the j-th outgoing reads go: int64 [m]."""
        others = max(self.partitions - 1, 1)
        begin = int(hash64(self.seed, _ROTATION_TAG, epoch)[0] % np.uint64(others))
        # A stride without a common divisor visits every distance before it repeats
        # one; near the golden section, even a few reads spread over all distances.
        golden = max(round(0.618034 * others), 1)
        stride = next(
            g for g in range(golden, golden + others) if math.gcd(g, others) == 1
        )
        return 1 + (stride * outgoing + begin) % others

    def outgoing_positions(self, outgoing: IntArray) -> IntArray:
        """Return the positions of the j-th outgoing reads, alike in each partition."""
        return outgoing * self.slots // max(self.exchange_count, 1)

    def outgoing_index(self, position: IntArray) -> IntArray:
        """Return which of the outgoing reads positions are, -1 where they stay: [m]."""
        if not self.exchange_count:
            return np.full_like(position, -1)
        # The only j with p_j at a position is the smallest with p_j at least there. The
        # additional slot of a larger partition is never exchanged.
        sent = -(-position * self.exchange_count // self.slots)
        leaves = (sent < self.exchange_count) & (position < self.slots)
        leaves &= self.outgoing_positions(sent) == position
        return np.where(leaves, sent, -1)

    def apply_read_order(
        self,
        permutation: Callable[[UInt64Array, ArrayLike, int], IntArray],
        epoch: int,
        partition: IntArray,
        cells: IntArray,
    ) -> IntArray:
        """Apply partitions' reading orders: `permute` maps positions to slots."""
        # Hashed once a partition and then looked up: there are far fewer than samples.
        keys = hash64(self.seed, epoch, np.arange(self.partitions))[partition]
        larger = partition < self.remainder
        if larger.all() or not larger.any():
            return permutation(keys, cells, self.slots + bool(larger.any()))
        # A permutation has one size: partitions of either size take their own.
        found = np.empty_like(cells)
        for size, own in ((self.slots, ~larger), (self.slots + 1, larger)):
            found[own] = permutation(keys[own], cells[own], size)
        return found


def default_partitions(batch: int, samples: int, q: float) -> int:
    """Choose how many partitions: as many as divide a batch and can exchange.

    Args:
        batch: samples a step, over all devices together.
        samples: N.
        q: part of its samples that each exchanges an epoch.

    >>> default_partitions(64, 1437, 0.1), default_partitions(64, 1437, 0.01)
    (64, 16)
    """
    fitting = [v for v in range(1, min(batch, 4096, samples) + 1) if batch % v == 0]
    return next(
        v for v in reversed(fitting) if v == 1 or not q or round(q * (samples // v))
    )


def valid_host_counts(partitions: int) -> tuple[int, ...]:
    """Return the numbers of hosts that can hold equally many partitions each."""
    return tuple(m for m in range(1, partitions + 1) if partitions % m == 0)
