"""Joined processes: what makes several processes one jax program on the processor.

Whoever starts them gives each the environment of its rank; each calls `initialize()`
first.
"""

import os
import socket
import time
from typing import Final

from jaxdist.core.errors import RetryableError
from jaxdist.launch.distributed.environment import (
    CLUSTER_DETECTION_VAR,
    START_TIMEOUT_VAR,
    rank_assignment,
)
from jaxdist.launch.distributed.process_group import process_group

_ATTEMPT_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 0.1


def wait_for_coordinator(rank: int, coordinator: str, timeout_s: float) -> None:
    """Wait until process 0 listens.

    Args:
        rank: which process asks.
        coordinator: `address:port` of process 0.
        timeout_s: until it must.

    Raises:
        TryAgain: it does not, or what is between both hosts lets nothing through.
    """
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + timeout_s
    while True:
        left = max(end - time.monotonic(), _RETRY_S)
        try:
            where = host.strip("[]"), int(port)
            with socket.create_connection(where, timeout=min(left, _ATTEMPT_TIMEOUT_S)):
                return
        except OSError as error:
            if time.monotonic() >= end:
                raise RetryableError(
                    _unreachable_message(rank, coordinator, timeout_s, error)
                ) from error
        time.sleep(_RETRY_S)


def _unreachable_message(
    rank: int, coordinator: str, seconds: float, error: OSError
) -> str:
    return "\n".join(
        (
            f"process {rank} does not reach process 0",
            "  rule     process 0 listens at an address that all others reach",
            f"  values   {coordinator}, for {seconds:g} s: {error}",
            "  remedy   the network between the hosts, then the same command",
        )
    )


_START_TIMEOUT_S: Final = 60
_CONNECT_TIMEOUT_S: Final = _START_TIMEOUT_S - 5
"""Seconds until process 0 must listen: before it has given up waiting for the rest."""
_HEARTBEAT_TIMEOUT_S: Final = 30
"""Seconds without a word after which jax ends all other processes."""
WATCHED_HEARTBEAT_TIMEOUT_S: Final = 600
"""The same where the processes watch each other, and say what they see."""


def initialize(heartbeat_timeout_s: int = _HEARTBEAT_TIMEOUT_S) -> int:
    """Join the other processes, and return the rank of this one.

    Call it before anything computes: jax then sees one device of each process.

    Args:
        heartbeat_timeout_s: seconds without a word after which a process counts as
        dead.

    Raises:
        BadInput: nobody started this process as one of several.
        TryAgain: process 0 is not reached.
    """
    if method := os.environ.get(CLUSTER_DETECTION_VAR):
        _initialize_jax(heartbeat_timeout_s, detection_method=method)
        return process_group().rank
    rank, count, coordinator = rank_assignment()
    if rank:
        wait_for_coordinator(rank, coordinator, _CONNECT_TIMEOUT_S)
    if count > 1:
        _initialize_jax(heartbeat_timeout_s, coordinator, count, rank)
    return rank


def _initialize_jax(
    heartbeat_timeout_s: int,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    detection_method: str | None = None,
) -> None:
    import jax

    # That service would take SIGTERM from processes that have nothing to save yet, and
    # from programs that never ask it; and a process on its own has none.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        num_processes,
        process_id,
        # Who was told its place asks no scheduler, which might give it fewer devices.
        cluster_detection_method=detection_method or "deactivate",
        initialization_timeout=int(os.environ.get(START_TIMEOUT_VAR, _START_TIMEOUT_S)),
        heartbeat_timeout_seconds=heartbeat_timeout_s,
    )
