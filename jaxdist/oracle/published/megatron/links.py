"""The seconds of all-reduces and sends of neighbouring or spread ranks on a cluster.

A group of n ranks of which q are in each host, on r = n / q hosts, sums S bytes by

    reduce-scatter, all-gather in hosts  2 (q-1)/q S / B_in + 2 (q-1) alpha_in
    ring over hosts, of parts            2 (r-1)/r S g / B_out + 2 (r-1) alpha_out

g groups of as many ranks share a host's links at the same time: g q = devices of a
host. A group on one host has the first line alone. A host's links carry S g of the
parts of its q ranks, since each has S / q. Patarasuk and Yuan 2009 for the ring.
"""

from dataclasses import dataclass

from jaxdist.core.cluster import Cluster
from jaxdist.oracle.published.megatron.kernels import MegatronRates


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """Ranks that all-reduce together, and the groups that do so beside them."""

    ranks_per_host: int
    """q, ranks of it in each host."""
    hosts: int
    """r, hosts that it is on."""
    groups_per_host: int
    """g, such groups on each host."""

    @property
    def ranks(self) -> int:
        """Return n."""
        return self.ranks_per_host * self.hosts


def rank_group(ranks: int, stride: int, host_devices: int) -> RankGroup:
    """Return a group of ranks that stand `stride` apart.

    Args:
        ranks: n.
        stride: product of the axes that are further inside.
        host_devices: devices of a host.

    >>> rank_group(16, 4, 8)
    RankGroup(ranks_per_host=2, hosts=8, groups_per_host=4)
    """
    # Ranks that are far apart lie alone in their hosts; near ones fill them.
    inside = max(1, min(ranks, host_devices // min(stride, host_devices)))
    return RankGroup(
        ranks_per_host=inside,
        hosts=-(-ranks // inside),
        groups_per_host=max(1, host_devices // inside),
    )


def all_reduce_seconds(
    size: float, group: RankGroup, cluster: Cluster, rates: MegatronRates
) -> float:
    """Return the seconds in which a group sums `size` bytes of each rank."""
    if group.ranks == 1:
        return 0.0
    # A cluster of one level has the same links between its hosts as inside of them.
    host, beyond = cluster.levels[0], cluster.levels[:2][-1]
    q, r = group.ranks_per_host, group.hosts
    took = rates.call
    # Hierarchical all-reduce: a reduce-scatter and an all-gather inside of each host,
    # and rings between hosts for the parts of each rank.
    if q > 1:
        rate = host.bandwidth.value * rates.inside
        took += 2 * (q - 1) / q * size / rate + 2 * (q - 1) * host.alpha.value
    if r > 1:
        rate = beyond.bandwidth.value * rates.network / beyond.oversubscription.value
        # All groups of a host share its links to other hosts at the same time.
        took += 2 * (r - 1) / r * size * group.groups_per_host / rate
        took += 2 * (r - 1) * beyond.alpha.value
    return took


def send_seconds(
    size: float, crossing_devices: int, cluster: Cluster, rates: MegatronRates
) -> float:
    """Return the seconds in which devices send `size` bytes each, at once.

    Args:
        size: bytes of one device.
        crossing_devices: devices of a host that send to another one; 0 where all stay
            inside.
        cluster: whose links.
        rates: the shares of them that are reached.
    """
    host, beyond = cluster.levels[0], cluster.levels[:2][-1]
    # Sends that stay inside of a host use its own links, one pair each.
    if not crossing_devices:
        rate = host.bandwidth.value * rates.inside
        return rates.call + size / rate + host.alpha.value
    rate = beyond.bandwidth.value * rates.network / beyond.oversubscription.value
    return rates.call + size * crossing_devices / rate + beyond.alpha.value
