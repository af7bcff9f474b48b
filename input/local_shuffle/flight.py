"""Peers: samples that hosts pull from each other over Arrow Flight.

A host serves what its store holds. A host that needs a sample computes from the order
which host has it, asks for it by id within a deadline, and trusts nothing else: an id
that was not asked for is ignored, and a sample whose bytes do not have the checksum
that was written when it was stored is corrupt. What is missing, late or corrupt is read
from the data set, so the order of training never depends on a peer.
"""

import hmac
import ipaddress
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from pyarrow import flight

from jaxdist.core.errors import BadInput
from jaxdist.core.validation import parse_json
from jaxdist.input.local_shuffle.shuffle import IntArray
from jaxdist.input.local_shuffle.store import (
    ArrayStore,
    ByteStore,
    checksums,
    sample_bytes,
    stack_bytes,
)
from jaxdist.input.sources import Arrays

_MAX_TICKET_BYTES: Final = 1 << 24
_FOREIGN_TABLE_ERRORS: Final = (
    *(KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError),
)
"""What a table of any other schema raises."""
_BACKOFF_S: Final = 30.0
"""Seconds before a peer that failed is asked again: it costs a deadline only once."""


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
        try:
            is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:  # a name
            is_loopback = host == "localhost"
        if not token and not is_loopback:
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
        # Errors say nothing of the ticket, which has the token in it.
        asked: Any = None
        if len(ticket.ticket) <= _MAX_TICKET_BYTES:
            with suppress(ValueError):
                asked = parse_json(ticket.ticket)
        said = asked.get("token", "") if isinstance(asked, dict) else ""
        # In constant time: how long a comparison takes would tell a token's start.
        if not hmac.compare_digest(
            str(said).encode(errors="replace"), self._token.encode()
        ):
            raise flight.FlightUnauthenticatedError("another token")
        ids = asked.get("ids") if isinstance(asked, dict) else None
        if not isinstance(ids, list) or not all(
            type(x) is int and 0 <= x < 1 << 63 for x in ids
        ):
            raise flight.FlightServerError("a ticket has ids, a list of integers")
        return flight.RecordBatchStream(self.sample_table(np.array(ids, np.int64)))

    def sample_table(self, ids: IntArray) -> pa.Table:
        """Make a table of those samples that are here, a binary column a key."""
        arrays, good = self._store.get(ids)
        # As written when it was stored: what changed in memory since is noticed.
        sums = self._store.checksums(ids)
        # What was dropped since it was read has none, and would count as damaged.
        good &= sums != 0
        columns: dict[str, Any] = {
            "id": pa.array(ids[good]),
            "sum": pa.array(sums[good]),
        }
        for key, array in arrays.items():
            rows = [sample_bytes(row) for row in array[good]]
            columns[f"key {key}"] = pa.array(rows, pa.binary())
        return pa.table(columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


@dataclass(kw_only=True)
class PeerClient:
    """Asks other hosts for samples.

    Args:
        addresses: of each host, this one included.
        example: one sample, `[1, ...]` a key.
        token: what the hosts know.
        deadline_s: how long a call may take, seconds.
    """

    addresses: Sequence[str]
    example: Arrays
    token: str = field(default="", repr=False)
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
        # One call a host, for all that comes from it.
        for host in np.unique(hosts).tolist():
            address, asked = self.addresses[host], ids[hosts == host]
            # Left alone for a while after a failure.
            if self._retry_at.get(address, 0.0) > time.monotonic():
                continue
            words = {"ids": asked.tolist(), "token": self.token}
            options = flight.FlightCallOptions(timeout=self.deadline_s)
            try:
                if address not in self._clients:
                    # Hosts reach each other directly: gRPC would otherwise use the
                    # proxy of the environment, which does not know their addresses.
                    self._clients[address] = flight.FlightClient(
                        f"grpc://{address}",
                        generic_options=[("grpc.enable_http_proxy", 0)],
                    )
                ticket = flight.Ticket(json.dumps(words).encode())
                table = self._clients[address].do_get(ticket, options).read_all()
            except (pa.ArrowException, OSError):
                self.failed_calls += 1
                self._retry_at[address] = time.monotonic() + _BACKOFF_S
                continue
            found |= self._verify(table, set(asked.tolist()))
        self.fetched_count += len(found)
        return found

    def close(self) -> None:
        """Close all connections."""
        while self._clients:
            self._clients.popitem()[1].close()

    def _verify(self, table: pa.Table, asked: set[int]) -> dict[int, dict[str, Any]]:
        """Return the samples that were asked for and have their checksums, by id."""
        try:
            arrays = {
                key: stack_bytes(
                    table.column(f"key {key}").to_pylist(), x.dtype, x.shape[1:]
                )
                for key, x in self.example.items()
            }
            ids, sums = (table.column(name).to_numpy() for name in ("id", "sum"))
            if ids.dtype.kind not in "iu" or sums.dtype.kind not in "iu":
                raise TypeError("ids and checksums are integers")
            right = checksums(arrays) == sums if len(ids) else np.zeros(0, bool)
        except (*_FOREIGN_TABLE_ERRORS, pa.ArrowException):
            # No table of such samples: a key is missing, or bytes have another size.
            self.corrupt_count += table.num_rows
            return {}
        self.corrupt_count += int((~right).sum())
        return {
            sample: {key: array[row : row + 1] for key, array in arrays.items()}
            for row, sample in enumerate(ids.tolist())
            if right[row] and sample in asked
        }
