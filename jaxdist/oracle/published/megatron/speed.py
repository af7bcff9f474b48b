"""Speed: the seconds of kernels on a device, and of the host that issues them.

    kernel       max(FLOPs / (peak e(FLOPs) matmul), bytes / (bandwidth memory)) + start
    operations   max(sum of kernels, issue x number of operations)

e is the device's efficiency by the size of a kernel, as a share of its best; `matmul`
and `memory` are the shares of the peaks that the best kernels reach, `issue` the time
of the host for an operation and its kernels. Devices wait for the host where kernels
are short.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster.device import Device
from jaxdist.oracle.published.megatron.kernels import KernelCost, LayerOperation

MISALIGNED_FACTOR: Final = 0.5
"""Share of its speed that a matmul keeps with sides that are no multiples of 8
(assumed: tensor cores are fed in two reads then)."""


@dataclass(frozen=True, kw_only=True)
class MegatronRates:
    """What of a cluster's peaks is reached; what `calibrate fit` fits."""

    matmul: float
    """Share of the peak FLOP/s that large matmuls reach."""
    memory: float
    """Share of the memory's bandwidth."""
    issue: float
    """Seconds in which the host issues an operation, with its kernels."""
    network: float
    """Share of the bandwidth of links between hosts."""
    inside: float
    """Share of the bandwidth of links inside a host."""
    call: float
    """Seconds that a collective takes before its first byte."""


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """One pass over operations, in seconds at the device's peaks."""

    costs: tuple[tuple[float, float], ...]
    """Of each kernel: to compute, to move."""
    start: float
    """Of each kernel."""

    def busy(self, rates: MegatronRates) -> float:
        """Return the seconds that the device works."""
        matmul, memory = rates.matmul, rates.memory
        work = sum(max(c / matmul, m / memory) for c, m in self.costs)
        return work + self.start * len(self.costs)

    def __add__(self, other: "PassCost") -> "PassCost":
        return PassCost(costs=self.costs + other.costs, start=self.start)

    def issued(self, rates: MegatronRates) -> float:
        """Return the seconds in which the host issues them."""
        return len(self.costs) * rates.issue

    def seconds(self, rates: MegatronRates) -> float:
        """Return the seconds that it takes, the device's or the host's."""
        return max(self.busy(rates), self.issued(rates))


def forward_pass(operations: Iterable[LayerOperation], device: Device) -> PassCost:
    """Return the forward pass over operations."""
    return _pass_cost([one.forward for one in operations], device)


def backward_pass(operations: Iterable[LayerOperation], device: Device) -> PassCost:
    """Return the backward pass over operations; its kernels are issued one by one."""
    return _pass_cost([kernel for one in operations for kernel in one.backward], device)


def _pass_cost(kernels: Sequence[KernelCost], device: Device) -> PassCost:
    return PassCost(
        costs=tuple(_kernel_seconds(kernel, device) for kernel in kernels),
        start=device.launch.value,
    )


def _kernel_seconds(kernel: KernelCost, device: Device) -> tuple[float, float]:
    moved = kernel.bytes_moved / device.memory_bandwidth.value
    if not kernel.flops:
        return 0.0, moved
    curve = device.efficiency
    best = max(share for _, share in curve.points)
    share = (
        curve.at(kernel.flops) / best * (1 if kernel.is_aligned else MISALIGNED_FACTOR)
    )
    return kernel.flops / (device.peak("float16").value * share), moved
