"""The seconds of ParaDL's collectives: rings between devices, copies through hosts.

A message that goes through the memory of hosts is copied from the device to its host,
between hosts' processes, and to the other device: three copies, one after the other, on
links that others use as well.

    halos   2 exchanges a layer (input, gradient of the output), two neighbours each:
            2 h d b * 3 phi / (share * link), phi = 2 p
    gather  passes (p - 1) / p * y d b * 3 phi / (share * link), phi = 2

phi is the contention that ParaDL's tool has for the two patterns.
"""

from typing import Final

from jaxdist.oracle.published.paradl.system import ParadlSystem, RingLink

COPIES_PER_MESSAGE: Final = 3
"""Of a message: off the device, between processes, onto the other device."""
_GATHER_CONTENTION: Final = 2
"""Contention of a gather."""


def ring_seconds(
    devices: int,
    size: float,
    link: RingLink,
    *,
    passes: int,
    bandwidth_share: float = 1.0,
) -> float:
    """Return the seconds of passes around a ring.

        times (p - 1) (alpha + m / (p share bandwidth))

    An all-gather or reduce-scatter is one pass, an all-reduce is two.

    Args:
        devices: p of the ring.
        size: bytes m, of all devices together.
        link: how neighbours are connected.
        passes: passes, one after the other.
        bandwidth_share: of the link's bandwidth that the ring gets.

    >>> from jaxdist.core.cluster.sourced_number import SourcedNumber
    >>> port = SourcedNumber(12.5e9, "datasheet: EDR InfiniBand")
    >>> alpha = SourcedNumber(4e-5, "given: me")
    >>> reach = RingLink(max_devices=68, alpha=alpha, bandwidth=port)
    >>> round(ring_seconds(8, 679.2e6, reach, passes=2, bandwidth_share=0.5), 4)
    0.1907
    """
    # Every pass has p - 1 hops, each with one p-th of the bytes.
    hop = link.alpha.value + size / devices / (bandwidth_share * link.bandwidth.value)
    return passes * (devices - 1) * hop


def gather_pass_seconds(
    size: float, devices: int, system: ParadlSystem, bandwidth_share: float
) -> float:
    """Return the seconds in which bytes of all devices come to each of them.

    Args:
        size: bytes of all devices together.
        devices: p that share them.
        system: whose hosts they go through.
        bandwidth_share: share of the link's bandwidth that is reached.
    """
    # The copies follow one another, and each shares the host's link with the others.
    per_byte = (
        COPIES_PER_MESSAGE
        * _GATHER_CONTENTION
        / (bandwidth_share * system.host_link_bandwidth.value)
    )
    return size * (devices - 1) / devices * per_byte
