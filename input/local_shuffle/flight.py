"""Peers: samples that hosts hand to each other, pulled over Arrow Flight.

A host serves what its store holds. Who needs a sample knows by the mathematics of the
order who has it, asks for it by id within a deadline, and believes nothing else: an id
that was not asked for is left, and a sample whose bytes do not have the checksum that
was written when it was stored is bad. What is missing, late or bad is read from where
the data set is, so the order of training never depends on a peer.
"""

import hmac
import ipaddress
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import flight

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.byte_store import ByteStore
from jaxdist.input.local_shuffle.shuffle import IntArray
from jaxdist.input.local_shuffle.store import ArrayStore, checksums, sample_bytes
from jaxdist.input.sources import Arrays

_BACKOFF_S: Final = 30.0
"""How long a peer that failed is left alone, seconds; so it costs a deadline once."""


class PeerServer(flight.FlightServerBase):
    """Serves the samples of a store, until it is closed; also a `with` statement.

    Args:
        store: this host's samples.
        address: `host:port` of the interface between hosts; port 0 takes a free one.
        token: what a caller must know; needed where others than this machine can call.

    Raises:
        BadInput: no token on an interface that others can reach.
    """

    def __init__(
        self, store: ArrayStore | ByteStore, address: str, token: str = ""
    ) -> None:
        host, _, _ = address.rpartition(":")
        if not token and not _is_loopback(host):
            raise BadInput(
                "samples would be served to anyone",
                rule="off loopback a token is needed, the same on every host",
                values=f"address = {address}, token is empty",
                remedy="token=secrets.token_hex(), sent to all hosts",
            )
        super().__init__(f"grpc://{address}")
        self._store, self._token, self._host = store, token, host

    @property
    def address(self) -> str:
        """Where it listens: `host:port`."""
        return f"{self._host}:{self.port}"

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """Send those of the samples asked for that are here, with their checksums."""
        asked = json.loads(ticket.ticket)
        if not hmac.compare_digest(str(asked.get("token", "")), self._token):
            raise flight.FlightUnauthenticatedError("another token")
        return flight.RecordBatchStream(
            self.sample_table(np.array(asked["ids"], np.int64))
        )

    def sample_table(self, ids: IntArray) -> pa.Table:
        """Lay out those of the samples that are here."""
        arrays, good = self._store.get(ids)
        own = {key: array[good] for key, array in arrays.items()}
        return _to_table(ids[good], self._store.checksums(ids)[good], own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


@dataclass(kw_only=True)
class PeerClient:
    """Asks other hosts for samples.

    Args:
        addresses: of each host, this one included.
        like: one sample, `[1, ...]` a key.
        token: what the hosts know.
        deadline_s: how long a call may take, seconds.
    """

    addresses: Sequence[str]
    example: Arrays
    token: str = ""
    deadline_s: float = 2.0
    fetched_count: int = 0
    """Samples that came from peers."""
    corrupt_count: int = 0
    """Samples that came with other bytes than were stored."""
    failed_calls: int = 0
    """Calls that a peer did not answer in time, or refused."""
    _clients: dict[str, Any] = field(default_factory=dict, repr=False)
    _retry_at: dict[str, float] = field(default_factory=dict, repr=False)

    def fetch(self, ids: IntArray, hosts: IntArray) -> dict[int, dict[str, Any]]:
        """Ask hosts for samples.

        Args:
            ids: int64 [m].
            hosts: who has each of them: int64 [m].

        Returns:
            By id what came and is whole: its arrays, `[1, ...]` a key.
        """
        found: dict[int, dict[str, Any]] = {}
        for host in np.unique(hosts).tolist():
            found |= self._request(self.addresses[host], ids[hosts == host])
        self.fetched_count += len(found)
        return found

    def close(self) -> None:
        """Close all connections."""
        while self._clients:
            self._clients.popitem()[1].close()

    def _request(self, address: str, ids: IntArray) -> dict[int, dict[str, Any]]:
        if self._retry_at.get(address, 0.0) > time.monotonic():
            return {}
        words = {"ids": ids.tolist(), "token": self.token}
        options = flight.FlightCallOptions(timeout=self.deadline_s)
        try:
            client = self._client(address)
            ticket = flight.Ticket(json.dumps(words).encode())
            table = client.do_get(ticket, options).read_all()
        except (pa.ArrowException, OSError):
            self.failed_calls += 1
            self._retry_at[address] = time.monotonic() + _BACKOFF_S
            return {}
        return self._verify(table, set(ids.tolist()))

    def _client(self, address: str) -> Any:
        if address not in self._clients:
            # A proxy would stand between hosts that speak to each other directly.
            direct = [("grpc.enable_http_proxy", 0)]
            self._clients[address] = flight.FlightClient(
                f"grpc://{address}", generic_options=direct
            )
        return self._clients[address]

    def _verify(self, table: pa.Table, asked: set[int]) -> dict[int, dict[str, Any]]:
        """Take the samples that were asked for and have their checksums."""
        try:
            ids, sums, arrays = _from_table(table, self.example)
        except (KeyError, ValueError, pa.ArrowException):
            self.corrupt_count += table.num_rows
            return {}
        right = checksums(arrays) == sums if len(ids) else np.zeros(0, bool)
        self.corrupt_count += int((~right).sum())
        return {
            sample: {key: array[row : row + 1] for key, array in arrays.items()}
            for row, sample in enumerate(ids.tolist())
            if right[row] and sample in asked
        }


def _to_table(ids: IntArray, sums: IntArray, arrays: Arrays) -> pa.Table:
    """Lay samples out as a table, a binary column a key."""
    columns: Mapping[str, Any] = {
        "id": pa.array(ids),
        "sum": pa.array(sums),
        **{
            f"key {key}": pa.array([sample_bytes(row) for row in array], pa.binary())
            for key, array in arrays.items()
        },
    }
    return pa.table(columns)


def _from_table(table: pa.Table, like: Arrays) -> tuple[IntArray, IntArray, Arrays]:
    """Read samples of a table again, in the shapes and dtypes that they must have.

    Raises:
        KeyError: a key is missing.
        ValueError: bytes of another size.
    """
    arrays = {}
    for key, one in like.items():
        rows = table.column(f"key {key}").to_pylist()
        arrays[key] = _stack_rows(rows, one)
        if len(arrays[key]) != table.num_rows:
            raise ValueError(f"{key} has another number of samples")
    ids, sums = (table.column(name).to_numpy() for name in ("id", "sum"))
    return ids, sums, arrays


def _stack_rows(rows: list[bytes], like: NDArray[Any]) -> NDArray[Any]:
    """Make an array of samples `[n, ...]` of the bytes of each."""
    if like.dtype.hasobject:
        found = np.empty(len(rows), object)
        found[:] = rows
        return found
    return np.frombuffer(b"".join(rows), like.dtype).reshape(-1, *like.shape[1:])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
