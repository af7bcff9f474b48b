"""Keeping: a source of which this host keeps its own partitions, and exchanges some.

A batch reads what the host keeps. With each read that leaves, its place is given to the
sample that comes for it: Q b samples a step, spread evenly. Whatever is missing, for
any reason, is read from where the data set is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.byte_store import ByteStore
from jaxdist.input.local_shuffle.capacity import make_store
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.local_shuffle.shuffle import IntArray, valid_host_counts
from jaxdist.input.local_shuffle.store import ArrayStore
from jaxdist.input.order import SampleOrder
from jaxdist.input.sources import Arrays, EpochVaryingSource, Source

_FILL_CHUNK: Final = 1024
"""Samples that are read of the data set at once when a store is filled."""
_MAX_HOST_LAG_STEPS: Final = 8
"""Steps by which hosts may be apart: each makes batches ahead of training."""


class SampleFetcher(Protocol):
    """Brings samples of other hosts, as many as it can."""

    def fetch(self, ids: IntArray, hosts: IntArray) -> Mapping[int, Arrays]:
        """Return what came, by id, `[1, ...]` a key; `hosts` have them."""


@dataclass(kw_only=True)
class SampleReadCounts:
    """What a host has read from where, in samples."""

    store_hits: int = 0
    """Of its own store."""
    initial_reads: int = 0
    """Of the data set, to begin with."""
    received: int = 0
    """That came for others that left."""
    dataset_reads: int = 0
    """Of these, read of the data set and not brought by peers."""
    store_misses: int = 0
    """Of the data set, because they were not in the store when they were needed."""
    capacity_misses: int = 0
    """That the store had no place for: its disk was full when it was made."""
    partition_samples: int = 0
    """That this host's partitions hold."""


