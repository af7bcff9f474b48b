"""The seconds of an all-gather or reduce-scatter in NCCL's ring.

    base + (n - r) near + (r - 1) far + (n-1)/n S / rate

for n ranks on r hosts and S bytes gathered or summed. The ring passes every link with
the same bytes, so its rate is that of the slowest: a device's inside of a host, or all
links of a host to others. NCCL has no other algorithm for these two collectives up to
2.22, and takes the protocol that it expects to be fastest: `Simple`, or `LL`, which has
less latency and a part of the bandwidth.
"""

from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.oracle.published.fsdp.layers import FsdpRates
from jaxdist.oracle.published.megatron.links import RankGroup


@dataclass(frozen=True, kw_only=True)
class RingProtocol:
    """A protocol of NCCL's ring, with the numbers of its tuning model."""

    base: float
    """Seconds before the first step."""
    near: float
    """Seconds of a step inside of a host that is alone."""
    near_beside_network: float
    """The same where the ring leaves the host."""
    far: float
    """Seconds of a step between hosts."""
    bandwidth_share: float
    """Share of the rate inside of one host."""
    bandwidth_share_over_network: float
    """The same where the ring leaves the host."""


RING_PROTOCOLS: Final = (
    RingProtocol(
        base=8.4e-6,
        near=3.4e-6,
        near_beside_network=3.4e-6,
        far=9.6e-6,
        bandwidth_share=1.0,
        bandwidth_share_over_network=1.0,
    ),
    RingProtocol(
        base=3.6e-6,
        near=0.47e-6,
        near_beside_network=1.8 * 0.47e-6,
        far=2.7e-6,
        bandwidth_share=1 / 3,
        bandwidth_share_over_network=1 / 4,
    ),
)
"""`Simple` and `LL`: github.com/NVIDIA/nccl @ 01afd20a, `src/graph/tuning.cc`."""


def ring_seconds(
    size: float, group: RankGroup, cluster: Cluster, rates: FsdpRates
) -> float:
    """Return the seconds in which a group gathers or sums `size` bytes.

    Args:
        size: bytes of the whole, which each rank has before or after.
        group: ranks, which fill their hosts.
        cluster: whose links.
        rates: the shares of them that are reached.
    """
    n, r = group.ranks, group.hosts
    if n == 1:
        return 0.0
    host, beyond = cluster.levels[0], cluster.levels[:2][-1]
    rate = host.bandwidth.value * rates.inside
    if r > 1:
        outside = beyond.bandwidth.value / beyond.oversubscription.value
        # Every rank of a host has a network port of its own; few ranks use few.
        used = min(1.0, group.ranks_per_host / host.size)
        rate = min(rate, used * outside * rates.network)
    sent = (n - 1) / n * size
    found = []
    for one in RING_PROTOCOLS:
        near = one.near_beside_network if r > 1 else one.near
        share = one.bandwidth_share_over_network if r > 1 else one.bandwidth_share
        latency = one.base + (n - r) * near + (r - 1) * one.far
        found.append(latency + sent / (share * rate))
    return min(found)
