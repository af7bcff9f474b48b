"""Meeting: the processes of a program tell each other where their samples are."""

import secrets
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxdist.core.errors import BadInput
from jaxdist.input.batch_assembly import Rows
from jaxdist.input.local_shuffle.byte_store import ByteStore
from jaxdist.input.local_shuffle.store import ArrayStore
from jaxdist.input.sources import Arrays

if TYPE_CHECKING:
    from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer

_MAX_ADDRESS_BYTES = 256
"""Bytes that an address may have."""


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
    even = batch % count == 0 and first % count == 0
    if not even or int(rows[-1]) - first != count - 1:
        raise BadInput(
            "this process has no samples of its own to keep",
            rule="a process holds one stretch of a batch, as long as others'",
            values=f"{count} of {batch} rows, {first} to {int(rows[-1])}",
            remedy=(
                "data.store=none (keep=None)",
                "or a mesh whose first axis goes over processes",
            ),
        )
    return first // count, batch // count


def connect_peers(
    store: ArrayStore | ByteStore, example: Arrays, host_index: int, interface: str
) -> "PeerGroup":
    """Serve this process's samples, and learn where those of the others are.

    Every process of the program calls it at the same time. The token is drawn by the
    first and known to no other program.

    Args:
        store: this host's samples.
        example: one sample, `[1, ...]` a key.
        host_index: which rows this process has, as `host_index_and_count` says.
        interface: address of this machine between hosts.
    """
    from jax.experimental import multihost_utils

    from jaxdist.input.local_shuffle.flight import PeerClient, PeerServer

    drawn = np.frombuffer(secrets.token_bytes(32), np.uint8)
    token = multihost_utils.broadcast_one_to_all(drawn).tobytes().hex()
    where = f"[{interface}]" if ":" in interface else interface
    server = PeerServer(store, f"{where}:0", token)
    said = f"{host_index} {server.address}".encode().ljust(_MAX_ADDRESS_BYTES)
    every = multihost_utils.process_allgather(np.frombuffer(said, np.uint8))
    known: dict[int, str] = {}
    for row in np.asarray(every).reshape(jax.process_count(), -1):
        number, address = row.tobytes().decode().split()
        known.setdefault(int(number), address)
    addresses = [known[number] for number in sorted(known)]
    return PeerGroup(
        server, PeerClient(addresses=addresses, example=example, token=token)
    )


class PeerGroup:
    """A server and the way to its peers; closed together.

    Args:
        server: of this process.
        client: all of them.
    """

    def __init__(self, server: "PeerServer", client: "PeerClient") -> None:
        self.server, self.client = server, client

    def close(self) -> None:
        """Serve and ask no more."""
        self.client.close()
        self.server.shutdown()
