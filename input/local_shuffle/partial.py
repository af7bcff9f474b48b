"""Partial order: each step takes equally many samples of every partition.

An epoch is read in rounds, the next sample of every partition in turn, and left-overs
in a last short round; epochs follow each other as one stream, cut into batches. The
rows of a batch are sorted by partition, so that a host's rows are those of the
partitions that it holds, whatever the number of hosts: only at the end of an epoch may
a row be of another host's partition.
"""

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.core.plan.shuffle import ShuffleConfig
from jaxdist.input.local_shuffle.shuffle import (
    IntArray,
    PartialShuffle,
    default_partitions,
)
from jaxdist.input.order import GlobalShuffleOrder, SampleOrder

_BLOCK_SAMPLES: Final = 1 << 14
"""Samples of a round or several that are traced back at once."""
_CACHE_FACTOR: Final = 4
"""Times as many blocks are kept as a batch reads of."""


@dataclass(frozen=True, kw_only=True)
class PartialShuffleOrder:
    """The order in which a run sees samples that stay near to their hosts.

    Args:
        shuffle: which partition holds a sample in which epoch.
        batch: samples a step, over all devices together, a multiple of the partitions.

    Raises:
        BadInput: a batch that does not divide over the partitions, or too few samples.

    >>> shuffle = PartialShuffle(samples=10, partitions=2, exchange_count=1)
    >>> order = PartialShuffleOrder(shuffle=shuffle, batch=4)
    >>> order.epochs(2).tolist(), sorted(order.ids(0)[:2].tolist() + [9])[-1]
    ([0, 1, 0, 1], 9)
    """

    shuffle: PartialShuffle
    batch: int
    _block_cache: "_BlockCache" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = self.shuffle.partitions
        if self.batch % count:
            raise BadInput(
                "the batch does not divide over the partitions",
                rule="data.batch is a multiple of plan.shuffle.partitions",
                values=f"data.batch = {self.batch}, plan.shuffle.partitions = {count}",
                remedy=(
                    f"data.batch={-(-self.batch // count) * count}",
                    f"plan.shuffle.partitions={math.gcd(self.batch, count)}",
                ),
            )
        # Ids are int32, as in a batch.
        if self.num_samples >= 2**31:
            raise BadInput(
                "no order for this many samples",
                rule="at most 2,147,483,647 samples",
                values=f"{self.num_samples} samples",
            )
        # The class is frozen.
        object.__setattr__(self, "_block_cache", _BlockCache(self.shuffle))

    @property
    def num_samples(self) -> int:
        """Samples in the data set."""
        return self.shuffle.samples

    @property
    def seed(self) -> int:
        """Another seed is another order, in every epoch."""
        return self.shuffle.seed

    def ids(self, step: int, rows: NDArray[Any] | None = None) -> NDArray[np.int32]:
        """Name the samples of a step's rows, of all if none are given: int32."""
        epochs, rounds, partitions = self._row_positions(step, rows)
        return self._block_cache.read(epochs, rounds, partitions).astype(np.int32)

    def epochs(self, step: int, rows: NDArray[Any] | None = None) -> IntArray:
        """Name the epoch (from 0) of each of a step's rows: int64."""
        return self._row_positions(step, rows)[0]

    def step_exchange(
        self, step: int, partitions: range
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return the samples that leave a host in a step, and those that come.

        A sample leaves with its read; who comes for it is read in the next epoch.

        Args:
            step: from 0.
            partitions: those of the host; what moves between them is in neither list.

        Returns:
            What leaves, what comes, and the partition that each comes from: int64.
        """
        # All rows of the batch: where an epoch ends, another host may read a row of
        # these partitions.
        epochs, rounds, owners = self._row_positions(step, None)
        # A partition is read once a round: the round is the position in its order.
        sent = self.shuffle.outgoing_index(rounds)
        own = (owners >= partitions.start) & (owners < partitions.stop) & (sent >= 0)
        gone, came, source = (np.zeros(0, np.int64) for _ in range(3))
        for epoch in sorted(set(epochs[own].tolist())):
            now = own & (epochs == epoch)
            away, back, whose = self._host_exchange(
                epoch, owners[now], sent[now], partitions
            )
            # A step may hold the end of an epoch and the start of the next. What comes
            # in the one and leaves in the other is never here.
            stays = ~np.isin(came, away)
            gone = np.concatenate([gone, away[~np.isin(away, came)]])
            came = np.concatenate([came[stays], back])
            source = np.concatenate([source[stays], whose])
        return gone, came, source

    def partition_samples(self, step: int, partitions: range) -> IntArray:
        """Return the samples that a host's partitions hold before a step: sorted."""
        epoch, place = divmod(step * self.batch, self.num_samples)
        # Partition w has been read once for each of w, w + V, w + 2 V, ... below place.
        rounds = [-(-(place - w) // self.shuffle.partitions) for w in partitions]
        outgoing = np.arange(self.shuffle.exchange_count, dtype=np.int64)
        positions = self.shuffle.outgoing_positions(outgoing)
        sent = [outgoing[positions < done] for done in rounds]
        owners = np.repeat(partitions, [len(own) for own in sent])
        gone, came, _ = self._host_exchange(
            epoch, owners, np.concatenate(sent), partitions
        )
        # What the partitions began the epoch with, less what has left, and what came.
        start = np.concatenate([self.shuffle.ids(epoch, w) for w in partitions])
        return np.union1d(np.setdiff1d(start, gone), came)

    def _host_exchange(
        self, epoch: int, owners: IntArray, sent: IntArray, partitions: range
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return what reads take to other hosts, what they bring, and from where."""
        shuffle = self.shuffle
        turn = shuffle.rotation(epoch, sent)
        to, source = ((owners + s * turn) % shuffle.partitions for s in (1, -1))
        away, back = (~np.isin(each, partitions) for each in (to, source))
        # A sample that comes takes the slot of the one that leaves, and is read by its
        # old partition at the same position of this epoch.
        places = shuffle.outgoing_positions(sent)
        gone = shuffle.samples_at_positions(epoch, owners[away], places[away])
        came = shuffle.samples_at_positions(epoch, source[back], places[back])
        return gone, came, source[back]

    def steps(self, epochs: float) -> int:
        """Count the steps until this many epochs, or parts of one, are wholly drawn."""
        return math.ceil(epochs * self.num_samples / self.batch)

    def _row_positions(
        self, step: int, rows: NDArray[Any] | None
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return epoch, round and partition of rows, sorted by partition."""
        stream = np.arange(step * self.batch, (step + 1) * self.batch, dtype=np.int64)
        epochs, places = np.divmod(stream, self.num_samples)
        rounds, partitions = np.divmod(places, self.shuffle.partitions)
        # Stable: two rows of a partition stay in the order of the stream.
        by_row = np.argsort(partitions, kind="stable")
        by_row = by_row if rows is None else by_row[rows]
        return epochs[by_row], rounds[by_row], partitions[by_row]


class _BlockCache:
    """Samples of some rounds of partitions, traced once and kept while they are read.

    Several threads may read; what two of them trace at once is traced twice.
    """

    def __init__(self, shuffle: PartialShuffle) -> None:
        self._shuffle = shuffle
        self._rounds = max(_BLOCK_SAMPLES // shuffle.partitions, 1)
        self._cache: OrderedDict[tuple[int, int, int], IntArray] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type, tuple[PartialShuffle]]:
        """Pickle it empty: a lock has no copy, and a worker traces what it reads."""
        return type(self), (self._shuffle,)

    def read(
        self, epochs: IntArray, rounds: IntArray, partitions: IntArray
    ) -> IntArray:
        """Return the samples read in rounds of epochs: int64 [m]."""
        blocks, inside = np.divmod(rounds, self._rounds)
        names = list(zip(*(x.tolist() for x in (epochs, blocks, partitions))))
        wanted = dict.fromkeys(names)
        with self._lock:
            held = {name: self._cache[name] for name in wanted if name in self._cache}

        # Tracing costs one pass a past epoch, whatever the number of samples: all
        # partitions' missing blocks of one epoch and one stretch are traced together.
        missing = [name for name in wanted if name not in held]
        for epoch, block in dict.fromkeys(name[:2] for name in missing):
            own = [w for e, b, w in missing if (e, b) == (epoch, block)]
            first = block * self._rounds
            # The last block of a partition is shorter.
            sizes = [min(self._rounds, self._shuffle.size(w) - first) for w in own]
            found = self._shuffle.samples_at_positions(
                epoch,
                np.repeat(own, sizes),
                np.concatenate([first + np.arange(size) for size in sizes]),
            )
            parts = np.split(found, np.cumsum(sizes)[:-1])
            held |= {(epoch, block, w): ids for w, ids in zip(own, parts)}

        # Threads read a few batches ahead of each other, and a batch may end an epoch
        # and begin the next: the oldest blocks go only beyond several batches' worth.
        with self._lock:
            self._cache |= held
            while len(self._cache) > _CACHE_FACTOR * len(wanted):
                self._cache.popitem(last=False)
        return np.array([held[n][i] for n, i in zip(names, inside.tolist())], np.int64)


def order_from_config(
    config: ShuffleConfig, *, num_samples: int, batch: int, seed: int
) -> SampleOrder:
    """Make the order that a plan asks for.

    Args:
        config: how far samples travel.
        num_samples: in the data set.
        batch: samples a step, over all devices together.
        seed: another seed is another order.

    Raises:
        BadInput: partitions that the batch or the samples cannot fill.
    """
    if config.exchange_fraction is None:
        return GlobalShuffleOrder(num_samples=num_samples, batch=batch, seed=seed)
    fraction = config.exchange_fraction
    count = config.partitions or default_partitions(batch, num_samples, fraction)
    shuffle = PartialShuffle.from_fraction(
        samples=num_samples, partitions=count, q=fraction, seed=seed
    )
    return PartialShuffleOrder(shuffle=shuffle, batch=batch)
