"""Between: the address of this machine on the network between a run's processes."""

import ipaddress
import socket
from typing import Final

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.launch.distributed.process_group import ProcessGroup, coordinator_host

_WAIT_MS: Final = 60_000
_DISCARD_PORT: Final = 9
"""Nothing is sent there: the system only says which way it would go."""


def peer_facing_address(group: ProcessGroup, interface: str = "") -> str:
    """Return the address under which the other processes reach this one.

    Every process of the run calls it once.

    Args:
        group: the processes.
        interface: a network interface by name; empty: that on which process 0 is
            reached, or, on its own machine, that on which another one is.

    Raises:
        BadInput: there is no such interface, or it has no address.
    """
    if interface:
        return interface_address(interface)
    if group.kv_store is None:
        return "127.0.0.1"
    first = source_address(coordinator_host())
    group.kv_store.key_value_set(f"jaxdist/address/{group.rank}", first)
    told = [
        group.kv_store.blocking_key_value_get(f"jaxdist/address/{rank}", _WAIT_MS)
        for rank in range(group.size)
    ]
    return common_address(first, told)


def common_address(local: str, addresses: list[str]) -> str:
    """Return an address that all of several processes reach, where there is one.

    Args:
        local: of this machine, on the way to process 0.
        addresses: the same of every process.

    >>> common_address("127.0.0.1", ["127.0.0.1", "127.0.0.1"])
    '127.0.0.1'
    """
    far = [address for address in addresses if not is_loopback(address)]
    return source_address(far[0]) if far and is_loopback(local) else local


def is_loopback(address: str) -> bool:
    """Tell whether an address is this machine's alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def source_address(host: str) -> str:
    """Return the address of this machine on the way to another.

    >>> source_address("127.0.0.1")
    '127.0.0.1'
    """
    family, kind, *_, there = socket.getaddrinfo(
        host, _DISCARD_PORT, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind) as asked:
        asked.connect(there)
        return str(asked.getsockname()[0])


def interface_address(interface: str) -> str:
    """Return the first address of an interface, IPv4 before IPv6.

    Raises:
        BadInput: naming those that there are.
    """
    import psutil

    there = psutil.net_if_addrs()
    families = socket.AF_INET, socket.AF_INET6
    found = [
        each.address
        for family in families
        for each in there.get(interface, ())
        if each.family == family
    ]
    if found:
        return str(found[0])
    near = did_you_mean(interface, there)
    raise BadInput(
        f"no interface {interface} with an address",
        rule="data.interface names one that every host has",
        values=f"on {socket.gethostname()}: {', '.join(sorted(there))}",
        remedy=f"data.interface={near}" if near else "leave it out: it is found",
    )
