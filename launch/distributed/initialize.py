"""Joined processes: what makes several processes one jax program on the processor.

Whoever starts them gives each the environment of its rank; each calls `join()` first.
"""

import os
import socket
import time
from typing import Final

from jaxdist.core.errors import RetryableError
from jaxdist.launch.distributed.environment import CLUSTER, START, place
from jaxdist.launch.distributed.process_group import process_group

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
                raise RetryableError(
                    _unreached(rank, coordinator, seconds, error)
                ) from error
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


_START_S: Final = 60
_REACHED_S: Final = _START_S - 5
"""Seconds until process 0 must listen: before it has given up waiting for the rest."""
_SILENCE_S: Final = 30
"""Seconds without a word after which jax ends all other processes."""
WATCHED_S: Final = 600
"""The same where the processes watch each other, and say what they see."""


def join(silence_s: int = _SILENCE_S) -> int:
    """Join the other processes, and return the rank of this one.

    Call it before anything computes: jax then sees one device of each process.

    Args:
        silence_s: seconds without a word after which a process counts as dead.

    Raises:
        BadInput: nobody started this process as one of several.
        TryAgain: process 0 is not reached.
    """
    if method := os.environ.get(CLUSTER):
        _initialize(silence_s, method=method)
        return process_group().rank
    rank, count, coordinator = place()
    if rank:
        wait_until_reached(rank, coordinator, _REACHED_S)
    if count > 1:
        _initialize(silence_s, coordinator, count, rank)
    return rank


def _initialize(
    silence_s: int,
    coordinator: str | None = None,
    count: int | None = None,
    rank: int | None = None,
    method: str | None = None,
) -> None:
    import jax

    # That service would take SIGTERM from processes that have nothing to save yet, and
    # from programs that never ask it; and a process on its own has none.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        count,
        rank,
        # Who was told its place asks no scheduler, which might give it fewer devices.
        cluster_detection_method=method or "deactivate",
        initialization_timeout=int(os.environ.get(START, _START_S)),
        heartbeat_timeout_seconds=silence_s,
    )
