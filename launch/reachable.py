"""Reachable: whether process 0 answers at its address, before jax waits for it.

jax itself aborts after a minute, with a stack of its own and without the address.
"""

import socket
import time
from typing import Final

from jaxdist.core.errors import TryAgain

_EACH_S: Final = 5.0
_PAUSE_S: Final = 0.1


def wait_until_reached(rank: int, coordinator: str, seconds: float) -> None:
    """Wait until process 0 listens.

    Args:
        rank: which process asks.
        coordinator: `address:port` of process 0.
        seconds: until it must.

    Raises:
        TryAgain: it does not, or what is between both hosts lets nothing through.
    """
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        left = max(end - time.monotonic(), _PAUSE_S)
        try:
            where = host.strip("[]"), int(port)
            with socket.create_connection(where, timeout=min(left, _EACH_S)):
                return
        except OSError as error:
            if time.monotonic() >= end:
                raise TryAgain(_unreached(rank, coordinator, seconds, error)) from error
        time.sleep(_PAUSE_S)


def _unreached(rank: int, coordinator: str, seconds: float, error: OSError) -> str:
    return "\n".join(
        (
            f"process {rank} does not reach process 0",
            "  rule     process 0 listens at an address that all others reach",
            f"  values   {coordinator}, for {seconds:g} s: {error}",
            "  remedy   the network between the hosts, then the same command",
        )
    )
