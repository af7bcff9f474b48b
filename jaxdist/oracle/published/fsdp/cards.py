"""The cards of measured FSDP steps, eight a host, with the links of their hosts.

Numbers are NVIDIA's, and those of the hosts where they were said
(github.com/mosaicml/llm-foundry @ 8c8dd48f, `scripts/train/benchmarking/README.md`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from jaxdist.core.cluster import Cluster
from jaxdist.core.cluster.cluster import Level
from jaxdist.core.cluster.device import Device, EfficiencyCurve
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.oracle.published.fsdp.layers import COMPUTE_DTYPE

HOST_DEVICES: Final = 8
_MAX_HOSTS: Final = 1024
"""More than any measured step had; the links are alike for any number."""


@dataclass(frozen=True, kw_only=True)
class FsdpCard:
    """A card on its hosts, and what its kernels share with cards of the same chip."""

    chip: str
    """Cards of one chip reach the same shares of their peaks."""
    cluster: Cluster
    """Hosts of eight."""
    utilisation_peak: float
    """FLOP/s that published utilisations are shares of."""


def _card(
    *,
    chip: str,
    device: str,
    gigabytes: float,
    memory_bandwidth: float,
    teraflops: float,
    nvlink: float,
    network: SourcedNumber,
) -> FsdpCard:
    sheet = f"datasheet: NVIDIA {device}"
    # A level must have a latency; the model of these steps does not read it.
    unused = SourcedNumber(5e-6, "assumed: the ring's own latency is NCCL's")
    return FsdpCard(
        chip=chip,
        utilisation_peak=1e12 * teraflops,
        cluster=Cluster(
            name=device,
            device=Device(
                name=device,
                flops={COMPUTE_DTYPE: SourcedNumber(1e12 * teraflops, sheet)},
                memory=SourcedNumber(1e9 * gigabytes, sheet),
                memory_bandwidth=SourcedNumber(memory_bandwidth, sheet),
                # Flat: how matmuls fall off with their sides is in the model of the
                # layers.
                efficiency=EfficiencyCurve(
                    points=((1.0, 1.0),),
                    origin="assumed: shares of the peak are constants of the rows",
                ),
            ),
            levels=(
                Level(
                    name="host",
                    size=HOST_DEVICES,
                    alpha=unused,
                    bandwidth=SourcedNumber(nvlink, sheet),
                ),
                Level(name="pod", size=_MAX_HOSTS, alpha=unused, bandwidth=network),
            ),
        ),
    )


_ROCE: Final = SourcedNumber(200e9, "given: 1,600 Gbit/s RoCE a host")

FSDP_CARDS: Final[Mapping[str, FsdpCard]] = MappingProxyType(
    {
        "h100": _card(
            chip="h100",
            device="H100-SXM5-80GB",
            gigabytes=80,
            memory_bandwidth=3.35e12,
            teraflops=989,
            nvlink=450e9,
            network=SourcedNumber(
                400e9, "assumed: 3,200 Gbit/s a host, which its rows do not say"
            ),
        ),
        "a100_80": _card(
            chip="a100",
            device="A100-SXM4-80GB",
            gigabytes=80,
            memory_bandwidth=2.039e12,
            teraflops=312,
            nvlink=300e9,
            network=_ROCE,
        ),
        "a100_40": _card(
            chip="a100",
            device="A100-SXM4-40GB",
            gigabytes=40,
            memory_bandwidth=1.555e12,
            teraflops=312,
            nvlink=300e9,
            network=_ROCE,
        ),
    }
)
"""By the names of the rows; bandwidths of a device inside of a host, of a host beyond,
one way."""
