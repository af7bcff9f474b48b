"""Links: their rate, the queue that holds them to it, and their counters."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jaxdist.core.errors import BadInput
from jaxdist.core.text.parsing import parse_bandwidth

FRAME_BYTES: Final = 1514
"""Bytes of a full Ethernet frame, as a link sends it."""
TCP_SEGMENT_BYTES: Final = 1448
"""Payload of a full frame: an MTU of 1500 bytes minus 52 of IP and TCP headers."""

_TIME_UNITS: Final = {"us": 1, "ms": 10**3, "s": 10**6}
_BURST_S: Final = 1.5e-3
"""What a full token bucket holds, as seconds at the rate of the link."""
_MIN_BURST_BYTES: Final = 2 * FRAME_BYTES


def parse_link_rate(rate: str) -> int:
    """Read the rate of a link, bits a second.

    >>> parse_link_rate("100mbit"), parse_link_rate("12.5MB/s")
    (100000000, 100000000)

    Raises:
        BadInput: it is no rate.
    """
    bits = 0
    # A bare number is bits a second to `tc` and bytes to `parse_bandwidth`, so a rate
    # has a unit.
    if rate.strip()[-1:].isalpha():
        with suppress(BadInput):
            bits = round(8 * parse_bandwidth(rate, "rate"))
    if bits:
        return bits
    # `200Mb/s` and `1.5 GB` are mostly meant as bits: links are sold by them.
    found = re.match(r"\s*(\d*\.?\d*[1-9]\d*\.?\d*)\s*([kmg])", rate.lower())
    meant = f"{found[1]}{found[2]}bit" if found else "200mbit"
    raise BadInput(
        f"{rate} is no rate of a link",
        rule="a rate is a number above zero and its unit: kbit, mbit or gbit, or MB/s",
        values=repr(rate),
        remedy=[f"did you mean {meant}?", "without a rate there is no limit"],
    )


def rate_qdisc(rate: str | None) -> tuple[str, ...]:
    """Return the words of `tc` for a queue that holds a link to a rate.

    Args:
        rate: of a token bucket filter; None is no limit.

    Raises:
        BadInput: it is no rate.
    """
    if rate is None:
        return ("noqueue",)
    bits = parse_link_rate(rate)
    # A full bucket goes out at once, as on no real link: with one of 68 KiB a message
    # of 128 KiB that followed a pause took half its time. It holds two frames at least,
    # since one larger than the bucket is never sent; the queue before it holds 200 ms.
    burst = max(_MIN_BURST_BYTES, round(_BURST_S * bits / 8))
    return "tbf", "rate", f"{bits}bit", "burst", f"{burst}b", "latency", "200ms"


def netem_delay(delay: str) -> tuple[str, ...]:
    """Return the words of `tc` for a delay of each packet, by the queue netem.

    >>> netem_delay("1.5ms")
    ('netem', 'delay', '1500us', 'limit', '100000')

    Raises:
        BadInput: it is no delay.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", delay.strip().lower())
    us = round(float(found[1]) * _TIME_UNITS[found[2]]) if found else 0
    # netem drops what is beyond its limit, by default 1,000 packets: few at 1 Gbit/s.
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

    @property
    def tx_payload_bytes(self) -> int:
        """Bytes sent without the headers of packets: acknowledgements have none.

        >>> data_and_ack = InterfaceCounters(tx_bytes=1580, tx_packets=2, rx_bytes=0)
        >>> data_and_ack.tx_payload_bytes
        1448
        """
        return self.tx_bytes - (FRAME_BYTES - TCP_SEGMENT_BYTES) * self.tx_packets

    def __sub__(self, earlier: "InterfaceCounters") -> "InterfaceCounters":
        """Return what was sent and received in between."""
        return InterfaceCounters(
            tx_bytes=self.tx_bytes - earlier.tx_bytes,
            tx_packets=self.tx_packets - earlier.tx_packets,
            rx_bytes=self.rx_bytes - earlier.rx_bytes,
        )


def parse_counters(text: str, interface: str) -> InterfaceCounters:
    """Read the counters of one interface.

    Args:
        text: what `/proc/net/dev` holds.
        interface: name of the interface.

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
    # Eight columns of what was received, then eight of what was sent, bytes first.
    numbers = [int(word) for word in found[1].split()]
    return InterfaceCounters(
        tx_bytes=numbers[8], tx_packets=numbers[9], rx_bytes=numbers[0]
    )


def read_local_counters(interface: str = "eth0") -> InterfaceCounters:
    """Read the counters of the host that this process runs on."""
    return parse_counters(Path("/proc/net/dev").read_text(), interface)
