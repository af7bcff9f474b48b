"""Setup of a sample store: filled, connected to other hosts, and closed with a run."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.core.network_address import check_ip_and_port
from jaxdist.input.batch_assembly import BatchAssembler, Rows
from jaxdist.input.local_shuffle.source import (
    AsyncExchanger,
    LocalShuffleSource,
    check_storable,
    make_local_shuffle_source,
    max_retention_steps,
)
from jaxdist.input.order import SampleOrder
from jaxdist.input.prefetch import Workers
from jaxdist.input.sources import DecodingSource, Source

if TYPE_CHECKING:
    from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer

_MAX_ADDRESS_BYTES = 256
"""Bytes that an address may have."""


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How a host keeps the samples of its partitions for itself."""

    folder: Path | None = None
    """Where on its own disk; none: in memory."""
    interface: str = ""
    """Its IP address between hosts, on which it hands the others what moves; empty:
    what comes is read where the source is.
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
        self, source: Source, order: SampleOrder, rows: Rows, config: Keep, start: int
    ) -> None:
        # Refused before any collective call: no process waits for another.
        host, hosts = host_index_and_count(rows, order.batch)
        # Processes of one machine that hold the same rows have a store each.
        mine = f"process-{jax.process_index()}"
        own = None if config.folder is None else config.folder / mine
        # Images are stored compressed, and decoded when a batch reads them.
        stored = source.stored if isinstance(source, DecodingSource) else source
        self.source = make_local_shuffle_source(
            stored, order, host=host, num_hosts=hosts, folder=own
        )
        # Filled before any peer learns the address: who asks finds what should be here.
        self.source.fill_store(start)
        self._server: PeerServer | None = None
        self._client: PeerClient | None = None
        if config.interface:
            self._server, self._client = connect_peers(self.source, config.interface)
            self.source.fetcher = self._client
            self.source.retention_steps = max_retention_steps(self.source.order)
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
        counts, peers = self.source.counts, self._client
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
        # The exchange first: it asks peers.
        self._exchanger.close()
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.shutdown()


def connect_peers(
    own: LocalShuffleSource, interface: str
) -> tuple["PeerServer", "PeerClient"]:
    """Serve this process's samples, and learn where those of the others are.

    Every process of the program calls it at the same time.

    Args:
        own: this host's samples.
        interface: address of this machine between hosts.

    Raises:
        BadInput: an address at which a host cannot be reached.
    """
    # Imported here: Arrow Flight is needed only where hosts serve each other.
    from jax.experimental import multihost_utils

    from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer

    # The first process draws the token: no other program knows it.
    drawn = np.frombuffer(secrets.token_bytes(32), np.uint8)
    token = multihost_utils.broadcast_one_to_all(drawn).tobytes().hex()
    where = f"[{interface}]" if ":" in interface else interface  # IPv6
    # A free port: what was taken is told to the others below.
    server = PeerServer(own.store, f"{where}:0", token)

    # An all-gather needs arrays of one shape: addresses are padded with spaces.
    said = f"{own.host} {server.address}".encode().ljust(_MAX_ADDRESS_BYTES)
    every = multihost_utils.process_allgather(np.frombuffer(said, np.uint8))
    rows = np.asarray(every).reshape(jax.process_count(), -1)
    addresses = parse_peers([row.tobytes() for row in rows], own.num_hosts)
    example = own.dataset.get(np.zeros(1, np.int64))
    return server, PeerClient(addresses=addresses, example=example, token=token)


def parse_peers(said: Sequence[bytes], hosts: int) -> list[str]:
    """Return the addresses of all hosts, by what each process says of itself.

    Args:
        said: by process, its host and address: `3 10.0.0.3:4100`, padded with spaces.
        hosts: how many there are.

    Raises:
        BadInput: a process says anything else, or a host is missing.

    >>> parse_peers([b"1 10.0.0.4:77 ", b"0 10.0.0.3:88 ", b"0 10.0.0.3:99 "], 2)
    ['10.0.0.3:88', '10.0.0.4:77']
    """
    known: dict[str, str] = {}
    for rank, line in enumerate(said):
        number, _, address = line.decode("ascii", "replace").rstrip(" ").partition(" ")
        # Of several processes with the same rows, other hosts ask the first.
        known.setdefault(number, check_ip_and_port(address, f"process {rank}"))
    numbers = [str(number) for number in range(hosts)]
    if set(known) != set(numbers):
        raise BadInput(
            "not every host of this run says where its samples are",
            rule=f"hosts 0 to {hosts - 1} each say where they are reached",
            values=f"hosts {', '.join(map(ascii, sorted(known)))} do",
            remedy="the same order, mesh and number of processes in every process",
        )
    return [known[number] for number in numbers]


def host_index_and_count(rows: Rows, batch: int) -> tuple[int, int]:
    """Return which host this is, and how many there are, by its rows of a batch.

    Processes that hold the same rows, of a network that is split between them, are one
    host in this sense.

    Args:
        rows: of the global batch, sorted.
        batch: rows of the global batch.

    Raises:
        BadInput: the rows are not one stretch as long as every other host's.

    >>> host_index_and_count(np.arange(8, 12), 16)
    (2, 4)
    """
    count, first = len(rows), int(rows[0])
    # Partitions go to hosts in order, and rows of a batch are sorted by partition.
    even = batch % count == 0 and first % count == 0
    if not even or int(rows[-1]) - first != count - 1:
        raise BadInput(
            "this process has no samples of its own to keep",
            rule="a process holds one stretch of a batch, as long as others'",
            values=f"{count} of {batch} rows, {first} to {int(rows[-1])}",
            remedy=(
                "data.cache=none (keep=None)",
                "or a mesh whose first axis goes over processes",
            ),
        )
    return first // count, batch // count


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
    # A worker would get a copy of the store as it was when the worker began.
    if isinstance(workers, Workers):
        raise BadInput(
            "worker processes do not see the samples that are kept",
            rule="samples that a host keeps are read by its threads",
            values=f"data.workers = {workers.count} (Workers), and a data.cache (keep)",
            remedy=("data.workers=0", "or data.cache=none"),
        )
