"""Peers: samples that hosts pull from each other over Arrow Flight.

A host serves what its store holds. A host that needs a sample computes from the order
which host has it, asks for it by id within a deadline, and trusts nothing else: a reply
that does not bear the signature of the run is not read, an id that was not asked for is
ignored, and a sample whose bytes do not have the checksum that was written when it was
stored is corrupt. What is missing, late or corrupt is read from the data set, so the
order of training never depends on a peer.

A call has the credential of the run in a header, which is checked before anything of it
is parsed. A reply is a row of chunks, each a signature and then the stream of an Arrow
table. They are results of an action and not record batches of `do_get`: Arrow parses
and decompresses those before the caller sees them, where a few bytes of a stranger can
stand for gigabytes; of a result the caller sees the bytes as they came.
"""

import hmac
import ipaddress
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from jaxdist.core.errors import BadInput
from jaxdist.input.local_shuffle.shuffle import IntArray
from jaxdist.input.local_shuffle.store import (
    ArrayStore,
    ByteStore,
    checksums,
    sample_bytes,
    stack_bytes,
)
from jaxdist.input.sources import Arrays

_ACTION: Final = "samples"
_CREDENTIAL_HEADER: Final = "jaxdist-credential"
_ID_TYPE: Final = np.dtype("<i8")
_MAX_IDS: Final = 1 << 16
"""Most samples of a call: more than a step moves between two hosts."""
_MAX_TICKET_BYTES: Final = _MAX_IDS * _ID_TYPE.itemsize
_CHUNK_BYTES: Final = 1 << 20
"""Bytes of a chunk, beside its last sample: so little is read while more comes."""
_MAX_VALUE_BYTES: Final = 1 << 28
"""Most bytes of a value without a size of its own: compressed images and volumes have
fewer, and a stranger cannot make a reader hold more. A call for a larger one fails."""
_ROW_BYTES: Final = 16
"""Id and checksum."""
_OFFSET_BYTES: Final = 4
"""What Arrow adds to each value of bytes."""
_COLUMN_BYTES: Final = 1 << 12
"""Most that Arrow adds for a column of a chunk: its name, type and padding."""
_MAX_MESSAGE_BYTES: Final = (1 << 31) - 1
"""The largest that gRPC can be told."""
_REPLY_ERRORS: Final = (pa.ArrowException, flight.FlightError, OSError, ValueError)
"""What a call raises that is refused, late, or answered with anything else."""
_BACKOFF_S: Final = 30.0
"""Seconds before a peer that failed is asked again: it costs a deadline only once."""


def _derive_key(token: str, purpose: str) -> bytes:
    """Return the key for one purpose.

    Bytes between hosts are not encrypted, and a stranger may answer at the address of a
    peer: what a caller says must not be what replies are signed with. So neither is the
    token, and neither follows from the other.
    """
    return hmac.digest(token.encode(), purpose.encode(), "sha256")


def _credential(token: str) -> str:
    return _derive_key(token, "call").hex()


def _sign(token: str, chunk: pa.Buffer) -> bytes:
    """Return the HMAC-SHA256 of a chunk, with ids, checksums and samples in it.

    Over the bytes and not over their checksums alone: anybody can make other bytes of
    the same CRC-32. A chunk needs no number or time: the samples of a run never change,
    so an old chunk that is sent again is still right, or not asked for and ignored.
    """
    return hmac.digest(_derive_key(token, "reply"), chunk, "sha256")


def _make_schema(keys: Iterable[str]) -> pa.Schema:
    """Return the schema of a table of samples with these keys."""
    columns = [("id", pa.int64()), ("sum", pa.int64())]
    return pa.schema([*columns, *((f"key {key}", pa.binary()) for key in sorted(keys))])


class _CredentialCheck(flight.ServerMiddlewareFactory):
    """Refuses calls of any kind without the credential of the run, ahead of them."""

    def __init__(self, credential: str) -> None:
        super().__init__()
        self._credential = credential.encode()

    def start_call(self, info: Any, headers: Mapping[str, Sequence[Any]]) -> None:
        """Refuse a call whose header has another credential, or none."""
        said = [
            str(x).encode(errors="replace") for x in headers.get(_CREDENTIAL_HEADER, ())
        ]
        # In constant time: how long a comparison takes would tell how it starts.
        if len(said) != 1 or not hmac.compare_digest(said[0], self._credential):
            raise flight.FlightUnauthenticatedError("another token")


