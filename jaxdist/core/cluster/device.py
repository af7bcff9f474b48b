"""A device: its peak FLOP rates, memory, and the efficiency of kernels by size."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from jaxdist.core.cluster.collective_cost import interpolate
from jaxdist.core.cluster.kernel_timings import BlockTimings, KernelTimings
from jaxdist.core.cluster.layer_timings import LayerTimings
from jaxdist.core.cluster.sourced_number import SourcedNumber
from jaxdist.core.errors import BadInput

_FREE: Final = SourcedNumber(0.0, "assumed: kernels start for nothing")
_ALONE: Final = SourcedNumber(1.0, "assumed: each device has processors of its own")
_UNDISTURBED: Final = SourcedNumber(0.0, "assumed: collectives slow no computing")


@dataclass(frozen=True, kw_only=True)
class EfficiencyCurve:
    """Share of the peak that kernels of a size reach; straight between the points."""

    points: tuple[tuple[float, float], ...]
    """(FLOPs of a kernel, share of the peak), FLOPs ascending."""
    origin: str
    """Where they are from, as of a `SourcedNumber`."""

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        # Through the set, so that equal sizes do not count as ascending.
        ascends = sizes == sorted(set(sizes)) and bool(sizes) and sizes[0] > 0
        if not ascends or not all(0 < share <= 1 for _, share in self.points):
            raise BadInput(
                "no kernels are that efficient",
                rule="points are [FLOPs, share of the peak], FLOPs above 0 and "
                "ascending, shares above 0 and at most 1",
                values=f"{[list(point) for point in self.points]}",
                remedy="[[1e6, 0.05], [1e9, 0.6]]",
            )
        SourcedNumber(0, self.origin)  # refuses an origin of no known kind

    def at(self, flops: float) -> float:
        """Return the share that a kernel of so many FLOPs reaches.

        Between two points it is straight over the logarithm of FLOPs; outside it is
        that of the nearest point.

        >>> EfficiencyCurve(points=((1e6, 0.1), (1e8, 0.5)), origin="given: me").at(1e7)
        0.3
        """
        share, sizes = interpolate(self.points, flops), [x for x, _ in self.points]
        # Logarithms differ in the last digit between C libraries.
        return round(share, 12) if sizes[0] < flops <= sizes[-1] else share


@dataclass(frozen=True, kw_only=True)
class Device:
    """What one device computes and keeps."""

    name: str
    """As its maker calls it."""
    flops: Mapping[str, SourcedNumber]
    """Peak FLOPs a second by dtype: `float32`, `bfloat16`."""
    memory: SourcedNumber
    """Bytes."""
    memory_bandwidth: SourcedNumber
    """Bytes a second, read or written."""
    efficiency: EfficiencyCurve
    """Share of the peak by the FLOPs of a kernel."""
    launch: SourcedNumber = _FREE
    """Seconds that every kernel takes at least."""
    crowd: SourcedNumber = _ALONE
    """Times as long as alone kernels take where all devices compute at once."""
    interference: SourcedNumber = _UNDISTURBED
    """Seconds of computing that are lost for each second of a collective beside it."""
    kernels: KernelTimings | None = None
    """Products and convolutions that were timed; they go before the efficiency."""
    layers: LayerTimings | None = None
    """Layers without products that were timed, the loss and the update."""
    blocks: BlockTimings | None = None
    """Whole blocks of networks that were timed; they go before their layers."""
    packing: Mapping[str, SourcedNumber] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Seconds a number that lossy ways of summing compute, by their names."""

    def __post_init__(self) -> None:
        if self.crowd.value < 1:
            raise BadInput(
                "devices that are faster in company",
                rule="crowd is the time of a kernel where all devices compute, over "
                "that where one does: at least 1",
                values=f"crowd: {self.crowd.value:g}",
                remedy="crowd: 1, of devices with processors of their own",
            )

    @property
    def is_cpu(self) -> bool:
        """Whether programs are compiled by XLA's CPU backend, by the device's name.

        Calibrated devices are called what JAX calls their kind.
        """
        return "cpu" in self.name.lower()

    @property
    def platform(self) -> str:
        """What JAX calls such devices, `cpu`, `gpu` or `tpu`, by the device's name."""
        if self.is_cpu:
            return "cpu"
        return "tpu" if "tpu" in self.name.lower() else "gpu"

    def peak(self, dtype: str) -> SourcedNumber:
        """Return the FLOPs a second in a dtype.

        Raises:
            BadInput: none is known.
        """
        if dtype not in self.flops:
            raise BadInput(
                f"{self.name} has no FLOP/s for {dtype}",
                rule=f"those of {', '.join(self.flops)} are known",
                values=f"dtype = {dtype}",
                remedy=f"device.flops.{dtype} in the cluster's file",
            )
        return self.flops[dtype]
