"""The kernels of a Transformer's layers on a device, and the seconds that they take.

A matmul of m x k with k x n has 2 m n k FLOPs forward and twice as many backward, in
two kernels. What is not a matmul moves bytes: what it reads and writes of half-size
numbers, masks of one byte. With t devices along tensor each has 1/t of heads and of the
feed-forward part; norms, dropout and residuals are of all features on each, or of 1/t
of the tokens with sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198).

    kernel       max(FLOPs / (peak e(FLOPs) matmul), bytes / (bandwidth memory)) + start
    operations   max(sum of kernels, issue x number of operations)

e is the device's efficiency by the size of a kernel, as a share of its best; `matmul`
and `memory` are the shares of the peaks that the best kernels reach, `issue` the time
of the host for an operation and its kernels. Devices wait for the host where kernels
are short.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jaxdist.core.cluster.device import Device
from jaxdist.oracle.published.megatron.model import MegatronModel

_ELEMENT_BYTES: Final = 2
"""Bytes of a number."""
MISALIGNED_FACTOR: Final = 0.5
"""Share of its speed that a matmul keeps with sides that are no multiples of 8
(assumed: tensor cores are fed in two reads then)."""


@dataclass(frozen=True)
class KernelCost:
    """One kernel, or several at once on as many matrices."""

    flops: float
    """Of matmuls, 0 where none is done."""
    bytes_moved: float
    """Bytes that are read and written."""
    is_aligned: bool = True
    """Sides of the matrices are multiples of 8, as tensor cores take them."""


@dataclass(frozen=True, kw_only=True)
class LayerOperation:
    """An operation of a layer: its forward kernel, and those of its backward pass."""

    forward: KernelCost
    backward: tuple[KernelCost, ...]
    is_attention_core: bool = False
    """Between queries, keys and values: computed again where that is selective."""


def matmul(
    m: int, n: int, k: int, *, count: int = 1, is_attention_core: bool = False
) -> LayerOperation:
    """Return m x k times k x n, `count` at once; backward in two kernels."""
    # Each matrix is read or written once; a tile that stays in cache is no traffic.
    moved = _ELEMENT_BYTES * count * (m * k + k * n + m * n)
    one = KernelCost(2.0 * m * n * k * count, moved, not (m % 8 or n % 8 or k % 8))
    return LayerOperation(
        forward=one, backward=(one, one), is_attention_core=is_attention_core
    )


def memory_operation(
    forward_bytes: float, backward_bytes: float, *, is_attention_core: bool = False
) -> LayerOperation:
    """Return an operation that moves so many bytes forward and backward."""
    # A kernel that moves nothing is never launched.
    back = (KernelCost(0, backward_bytes),) if backward_bytes else ()
    return LayerOperation(
        forward=KernelCost(0, forward_bytes),
        backward=back,
        is_attention_core=is_attention_core,
    )


def layer_operations(
    model: MegatronModel, microbatch: int, tensor: int, *, sequence_parallel: bool
) -> tuple[LayerOperation, ...]:
    """Return the operations of one layer on one device.

    Args:
        model: sizes of the whole.
        microbatch: samples.
        tensor: devices that share the layer.
        sequence_parallel: norms and dropout are split over tokens.
    """
    s, h, half = model.sequence, model.hidden, _ELEMENT_BYTES
    # The tensor axis splits heads and the feed-forward part; norms, dropout and
    # residuals are whole on each device unless sequence parallelism splits their
    # tokens.
    tokens, heads = microbatch * s, microbatch * model.heads // tensor
    whole = tokens * h / (tensor if sequence_parallel else 1)
    own, inner = model.attention_width // tensor, model.feedforward // tensor
    wide, deep, scores = half * tokens * own, half * tokens * inner, heads * s * s
    # Bytes of the whole arrays that are read and written, two a number, one a mask.
    norm = memory_operation(2 * half * whole, 5 * half * whole)
    # bias, dropout with a mask of one byte, residual
    residual = memory_operation(7 * whole, 8 * whole)
    # Read and written forward; backward reads the result and its gradient, and writes
    # one.
    softmax = memory_operation(
        2 * half * scores, 3 * half * scores, is_attention_core=True
    )
    dropout = memory_operation(5 * scores, 5 * scores, is_attention_core=True)
    # Attention, then the feed-forward part. The core between queries, keys and values
    # is marked: selective recomputation repeats it alone.
    attention = (
        norm,
        matmul(tokens, 3 * own, h),
        memory_operation(6 * wide, 6 * wide),  # queries, keys, values
        matmul(s, s, model.head_size, count=heads, is_attention_core=True),
        softmax,
        dropout,
        matmul(s, model.head_size, s, count=heads, is_attention_core=True),
        memory_operation(2 * wide, 2 * wide),  # heads beside another
        matmul(tokens, h, own),
        residual,
    )
    return (
        *attention,
        norm,
        matmul(tokens, inner, h),
        memory_operation(2 * deep, 3 * deep),  # bias, GELU
        matmul(tokens, h, inner),
        residual,
    )


def head_operations(
    model: MegatronModel, microbatch: int, vocabulary_rows: int
) -> tuple[LayerOperation, ...]:
    """Return the operations of a device's part of the head, and of the loss.

    Args:
        model: sizes of the whole.
        microbatch: samples.
        vocabulary_rows: outputs that the device has.
    """
    # The head computes scores of the device's part of the vocabulary; the loss passes
    # over them in float32.
    tokens = microbatch * model.sequence
    scores, whole, half = (
        tokens * vocabulary_rows,
        tokens * model.hidden,
        _ELEMENT_BYTES,
    )
    return (
        memory_operation(2 * half * whole, 5 * half * whole),  # norm
        matmul(tokens, vocabulary_rows, model.hidden),
        memory_operation(6 * scores, 6 * scores),  # to float32, and back
        memory_operation(4 * scores, 0),  # the largest
        memory_operation(8 * scores, 0),  # what is below it
        memory_operation(8 * scores, 0),  # exponents
        memory_operation(4 * scores, 0),  # their sum
        memory_operation(8 * scores, 8 * scores),  # parts of it, times the slope
    )


@dataclass(frozen=True, kw_only=True)
class MegatronRates:
    """The shares of a cluster's peaks that are reached; `calibrate fit` fits them."""

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

    def busy_seconds(self, rates: MegatronRates) -> float:
        """Return the seconds that the device works."""
        matmul, memory = rates.matmul, rates.memory
        work = sum(max(c / matmul, m / memory) for c, m in self.costs)
        return work + self.start * len(self.costs)

    def __add__(self, other: "PassCost") -> "PassCost":
        return PassCost(costs=self.costs + other.costs, start=self.start)

    def issue_seconds(self, rates: MegatronRates) -> float:
        """Return the seconds in which the host issues them."""
        return len(self.costs) * rates.issue

    def seconds(self, rates: MegatronRates) -> float:
        """Return the seconds that it takes, the device's or the host's."""
        # Kernels are issued ahead, so only the longer of the two shows.
        return max(self.busy_seconds(rates), self.issue_seconds(rates))


def pass_cost(kernels: Sequence[KernelCost], device: Device) -> PassCost:
    """Return a pass over kernels, which are issued one by one."""
    curve = device.efficiency
    # The rates are shares that the best kernels reach, so the curve is taken relative
    # to its best.
    best, costs = max(share for _, share in curve.points), []
    for kernel in kernels:
        moved, computed = kernel.bytes_moved / device.memory_bandwidth.value, 0.0
        if kernel.flops:
            aligned = 1 if kernel.is_aligned else MISALIGNED_FACTOR
            share = curve.at(kernel.flops) / best * aligned
            computed = kernel.flops / (device.peak("float16").value * share)
        costs.append((computed, moved))
    return PassCost(costs=tuple(costs), start=device.launch.value)
