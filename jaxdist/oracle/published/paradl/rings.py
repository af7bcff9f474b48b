"""Rings: seconds of a collective in which each device talks to its two neighbours."""

from jaxdist.oracle.published.paradl.system import RingLink


def ring_seconds(
    devices: int, size: float, reach: RingLink, *, times: int, share: float = 1.0
) -> float:
    """Return the seconds of passes around a ring.

        times (p - 1) (alpha + m / (p share bandwidth))

    An all-gather or reduce-scatter is one pass, an all-reduce is two.

    Args:
        devices: p of the ring.
        size: bytes m, of all devices together.
        reach: how neighbours are connected.
        times: passes, one after the other.
        share: of the link's bandwidth that the ring gets.

    >>> from jaxdist.core.cluster.sourced_number import SourcedNumber
    >>> port = SourcedNumber(12.5e9, "datasheet: EDR InfiniBand")
    >>> alpha = SourcedNumber(4e-5, "given: me")
    >>> reach = RingLink(devices=68, alpha=alpha, bandwidth=port)
    >>> round(ring_seconds(8, 679.2e6, reach, times=2, share=0.5), 4)
    0.1907
    """
    hop = reach.alpha.value + size / devices / (share * reach.bandwidth.value)
    return times * (devices - 1) * hop
