"""Local source: a host stores the samples of its partitions, and exchanges some.

A batch reads the host's store. After each outgoing read, the sample that comes for it
takes its slot: Q b samples a step, spread evenly. Whatever is missing, for any reason,
is read from the data set.

Exchanges follow the batches in a thread of their own. What comes is needed in the next
epoch at the earliest: a peer that is slow or gone delays no batch, unless exchanges are
half an epoch late.
"""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.batch_assembly import Batch, BatchAssembler, Rows
from jaxdist.input.local_shuffle.partial import PartialShuffleOrder
from jaxdist.input.local_shuffle.shuffle import IntArray, valid_host_counts
from jaxdist.input.local_shuffle.store import ArrayStore, ByteStore, make_store
from jaxdist.input.order import SampleOrder
from jaxdist.input.sources import Arrays, EpochVaryingSource, SampleIds, Source

_FILL_CHUNK: Final = 1024
"""Samples that are read of the data set at once when a store is filled."""
_MAX_HOST_LAG_STEPS: Final = 8
"""Steps by which hosts may be apart: each makes batches ahead of training."""
_MAX_LAG_STEPS: Final = 64
"""Most steps by which exchanges are behind batches, however long an epoch is."""


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
        dataset: all samples.
        order: which are read when.
        host: this one.
        num_hosts: how many there are.
        store: where this host's samples are kept.
        fetcher: brings samples that come from other hosts; none: the data set has them.
        retention_steps: for which a sample that left is still here, for peers that are
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
        # A store on disk may still hold most of them from an earlier run.
        gone = wanted[self.store.is_missing(wanted)]
        fitting, filled = gone[: self.store.free_slots], 0
        # In chunks: all at once would be in memory beside the store.
        for ids in np.array_split(fitting, -(-len(fitting) // _FILL_CHUNK) or 1):
            if len(ids):
                filled += self.store.put(ids, self.dataset.get(ids))
        self.counts.initial_reads += filled
        self.counts.capacity_misses += len(gone) - filled

    def get(self, ids: SampleIds) -> Arrays:
        """Read samples: int [n] to new arrays [n, ...]."""
        found, good = self.store.get(ids)
        self.counts.store_hits += int(good.sum())
        if good.all():
            return found
        self.counts.store_misses += int((~good).sum())
        fresh = self.dataset.get(ids[~good])
        # Copies: arrays made of bytes are read-only.
        arrays = {key: np.array(array) for key, array in found.items()}
        for key, array in arrays.items():
            array[~good] = fresh[key]
        return arrays

    def exchange(self, step: int) -> None:
        """Replace the samples that leave with a step by those that come."""
        gone, came, source = self.order.step_exchange(step, self.partitions)
        self._departures |= dict.fromkeys(gone.tolist(), step)
        for sample in came.tolist():  # one that left lately may come back
            self._departures.pop(sample, None)

        missing = self.store.is_missing(came)

        # Samples that left stay for a while, for peers that ask late.
        expired = [
            sample
            for sample, at in self._departures.items()
            if at <= step - self.retention_steps
        ]
        self.store.drop(expired)
        for sample in expired:
            del self._departures[sample]

        # What peers do not bring, for whatever reason, the data set has.
        # Hosts have partitions in order, equally many each, so division names the host.
        ids, hosts = came[missing], source[missing] // len(self.partitions)
        found = self.fetcher.fetch(ids, hosts) if self.fetcher else {}
        arrivals = [(np.array([sample]), arrays) for sample, arrays in found.items()]
        rest = np.array([i for i in ids.tolist() if i not in found], np.int64)
        self.counts.dataset_reads += len(rest)
        if len(rest):
            arrivals.append((rest, self.dataset.get(rest)))

        for ids, samples in arrivals:
            # A store that is smaller than asked for, on a full disk, takes what fits.
            room = self.store.free_slots
            fitting = {key: array[:room] for key, array in samples.items()}
            kept = self.store.put(ids[:room], fitting)
            self.counts.received += len(ids)
            self.counts.capacity_misses += len(ids) - kept


class AsyncExchanger:
    """Exchanges that follow the batches in a thread; close it in the end.

    Args:
        source: the stored samples.
        decoded_source: what batches read of them; none: the samples as stored.
    """

    def __init__(
        self, source: LocalShuffleSource, decoded_source: Source | None = None
    ) -> None:
        self.source, self._decoded_source = source, decoded_source or source
        # Half an epoch: what comes in an exchange is read in the next epoch.
        self._max_pending = max(1, min(_MAX_LAG_STEPS, source.order.steps(1) // 2))
        # One thread: exchanges of a store are in the order of the steps.
        self._pool = ThreadPoolExecutor(1, "exchange")
        self._pending: deque[Future[None]] = deque()
        self._lock = Lock()

    def assembler(self, read: Callable[[Source], BatchAssembler]) -> BatchAssembler:
        """Return batches of the stored samples; an exchange follows each.

        Args:
            read: makes the batch assembler of a source.
        """
        assemble = read(self._decoded_source)

        def assemble_and_exchange(step: int, rows: Rows) -> Batch:
            batch = assemble(step, rows)
            with self._lock:
                self._pending.append(self._pool.submit(self.source.exchange, step))
                # Results are taken in order, so that a failed exchange ends the
                # batches; they are waited for only where too many are pending.
                while self._pending and (
                    self._pending[0].done() or len(self._pending) > self._max_pending
                ):
                    self._pending.popleft().result()
            return batch

        return assemble_and_exchange

    def wait(self) -> None:
        """Wait until all exchanges of the batches so far are done."""
        with self._lock:
            while self._pending:
                self._pending.popleft().result()

    def close(self) -> None:
        """End the exchange; closing twice does no harm."""
        # Exchanges that have not begun are dropped: nobody reads what they would bring.
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()


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
    # A partition may have one sample more than others. What left stays for two steps'
    # worth of reads at most: see max_retention_steps.
    places = each * (kept.shuffle.slots + 1) + 2 * kept.batch // num_hosts
    # Another number of hosts has other partitions: its stores lie beside.
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
    # Nothing ever leaves.
    if not k:
        return _MAX_HOST_LAG_STEPS
    return max(0, min(_MAX_HOST_LAG_STEPS, (2 * reads - 1) * n // (k * reads)))


def check_storable(
    source: Source, order: SampleOrder, num_hosts: int
) -> PartialShuffleOrder:
    """Refuse samples that hosts cannot store.

    Raises:
        BadInput: they are drawn from everywhere, hosts do not divide, or samples are
            not kept as they are read.
    """
    if not isinstance(order, PartialShuffleOrder):
        raise BadInput(
            "samples of all hosts would be kept on each",
            rule="a host keeps what stays with it: Local() or Partial()",
            values="shuffle draws from all samples",
            remedy="shuffle=Partial(exchange_fraction=0.1)",
        )
    partitions = order.shuffle.partitions
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
    # A stored crop would be seen again in every epoch.
    if isinstance(source, EpochVaryingSource):
        raise BadInput(
            "these samples cannot be kept",
            rule="what is kept is the same in every epoch",
            values=f"{type(source).__name__} reads others in each",
            remedy="leave them where they are: plan.shuffle.exchange_fraction alone",
        )
    return order