@dataclass(kw_only=True)
class LocalShuffleSource:
    """A host's part of a source; is a `Source` of all of it.

    Args:
        origin: all samples.
        order: which are read when.
        host: this one.
        hosts: how many there are.
        store: where this host's samples are kept.
        peers: brings samples that come from other hosts; none: the origin has them.
        slack: steps for which a sample that left is still here, for peers that are
            behind.

    Raises:
        BadInput: hosts that cannot hold equally many partitions each, or samples that
            are not kept as they are read.
    """

    dataset: Source
    order: PartialShuffleOrder
    host: int
    num_hosts: int
    store: ArrayStore | ByteStore
    fetcher: SampleFetcher | None = None
    retention_steps: int = 0
    counts: SampleReadCounts = field(default_factory=SampleReadCounts)
    _departures: dict[int, int] = field(default_factory=dict, repr=False)
    """The step in which each sample left that is still here."""

    def __post_init__(self) -> None:
        check_storable(self.dataset, self.order, self.num_hosts)
        sizes = map(self.order.shuffle.size, self.partitions)
        self.counts.partition_samples = sum(sizes)

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def fingerprint(self) -> str:
        """That of all samples."""
        return self.dataset.fingerprint

    @property
    def partitions(self) -> range:
        """The partitions that this host keeps."""
        each = self.order.shuffle.partitions // self.num_hosts
        return range(self.host * each, (self.host + 1) * each)

    def fill_store(self, step: int) -> None:
        """Keep what this host's partitions hold before a step, and nothing else."""
        wanted = self.order.partition_samples(step, self.partitions)
        self.store.drop(np.setdiff1d(self.store.ids(), wanted).tolist())
        self._departures.clear()
        gone = wanted[self.store.is_missing(wanted)]
        fitting, filled = gone[: self.store.free_slots], 0
        for ids in np.array_split(fitting, -(-len(fitting) // _FILL_CHUNK) or 1):
            if len(ids):
                filled += self.store.put(ids, self.dataset.get(ids))
        self.counts.initial_reads += filled
        self.counts.capacity_misses += len(gone) - filled

    def get(self, ids: NDArray[np.integer[Any]]) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...]."""
        found, good = self.store.get(ids)
        self.counts.store_hits += int(good.sum())
        if good.all():
            return found
        self.counts.store_misses += int((~good).sum())
        fresh = self.dataset.get(ids[~good])
        arrays = {key: np.array(array) for key, array in found.items()}
        for key, array in arrays.items():
            array[~good] = fresh[key]
        return arrays

    def exchange(self, step: int) -> None:
        """Give the places of what a step has read and what leaves to what comes."""
        gone, came, source = self.order.step_exchange(step, self.partitions)
        self._departures |= dict.fromkeys(gone.tolist(), step)
        for sample in came.tolist():  # it may be one that left just now
            self._departures.pop(sample, None)
        missing = self.store.is_missing(came)
        brought = self._fetch_arrivals(came[missing], source[missing])
        late = [
            sample
            for sample, at in self._departures.items()
            if at <= step - self.retention_steps
        ]
        self.store.drop(late)
        for sample in late:
            del self._departures[sample]
        for ids, samples in brought:
            room = self.store.free_slots
            fitting = {key: array[:room] for key, array in samples.items()}
            kept = self.store.put(ids[:room], fitting)
            self.counts.received += len(ids)
            self.counts.capacity_misses += len(ids) - kept

    def _fetch_arrivals(
        self, ids: IntArray, source: IntArray
    ) -> Iterator[tuple[IntArray, Arrays]]:
        """Yield samples that come, from peers as far as they have them."""
        each = self.order.shuffle.partitions // self.num_hosts
        found = self.fetcher.fetch(ids, source // each) if self.fetcher else {}
        for sample, arrays in found.items():
            yield np.array([sample]), arrays
        rest = np.array([i for i in ids.tolist() if i not in found], np.int64)
        self.counts.dataset_reads += len(rest)
        if len(rest):
            yield rest, self.dataset.get(rest)


def make_local_shuffle_source(
    source: Source,
    order: SampleOrder,
    *,
    host: int,
    num_hosts: int,
    folder: Path | None,
) -> LocalShuffleSource:
    """Make this host's part of a source, with a store that is large enough.

    Args:
        source: all samples.
        order: which are read when.
        host: this one.
        num_hosts: how many there are.
        folder: where samples are kept; none: in memory.

    Raises:
        BadInput: samples that are drawn from everywhere, or hosts that do not divide.
    """
    kept = check_storable(source, order, num_hosts)
    each = kept.shuffle.partitions // num_hosts
    places = each * (kept.shuffle.slots + 1) + 2 * kept.batch // num_hosts
    own = None if folder is None else folder / f"host-{host}-of-{num_hosts}"
    store = make_store(source, places, own)
    return LocalShuffleSource(
        dataset=source, order=kept, host=host, num_hosts=num_hosts, store=store
    )


def max_retention_steps(order: PartialShuffleOrder) -> int:
    """Return for how many steps a sample that left may stay, for hosts behind.

    Of w reads that follow each other at most ceil(w k / n) leave, one more where an
    epoch ends between them; what stays is at most two steps' worth of reads.

    >>> from jaxdist.input.local_shuffle.shuffle import PartialShuffle
    >>> def slack(k):
    ...     shuffle = PartialShuffle(samples=80, partitions=4, exchange_count=k)
    ...     return max_retention_steps(PartialShuffleOrder(shuffle=shuffle, batch=16))
    >>> slack(0), slack(2), slack(10), slack(20)
    (8, 8, 3, 1)
    """
    reads = order.batch // order.shuffle.partitions
    k, n = order.shuffle.exchange_count, order.shuffle.slots
    if not k:
        return _MAX_HOST_LAG_STEPS
    return max(0, min(_MAX_HOST_LAG_STEPS, (2 * reads - 1) * n // (k * reads)))


def check_storable(
    source: Source, order: SampleOrder, num_hosts: int
) -> PartialShuffleOrder:
    """Refuse samples that hosts cannot keep.

    Raises:
        BadInput: they are drawn from everywhere, hosts do not divide, or samples are
            not kept as they are read.
    """
    if not isinstance(order, PartialShuffleOrder):
        raise BadInput(
            "samples of all hosts would be kept on each",
            rule="a host keeps what stays with it: Local() or Partial(q=0.1)",
            values="shuffle = Global()",
            remedy="shuffle=Partial(q=0.1)",
        )
    check_partition_hosts(order.shuffle.partitions, num_hosts)
    if isinstance(source, EpochVaryingSource):
        raise BadInput(
            "these samples cannot be kept",
            rule="what is kept is the same in every epoch",
            values=f"{type(source).__name__} reads others in each",
            remedy="leave them where they are: plan.shuffle.q alone",
        )
    return order


def check_partition_hosts(partitions: int, num_hosts: int) -> None:
    """Refuse hosts that cannot hold equally many partitions each.

    Raises:
        BadInput: naming the numbers of hosts that can.
    """
    if partitions % num_hosts:
        works = ", ".join(map(str, valid_host_counts(partitions)))
        raise BadInput(
            "the partitions do not divide over the hosts",
            rule="each host keeps equally many partitions",
            values=f"plan.shuffle.partitions = {partitions}, {num_hosts} hosts",
            remedy=(
                f"{works} hosts",
                f"plan.shuffle.partitions={num_hosts}, or a multiple",
            ),
        )
