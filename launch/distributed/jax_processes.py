"""Initialization of jax.distributed: its processes, and the network between them.

Each process has the environment of its rank, and calls `initialize()` before anything
else of jax.
"""

import ipaddress
import os
import socket
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.network_address import check_ip
from jaxdist.launch.distributed.coordinator_address import (
    join_address,
    listen_address,
)
from jaxdist.launch.distributed.environment import (
    START_TIMEOUT_VAR,
    is_multi_process,
)
from jaxdist.launch.distributed.process_group import (
    ProcessGroup,
    coordinator_host,
    process_group,
)
from jaxdist.launch.distributed.schedulers import read_integer, read_rank_assignment
from jaxdist.launch.distributed.start_barrier import wait_for_all, wait_for_coordinator

_START_TIMEOUT_S: Final = 60
_MAX_START_TIMEOUT_S: Final = 7 * 24 * 60 * 60
# Seconds without a heartbeat after which jax ends all other processes.
_HEARTBEAT_TIMEOUT_S: Final = 30
WATCHED_HEARTBEAT_TIMEOUT_S: Final = 600
"""The same where a watchdog of ours is to notice first, and to name who is stuck."""


def initialize(
    heartbeat_timeout_s: int = _HEARTBEAT_TIMEOUT_S, *, alone: bool = False
) -> int:
    """Join the other processes, and return the rank of this one.

    Call it before anything computes: jax then sees one device of each process. Process
    0 listens at the address that the others are told, and at all addresses where that
    is none of its machine's: see `listen_address`.

    Args:
        heartbeat_timeout_s: seconds without a heartbeat after which a process counts
            as dead.
        alone: whether a process that no launcher has started is right as well: it is
            process 0 of one, with the devices of this machine.

    Raises:
        BadInput: this process was not started as one of several, or variables that
            say so cannot be.
        RetryableError: processes are missing, or process 0 cannot be reached.
    """
    if alone and not is_multi_process(os.environ):
        return 0
    mine, timeout_s = read_rank_assignment(os.environ), _START_TIMEOUT_S
    if START_TIMEOUT_VAR in os.environ:
        what = "seconds that processes wait for each other"
        timeout_s = read_integer(
            os.environ, START_TIMEOUT_VAR, 1, _MAX_START_TIMEOUT_S, what
        )
    if mine.num_processes != 1:
        wait_for_all(mine, timeout_s)
        if mine.rank:
            wait_for_coordinator(mine.rank, mine.coordinator, timeout_s)
        host, port = "", 0
        if mine.rank == 0:
            host, port = listen_address(mine.coordinator, os.environ)
        import jax

        # That service would take SIGTERM from processes that have nothing to save yet,
        # and from programs that never ask it; a process on its own has no such service.
        jax.config.update("jax_enable_preemption_service", False)
        # A process that a scheduler has started beside others has the device of its
        # number, unless JAX_LOCAL_DEVICE_IDS says which, or all are of the CPU.
        chosen = os.environ.get("JAX_LOCAL_DEVICE_IDS") or mine.local_rank is None
        jax.distributed.initialize(
            mine.coordinator,
            mine.num_processes,
            mine.rank,
            local_device_ids=None if chosen else [mine.local_rank or 0],
            # The rank is known, so jax asks no scheduler.
            cluster_detection_method="deactivate",
            # None: at all addresses.
            coordinator_bind_address=join_address(host, port) if host else None,
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
        BadInput: there is no such interface, or it has no address; or another process
            has said something that is none.
    """
    if interface:
        return interface_address(interface)
    if group.kv_store is None:
        return "127.0.0.1"
    local = source_address(coordinator_host())
    gathered = group.gather("address", local, _TIMEOUT_S)
    # What comes of the store anybody who reaches process 0 can have put there.
    said = group.broadcast("address", gathered, _TIMEOUT_S)
    rows = said if isinstance(said, list) else [said]
    every = [check_ip(row, f"process {rank}") for rank, row in enumerate(rows)]
    return common_address(local, every)


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
