"""Rings: seconds of a collective in which each device talks to its two neighbours."""

from jaxdist.oracle.published.paradl.system import RingLink


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
    hop = link.alpha.value + size / devices / (bandwidth_share * link.bandwidth.value)
    return passes * (devices - 1) * hop
