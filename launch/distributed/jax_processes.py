"""Initialization of jax.distributed: several processes become one jax program.

Each process has the environment of its rank, and calls `initialize()` before anything
else of jax.
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
_START_TIMEOUT_S: Final = 60
# Seconds until process 0 must listen: before it has given up waiting for the rest.
_CONNECT_TIMEOUT_S: Final = _START_TIMEOUT_S - 5
# Seconds without a heartbeat after which jax ends all other processes.
_HEARTBEAT_TIMEOUT_S: Final = 30
WATCHED_HEARTBEAT_TIMEOUT_S: Final = 600
"""The same where a watchdog of ours is to notice first, and to name who is stuck."""


def wait_for_coordinator(rank: int, coordinator: str, timeout_s: float) -> None:
    """Wait until process 0 listens.

    Args:
        rank: which process asks.
        coordinator: `address:port` of process 0.
        timeout_s: seconds until it must.

    Raises:
        RetryableError: it does not, or a firewall between both hosts lets nothing
            through.
    """
    host, _, port = coordinator.rpartition(":")
    address, end = (host.strip("[]"), int(port)), time.monotonic() + timeout_s
    while True:
        left = max(end - time.monotonic(), _RETRY_S)
        try:
            # jax would log every failed attempt and in the end abort the process, so
            # it connects only after this has succeeded.
            with socket.create_connection(address, min(left, _ATTEMPT_TIMEOUT_S)):
                return
        except OSError as error:
            if time.monotonic() >= end:
                raise RetryableError(
                    f"process {rank} does not reach process 0\n"
                    "  rule     process 0 listens at an address that all others reach\n"
                    f"  values   {coordinator}, for {timeout_s:g} s: {error}\n"
                    "  remedy   the network between the hosts, then the same command"
                ) from error
        time.sleep(_RETRY_S)


def initialize(heartbeat_timeout_s: int = _HEARTBEAT_TIMEOUT_S) -> int:
    """Join the other processes, and return the rank of this one.

    Call it before anything computes: jax then sees one device of each process.

    Args:
        heartbeat_timeout_s: seconds without a heartbeat after which a process counts
            as dead.

    Raises:
        BadInput: this process was not started as one of several.
        RetryableError: process 0 cannot be reached.
    """
    rank, count, coordinator = None, None, None
    scheduler = os.environ.get(CLUSTER_DETECTION_VAR)
    if not scheduler:
        rank, count, coordinator = rank_assignment()
        if rank:
            wait_for_coordinator(rank, coordinator, _CONNECT_TIMEOUT_S)
    if count != 1:
        import jax

        # That service would take SIGTERM from processes that have nothing to save yet,
        # and from programs that never ask it; a process on its own has no such service.
        jax.config.update("jax_enable_preemption_service", False)
        timeout_s = int(os.environ.get(START_TIMEOUT_VAR, _START_TIMEOUT_S))
        jax.distributed.initialize(
            coordinator,
            count,
            rank,
            # With a rank of ours no scheduler is asked: jax would otherwise take fewer
            # devices where it finds itself in a job of SLURM, for example.
            cluster_detection_method=scheduler or "deactivate",
            initialization_timeout=timeout_s,
            heartbeat_timeout_seconds=heartbeat_timeout_s,
        )
    return process_group().rank
