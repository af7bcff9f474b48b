"""Initialization of jax.distributed: its processes, and the network between them.

Each process has the environment of its rank, and calls `initialize()` before anything
else of jax.
"""

import ipaddress
import os
import socket
import time
from typing import Final

from jaxdist.core.errors import BadInput, RetryableError, did_you_mean
from jaxdist.launch.distributed.environment import (
    CLUSTER_DETECTION_VAR,
    START_TIMEOUT_VAR,
    rank_assignment,
)
from jaxdist.launch.distributed.process_group import (
    ProcessGroup,
    coordinator_host,
    process_group,
)

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


_TIMEOUT_S: Final = 60.0
# Nothing is sent there: connecting a datagram socket only looks up the route.
_DISCARD_PORT: Final = 9


def peer_facing_address(group: ProcessGroup, interface: str = "") -> str:
    """Return the address under which the other processes reach this one.

    Every process of the run calls it once.

    Args:
        group: the processes.
        interface: a network interface by name; empty: that of the route to process 0,
            or, on the host of process 0, to another one.

    Raises:
        BadInput: there is no such interface, or it has no address.
    """
    if interface:
        return interface_address(interface)
    if group.kv_store is None:
        return "127.0.0.1"
    local = source_address(coordinator_host())
    gathered = group.gather("address", local, _TIMEOUT_S)
    return common_address(local, group.broadcast("address", gathered, _TIMEOUT_S))


def common_address(local: str, addresses: list[str]) -> str:
    """Return an address of this machine that all processes reach, where there is one.

    On the host of process 0 the route to it is the loopback interface, which others
    cannot use; the route to a process on another host is what they can.

    Args:
        local: address of this machine on the route to process 0.
        addresses: the same of every process.

    >>> common_address("127.0.0.1", ["127.0.0.1", "127.0.0.1"])
    '127.0.0.1'
    """
    # All on one machine: loopback is what reaches everybody.
    far = [address for address in addresses if not is_loopback(address)]
    return source_address(far[0]) if far and is_loopback(local) else local


def is_loopback(address: str) -> bool:
    """Tell whether an address is reached from its own machine alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def source_address(host: str) -> str:
    """Return the address of this machine on the route to another.

    >>> source_address("127.0.0.1")
    '127.0.0.1'
    """
    found = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)
    family, kind, *_, address = found[0]
    with socket.socket(family, kind) as route:
        route.connect(address)
        return str(route.getsockname()[0])


def interface_address(interface: str) -> str:
    """Return the first address of an interface, IPv4 before IPv6.

    Raises:
        BadInput: it has no address or is not there; names those that are.
    """
    import psutil

    interfaces = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for found in interfaces.get(interface, ()):
            if found.family == family:
                return str(found.address)
    near = did_you_mean(interface, interfaces)
    raise BadInput(
        f"no interface {interface} with an address",
        rule="data.interface names one that every host has",
        values=f"on {socket.gethostname()}: {', '.join(sorted(interfaces))}",
        remedy=f"data.interface={near}" if near else "leave it out: it is found",
    )
