"""The address at which process 0 listens: the one that the others are told."""

import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.network_address import split_address

# jax's own variable.
_BIND_VAR: Final = "JAX_COORDINATOR_BIND_ADDRESS"


def listen_address(coordinator: str, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return (host, port) at which process 0 listens; an empty host: at all addresses.

    Anybody who reaches the coordinator can join its run or end it, so it listens only
    at the address that the other processes are told. It listens at all addresses, as
    jax does, where others may mean one that this machine does not know by that name:

    * the address is none of this machine's: a container or a service forwards to it;
    * it is a name that stands here for several addresses, or, as Debian writes it into
      /etc/hosts, for a loopback address that no other host reaches.

    `JAX_COORDINATOR_BIND_ADDRESS=IP:port` decides instead, as it does in jax.

    Args:
        coordinator: `address:port` of process 0, as all processes have it.
        environ: the environment of process 0.

    Raises:
        BadInput: the variable has no address with a port.

    >>> listen_address("127.0.0.1:29500", {})
    ('127.0.0.1', 29500)
    >>> listen_address("192.0.2.1:29500", {})  # of no machine
    ('', 29500)
    """
    chosen = environ.get(_BIND_VAR, "")
    parts = split_address(chosen or coordinator)
    if parts is None:
        name = _BIND_VAR if chosen else "the address of process 0"
        raise BadInput(
            "process 0 does not know where to listen",
            rule=f"{name} is IP:port, IPv6 in brackets",
            values=repr(chosen or coordinator),
            remedy=f"{_BIND_VAR}=10.0.0.3:29500, or without it",
        )
    host, port = parts
    if chosen:
        return ("" if host in ("0.0.0.0", "::") else host), port
    return next(filter(_is_local, _candidates(host)), ""), port


def join_address(host: str, port: int) -> str:
    """Return `host:port`, IPv6 in brackets.

    >>> join_address("node1", 29500), join_address("fe80::1", 29500)
    ('node1:29500', '[fe80::1]:29500')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _candidates(host: str) -> list[str]:
    """Return the IP addresses that every process means by a host."""
    try:
        # With its scope, if any: an address of IPv6 may need one.
        return [host] if not ipaddress.ip_address(host).is_unspecified else []
    except ValueError:  # a name
        pass
    found = []
    # A name that nothing is known of here stands for no address.
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    # All processes are on this machine, so a loopback address is the one they mean.
    if host == "localhost":
        return addresses
    is_one = len(addresses) == 1 and not ipaddress.ip_address(addresses[0]).is_loopback
    return addresses if is_one else []


def _is_local(ip: str) -> bool:
    """Tell whether an address is one of this machine: any port of it can be bound."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((ip, 0))
        return True
    return False
