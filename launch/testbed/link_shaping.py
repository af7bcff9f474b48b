"""Links: the rate of one, the bucket that holds it to that, and what it counts."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput

FRAME_BYTES: Final = 1514
"""Bytes of a full Ethernet frame, as a link sends it."""
TCP_SEGMENT_BYTES: Final = 1448
"""Bytes of a message in a full frame: 1500 less the headers of IP and TCP."""

_UNITS: Final = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIME_UNITS: Final = {"us": 1, "ms": 10**3, "s": 10**6}
_BURST_S: Final = 1.5e-3
_MIN_BURST_BYTES: Final = 2 * FRAME_BYTES


def parse_link_rate(rate: str) -> int:
    """Read a rate as `tc` writes it.

    >>> parse_link_rate("100mbit")
    100000000

    Raises:
        BadInput: it is no rate.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", rate.strip().lower())
    bits = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if bits:
        return bits
    raise BadInput(
        f"{rate} is no rate of a link",
        rule="a rate is a number above zero and kbit, mbit or gbit, without a space",
        values=repr(rate),
        remedy=[
            f"did you mean {_suggest_rate(rate)}?",
            "without a rate there is no limit",
        ],
    )


def _suggest_rate(rate: str) -> str:
    """Guess the rate that was meant.

    >>> _suggest_rate("200Mb/s"), _suggest_rate("1.5 GB"), _suggest_rate("quick")
    ('200mbit', '1.5gbit', '200mbit')
    """
    found = re.match(r"\s*(\d*\.?\d*[1-9]\d*\.?\d*)\s*([kmg])", rate.lower())
    return f"{found[1]}{found[2]}bit" if found else "200mbit"


def token_bucket(rate: str) -> tuple[str, ...]:
    """Return the words of `tc` for a token bucket of this rate.

    The bucket holds 1.5 ms of the rate, and at least two frames; the queue in front of
    it holds 200 ms. What a full bucket holds goes out at once: with 68 KiB a message of
    128 KiB took half its time behind a pause, and on no real link.

    Raises:
        BadInput: it is no rate.
    """
    bits = parse_link_rate(rate)
    burst = max(_MIN_BURST_BYTES, round(_BURST_S * bits / 8))
    return "tbf", "rate", f"{bits}bit", "burst", f"{burst}b", "latency", "200ms"


def netem_delay(delay: str) -> tuple[str, ...]:
    """Return the words of `tc` for a delay of each packet.

    >>> netem_delay("1.5ms")
    ('netem', 'delay', '1500us', 'limit', '100000')

    Raises:
        BadInput: it is no delay.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", delay.strip().lower())
    us = round(float(found[1]) * _TIME_UNITS[found[2]]) if found else 0
    if us:
        return "netem", "delay", f"{us}us", "limit", "100000"
    raise BadInput(
        f"{delay} is no delay of a link",
        rule="a delay is a number above zero and us, ms or s, without a space",
        values=repr(delay),
        remedy=["did you mean 1ms?", "without a delay there is the kernel's own"],
    )


def frame_bytes(payload: int) -> int:
    """Return the bytes that full frames take for a payload.

    >>> frame_bytes(1448)
    1514
    """
    return round(payload * FRAME_BYTES / TCP_SEGMENT_BYTES)


@dataclass(frozen=True, kw_only=True)
class InterfaceCounters:
    """What an interface has sent and received since it was made."""

    tx_bytes: int
    """Bytes, headers included."""
    tx_packets: int
    """Packets sent."""
    rx_bytes: int
    """Bytes, headers included."""

    def __sub__(self, earlier: "InterfaceCounters") -> "InterfaceCounters":
        """Return what was sent and received in between."""
        return InterfaceCounters(
            tx_bytes=self.tx_bytes - earlier.tx_bytes,
            tx_packets=self.tx_packets - earlier.tx_packets,
            rx_bytes=self.rx_bytes - earlier.rx_bytes,
        )


def parse_counters(text: str, interface: str) -> InterfaceCounters:
    """Read one interface's counter.

    Args:
        text: what `/proc/net/dev` holds.
        interface: of the interface.

    Raises:
        BadInput: there is no such interface.

    >>> parse_counters("  eth0: 7 1 0 0 0 0 0 0 9 2 0 0 0 0 0 0", "eth0")
    InterfaceCounters(tx_bytes=9, tx_packets=2, rx_bytes=7)
    """
    found = re.search(rf"^\s*{re.escape(interface)}:\s*([\d ]+)", text, re.MULTILINE)
    if found is None:
        raise BadInput(
            f"no interface {interface}",
            rule="the interface is one of this host",
            values=", ".join(re.findall(r"^\s*(\S+):", text, re.MULTILINE)),
            remedy="ip link",
        )
    numbers = [int(word) for word in found[1].split()]
    return InterfaceCounters(
        tx_bytes=numbers[8], tx_packets=numbers[9], rx_bytes=numbers[0]
    )


def read_local_counters(interface: str = "eth0") -> InterfaceCounters:
    """Read a counter of the host that this process runs on."""
    return parse_counters(Path("/proc/net/dev").read_text(), interface)
