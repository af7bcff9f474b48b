"""Network addresses that other processes say: read as data, and not trusted."""

import ipaddress
import re
from typing import Final

from jaxdist.core.errors import BadInput

MAX_PORT: Final = 65535
_MAX_SHOWN: Final = 80


def split_address(address: str) -> tuple[str, int] | None:
    """Return (host, port) of `host:port` or `[IPv6]:port`; None where it is neither.

    >>> split_address("node1:29500"), split_address("[fe80::1]:29500")
    (('node1', 29500), ('fe80::1', 29500))
    >>> split_address("node1"), split_address("::1:29500"), split_address("node1:0")
    (None, None, None)
    """
    # IPv6 in brackets alone: its own colons would hide that of the port.
    found = re.fullmatch(r"(?:\[([^][\s]+)\]|([^][:\s]+)):([0-9]{1,5})", address)
    if found is None or not 1 <= int(found[3]) <= MAX_PORT:
        return None
    return found[1] or found[2], int(found[3])


def check_ip(value: object, context: str) -> str:
    """Return a value that is the IP address of one machine.

    Args:
        value: what a process has said.
        context: which process, for errors: `process 3`.

    Raises:
        BadInput: it is anything else, or an address of no machine or of many.

    >>> check_ip("10.0.0.3", "process 3")
    '10.0.0.3'
    """
    if not isinstance(value, str) or not _is_ip(value):
        raise _bad_address(value, context, "an IP address of one machine")
    return value


def check_ip_and_port(value: object, context: str) -> str:
    """Return a value that is `IP:port` or `[IPv6]:port`, of one machine.

    Args:
        value: what a process has said.
        context: which process, for errors: `process 3`.

    Raises:
        BadInput: it is anything else, the name of a host as well.

    >>> check_ip_and_port("[fd00::3]:4100", "process 3")
    '[fd00::3]:4100'
    """
    parts = split_address(value) if isinstance(value, str) else None
    if parts is None or not _is_ip(parts[0]):
        rule = f"an IP address of one machine, and a port from 1 to {MAX_PORT}"
        raise _bad_address(value, context, rule)
    return str(value)


def _is_ip(text: str) -> bool:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (ip.is_unspecified or ip.is_multicast)


def _bad_address(value: object, context: str, rule: str) -> BadInput:
    return BadInput(
        f"{context} cannot be reached where it says",
        rule=f"each process says {rule}",
        values=f"{context} says {repr(value)[:_MAX_SHOWN]}",
        remedy=(
            "data.interface=NAME, a network interface that every host has",
            "or in Python, Keep(interface=IP), the address of this host between hosts",
        ),
    )
