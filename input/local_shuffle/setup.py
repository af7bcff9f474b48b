"""Kept: this process's samples of a run, filled and joined with other hosts'."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.batch_assembly import BatchAssembler, Rows
from jaxdist.input.local_shuffle.async_exchange import AsyncExchanger
from jaxdist.input.local_shuffle.rendezvous import (
    PeerGroup,
    connect_peers,
    host_index_and_count,
)
from jaxdist.input.local_shuffle.source import (
    LocalShuffleSource,
    check_storable,
    make_local_shuffle_source,
    max_retention_steps,
)
from jaxdist.input.order import SampleOrder
from jaxdist.input.prefetch import Workers
from jaxdist.input.sources import DecodingSource, Source


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How a host keeps the samples of its partitions for itself."""

    folder: Path | None = None
    """Where on its own disk; none: in memory."""
    interface: str = ""
    """Its address between hosts, on which it hands the others what moves; empty: what
    comes is read where the source is.
    """


class SampleStoreRuntime:
    """Samples that this process keeps while it trains; close it in the end.

    Every process of the program makes one at the same time.

    Args:
        source: all samples.
        order: which are read when.
        rows: of a batch that this process reads, sorted.
        config: where samples are kept and who brings them.
        start: steps that are already done.

    Raises:
        BadInput: samples that are drawn from everywhere or vary, hosts that do not
            divide, or a folder that cannot be written.
    """

    def __init__(
        self,
        source: Source,
        order: SampleOrder,
        rows: Rows,
        config: Keep,
        start: int,
    ) -> None:
        check_local_rows(source, order, rows)
        host, hosts = host_index_and_count(rows, order.batch)
        # Processes of one machine that hold the same rows have a store each.
        mine = f"process-{jax.process_index()}"
        own = None if config.folder is None else config.folder / mine
        stored = source.stored if isinstance(source, DecodingSource) else source
        self.source = make_local_shuffle_source(
            stored, order, host=host, num_hosts=hosts, folder=own
        )
        # Before anyone is told where it is: whoever asks finds what should be here.
        self.source.fill_store(start)
        self._peer_group = (
            _connect_peers(self.source, config.interface) if config.interface else None
        )
        keeping = self.source
        seen = source.over(keeping) if isinstance(source, DecodingSource) else keeping
        self._exchanger = AsyncExchanger(keeping, seen)

    def assembler(self, read: Callable[[Source], BatchAssembler]) -> BatchAssembler:
        """Return batches of what is kept, from a function that reads a source."""
        return self._exchanger.assembler(read)

    def sample_counts(self) -> Mapping[str, int]:
        """Say what this process has read from where, in samples, and held at most.

        What is under way is waited for.
        """
        self._exchanger.wait()
        counts, peers = self.source.counts, self._peer_group and self._peer_group.client
        return {
            "kept": counts.store_hits,
            "filled": counts.initial_reads,
            "exchanged": counts.received,
            "from_peers": peers.fetched_count if peers else 0,
            "from_origin": counts.dataset_reads,
            "bad": peers.corrupt_count if peers else 0,
            "failed_calls": peers.failed_calls if peers else 0,
            "strays": counts.store_misses,
            "without_room": counts.capacity_misses,
            "share": counts.partition_samples,
            "peak": self.source.store.peak_count,
        }

    def close(self) -> None:
        """End the exchange and serve no more; closing twice does no harm."""
        self._exchanger.close()
        if self._peer_group is not None:
            self._peer_group.close()


def _connect_peers(own: LocalShuffleSource, interface: str) -> PeerGroup:
    """Let hosts bring each other what moves."""
    like = own.dataset.get(np.zeros(1, np.int64))
    met = connect_peers(own.store, like, own.host, interface)
    own.fetcher, own.retention_steps = met.client, max_retention_steps(own.order)
    return met


def check_local_rows(source: Source, order: SampleOrder, rows: Rows) -> None:
    """Refuse samples that a process with these rows of a batch cannot keep.

    Raises:
        BadInput: they are drawn from everywhere or vary, or hosts do not divide.
    """
    _, hosts = host_index_and_count(rows, order.batch)
    stored = source.stored if isinstance(source, DecodingSource) else source
    check_storable(stored, order, hosts)


def check_no_workers(workers: int | Workers) -> None:
    """Refuse processes beside this one, which alone has the samples that are kept.

    Raises:
        BadInput: there would be some.
    """
    if isinstance(workers, Workers):
        raise BadInput(
            "worker processes do not see the samples that are kept",
            rule="samples that a host keeps are read by its threads",
            values=f"data.workers = {workers.count} (Workers), and a data.store (keep)",
            remedy=("data.workers=0", "or data.store=none"),
        )