class PeerServer(flight.FlightServerBase):
    """Serves the samples of a store, until it is closed; also a `with` statement.

    Args:
        store: this host's samples.
        address: `host:port` of the interface between hosts; port 0 takes a free one.
        token: what a caller must know; needed where others than this machine can call.

    Raises:
        BadInput: no token on an interface that others can reach, or no interface of
            its own: `0.0.0.0`.
    """

    def __init__(
        self, store: ArrayStore | ByteStore, address: str, token: str = ""
    ) -> None:
        host, _, _ = address.rpartition(":")
        try:
            ip = ipaddress.ip_address(host.strip("[]"))
            is_loopback, is_everywhere = ip.is_loopback, ip.is_unspecified
        except ValueError:  # a name
            is_loopback, is_everywhere = host == "localhost", not host
        if not token and not is_loopback:
            raise BadInput(
                "samples would be served to anyone",
                rule="off loopback a token is needed, the same on every host",
                values=f"address = {address}, token is empty",
                remedy="token=secrets.token_hex(), sent to all hosts",
            )
        if is_everywhere:
            raise BadInput(
                "samples would be served on every network of this host",
                rule="a peer listens at the one address that others are told",
                values=f"address = {address}",
                remedy="the address of this host between hosts: 10.0.0.3:0",
            )
        super().__init__(
            f"grpc://{address}",
            middleware={"credential": _CredentialCheck(_credential(token))},
        )
        self._store, self._token, self._host = store, token, host

    @property
    def address(self) -> str:
        """Where it listens: `host:port`."""
        return f"{self._host}:{self.port}"

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:
        """Send those of the samples asked for that are here, in signed chunks."""
        if (
            action.type != _ACTION
            or action.body.size > _MAX_TICKET_BYTES
            or action.body.size % _ID_TYPE.itemsize
        ):
            raise flight.FlightServerError(
                f"a ticket has ids, 8 bytes each, {_MAX_IDS} at most"
            )
        ids = np.frombuffer(action.body.to_pybytes(), _ID_TYPE)
        # Each once: a ticket of one id could ask for gigabytes.
        return self._signed_chunks(self.sample_table(np.unique(ids)))

    def _signed_chunks(self, table: pa.Table) -> Iterator[flight.Result]:
        """Yield a signature and a part of the table, one behind the other."""
        sizes = np.full(len(table), _ROW_BYTES, np.int64)
        for column in table.columns:
            if column.type == pa.binary():
                sizes += _OFFSET_BYTES + pc.binary_length(column).to_numpy()
        # A row belongs to the chunk in which it begins.
        chunks = (np.cumsum(sizes) - sizes) // _CHUNK_BYTES
        _, starts = np.unique(chunks, return_index=True)
        for start, end in pairwise([*starts.tolist(), len(table)]):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table.slice(start, end - start))
            chunk = sink.getvalue()
            yield flight.Result(pa.py_buffer(_sign(self._token, chunk)))
            yield flight.Result(chunk)

    def sample_table(self, ids: IntArray) -> pa.Table:
        """Make a table of those samples that are here, a binary column a key."""
        arrays, good = self._store.get(ids)
        # As written when it was stored: what changed in memory since is noticed.
        sums = self._store.checksums(ids)
        # What was dropped since it was read has none, and would count as damaged.
        good &= sums != 0
        columns = [pa.array(ids[good]), pa.array(sums[good])]
        for key in sorted(arrays):
            rows = [sample_bytes(row) for row in arrays[key][good]]
            columns.append(pa.array(rows, pa.binary()))
        return pa.table(columns, _make_schema(arrays))

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
    """Calls that a peer did not answer in time, refused, or answered with what no host
    of this run has sent: unsigned, damaged, too long, or of another kind."""
    _clients: dict[str, Any] = field(default_factory=dict, repr=False)
    _retry_at: dict[str, float] = field(default_factory=dict, repr=False)

    def fetch(self, ids: IntArray, hosts: IntArray) -> dict[int, Arrays]:
        """Ask hosts for samples.

        Args:
            ids: int64 [m].
            hosts: who has each of them: int64 [m].

        Returns:
            By id what came and is whole: its arrays, `[1, ...]` a key.
        """
        found: dict[int, Arrays] = {}
        # One call a host, for all that comes from it.
        for host in np.unique(hosts).tolist():
            address, asked = self.addresses[host], ids[hosts == host]
            # Left alone for a while after a failure.
            if self._retry_at.get(address, 0.0) > time.monotonic():
                continue
            try:
                # What is beyond is read of the data set, like all that does not come.
                for samples in self._ask(address, asked[:_MAX_IDS]):
                    found |= samples
            except _REPLY_ERRORS:
                self.failed_calls += 1
                self._retry_at[address] = time.monotonic() + _BACKOFF_S
        self.fetched_count += len(found)
        return found

    def close(self) -> None:
        """Close all connections."""
        while self._clients:
            self._clients.popitem()[1].close()

    def _ask(self, address: str, asked: IntArray) -> Iterator[dict[int, Arrays]]:
        """Yield the samples of a reply, chunk by chunk, as they are verified.

        Raises:
            Exception: one of `_REPLY_ERRORS`; nothing behind it is read.
        """
        # The most that a sample may take bounds each message, and the whole reply.
        sample_limit = _ROW_BYTES + sum(
            _OFFSET_BYTES + (_MAX_VALUE_BYTES if x.dtype.hasobject else x.nbytes)
            for x in self.example.values()
        )
        table_limit = _COLUMN_BYTES * (2 + len(self.example))
        if address not in self._clients:
            longest = min(_CHUNK_BYTES + sample_limit + table_limit, _MAX_MESSAGE_BYTES)
            self._clients[address] = flight.FlightClient(
                f"grpc://{address}",
                generic_options=[
                    # Hosts reach each other directly: gRPC would otherwise use the
                    # proxy of the environment, which does not know their addresses.
                    ("grpc.enable_http_proxy", 0),
                    # A longer message ends the call before it is in memory.
                    ("grpc.max_receive_message_length", longest),
                ],
            )
        options = flight.FlightCallOptions(
            timeout=self.deadline_s,
            headers=[(_CREDENTIAL_HEADER.encode(), _credential(self.token).encode())],
        )
        action = flight.Action(_ACTION, asked.astype(_ID_TYPE).tobytes())
        results = iter(self._clients[address].do_action(action, options))
        # Each sample at most, in a chunk of its own.
        left, wanted = len(asked) * (sample_limit + table_limit), set(asked.tolist())
        # Of one iterator: signatures and chunks come in turns.
        for signature, chunk in zip(results, results):
            said, body = signature.body.to_pybytes(), chunk.body
            left -= body.size
            if left < 0:
                raise ValueError("more than was asked for")
            if not hmac.compare_digest(said, _sign(self.token, body)):
                raise ValueError("signed by nobody of this run")
            yield self._read_chunk(body, wanted)

    def _read_chunk(self, chunk: pa.Buffer, asked: set[int]) -> dict[int, Arrays]:
        """Return the samples that were asked for and have their checksums, by id.

        Raises:
            ArrowException: it is no table.
            ValueError: it is no table of such samples.
        """
        schema = _make_schema(self.example)
        with pa.ipc.open_stream(chunk) as reader:
            if reader.schema != schema:
                raise ValueError("a table of another kind")
            table = reader.read_all()
        # Signed by a host of this run, which may still be damaged: Arrow itself trusts
        # the offsets of values, and would read what lies elsewhere in memory.
        table.validate(full=True)
        if not len(table):
            return {}
        if any(column.null_count for column in table.columns):
            raise ValueError("a sample without bytes")
        arrays: dict[str, Any] = {}
        for key, x in self.example.items():
            rows = table.column(f"key {key}").to_pylist()
            if not x.dtype.hasobject and {len(row) for row in rows} != {x.nbytes}:
                raise ValueError("a sample of another size")
            arrays[key] = stack_bytes(rows, x.dtype, x.shape[1:])
        ids, sums = (table.column(name).to_numpy() for name in ("id", "sum"))
        right = checksums(arrays) == sums
        self.corrupt_count += int((~right).sum())
        return {
            sample: {key: array[row : row + 1] for key, array in arrays.items()}
            for row, sample in enumerate(ids.tolist())
            if right[row] and sample in asked
        }
