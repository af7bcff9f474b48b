"""The machine of ParaDL's runs, and constants of the software that ran on it."""

from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.sourced_number import SourcedNumber

_STREAM_EFFICIENCY: Final = 0.88
"""Share of the datasheet's memory bandwidth that copies reach, about."""
_LEADER_CONTENTION: Final = SourcedNumber(
    2.0, "published: phi of leaders in a log of ParaDL's tool"
)
_HOST_LINK_ALPHA: Final = SourcedNumber(
    20.11e-6, "published: constants of ParaDL's tool"
)
_CONV_EFFICIENCY: Final = SourcedNumber(
    0.79, "fitted: by hand, ParaDL's profile of VGG16"
)
_MIN_KERNEL_FEATURES: Final = SourcedNumber(
    32.0, "assumed: features that a kernel makes at least"
)
_CALL_OVERHEAD: Final = SourcedNumber(
    1e-3, "assumed: ten calls from Python, 0.1 ms each"
)
_LOADER_RATE: Final = SourcedNumber(
    64 * 4 * 3 * 226 * 226 / 0.18384,
    "measured: ParaDL's run of ResNet50 on one GPU, which its reader kept up with",
)
_OVERLAP: Final = SourcedNumber(
    0.0, "published: ChainerMN sums after the backward pass"
)


@dataclass(frozen=True, kw_only=True)
class RingLink:
    """How devices are connected that are within one part of the machine."""

    max_devices: int
    """The most that are in such a part."""
    alpha: SourcedNumber
    """Seconds that a message takes without its bytes."""
    bandwidth: SourcedNumber
    """Bytes a second of the slowest link between two neighbours in a ring."""


@dataclass(frozen=True, kw_only=True)
class ParadlSystem:
    """Constants of the model; those that are fitted are arguments, not fields."""

    host_devices: int
    """Devices of a host."""
    ring_links: tuple[RingLink, ...]
    """Innermost first: a host, a leaf switch, a rack, the machine."""
    host_link_bandwidth: SourcedNumber
    """Bytes a second between a device and its host."""
    peak_flops: SourcedNumber
    """FLOPs a second."""
    memory_bandwidth: SourcedNumber
    """Bytes a second that layers without weights read and write."""
    leader_contention: SourcedNumber = _LEADER_CONTENTION
    """Contention of sums over one device of each group, beyond a leaf switch."""
    host_link_alpha: SourcedNumber = _HOST_LINK_ALPHA
    """Seconds of a message that goes through hosts, without its bytes."""
    conv_efficiency: SourcedNumber = _CONV_EFFICIENCY
    """Share of `peak_flops` in convolutions."""
    min_kernel_features: SourcedNumber = _MIN_KERNEL_FEATURES
    """A convolution with fewer features takes as long as one with so many."""
    call_overhead: SourcedNumber = _CALL_OVERHEAD
    """Seconds that a layer with split features costs more than its kernels."""
    loader_rate: SourcedNumber = _LOADER_RATE
    """Bytes of samples a second that one reader makes ready, as the network reads them;
    no less than this."""
    overlap: SourcedNumber = _OVERLAP
    """Share of the backward pass behind which gradients may be summed."""
    element_bytes: int = 4
    """Bytes."""

    def ring_link(self, devices: int) -> RingLink:
        """Return how so many neighbouring devices are connected."""
        # Parts are sorted from a host up, so the first that holds the ring is the
        # closest.
        return next(
            (one for one in self.ring_links if devices <= one.max_devices),
            self.ring_links[-1],
        )


def paradl_system(cluster: Cluster) -> ParadlSystem:
    """Return the constants of a cluster: a ring crosses one port at a time."""
    # In a host the slowest link of a ring is what a device sends. Beyond, the ring
    # leaves a host by one of its ports, and that is the slowest.
    rates = [cluster.levels[0].bandwidth]
    if len(cluster.levels) > 1:
        first = cluster.levels[1]
        beyond = first.port_bandwidth or first.bandwidth
        rates += [beyond] * (len(cluster.levels) - 1)
    reaches = (
        RingLink(max_devices=devices, alpha=level.alpha, bandwidth=rate)
        for devices, level, rate in zip(cluster.sizes, cluster.levels, rates)
    )
    device, peak = cluster.device, cluster.device.peak("float32")
    return ParadlSystem(
        host_devices=cluster.levels[0].size,
        ring_links=tuple(reaches),
        host_link_bandwidth=cluster.host_link or cluster.levels[0].bandwidth,
        # ParaDL's runs train in float32; a ring crosses one port at a time.
        peak_flops=peak,
        memory_bandwidth=device.memory_bandwidth.times(
            _STREAM_EFFICIENCY, "what copies reach, about"
        ),
    )
