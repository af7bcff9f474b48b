"""The operations of a Transformer with flash attention, and the work of a pass.

    seconds of a pass = matmul / (peak m) + attention / (peak a) + bytes / (bandwidth b)

Matmuls don't hide what they read and write: the three parts add up. m, a and b are the
shares of the device's peaks that large matmuls, flash attention and kernels bound by
memory reach. A matmul with an n x k matrix of weights does 1 + S (1/n + 1/k) times its
FLOPs, since tiles are filled and drained. Flash attention is causal, so a forward pass
does 2 s^2 h FLOPs a sample and not 4 (Dao et al. 2022, arXiv 2205.14135).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from jaxdist.core.cluster.device import Device
from jaxdist.oracle.published.megatron.kernels import (
    KernelCost,
    LayerOperation,
    matmul,
    memory_operation,
)
from jaxdist.oracle.published.megatron.model import MegatronModel

FILL_SIDE: Final = 256
"""S, columns for which the tiles of a matmul wait (assumed: two tiles of 128)."""
ATTENTION_BACKWARD: Final = 4.0
"""Backward over forward time of flash attention (assumed: it does 2.5 times the FLOPs,
in kernels that reach about 0.6 of the forward kernel's speed)."""
COMPUTE_DTYPE: Final = "bfloat16"
"""Of matmuls and activations."""


@dataclass(frozen=True, kw_only=True)
class FsdpRates:
    """What is reached of a device and its links; `calibrate fit` fits some of them."""

    matmul: float
    """m, share of the peak FLOP/s that matmuls of large sides reach."""
    attention: float
    """a, the same of flash attention, forward, by the FLOPs of its causal half."""
    interference: float
    """Seconds of computing that are lost for each second of a collective beside it."""
    memory: float
    """b, share of the memory's bandwidth."""
    inside: float
    """Share of the bandwidth of links inside a host."""
    network: float
    """Share of the bandwidth of links between hosts."""


@dataclass(frozen=True, kw_only=True)
class PassWork:
    """What a pass over some operations does, for any rates."""

    matmul: float = 0.0
    """FLOPs of matmuls, with those that fill their tiles."""
    attention: float = 0.0
    """FLOPs of attention, at the speed of its forward pass."""
    bytes_moved: float = 0.0
    """Bytes that are read and written."""

    def __add__(self, other: "PassWork") -> "PassWork":
        return PassWork(
            matmul=self.matmul + other.matmul,
            attention=self.attention + other.attention,
            bytes_moved=self.bytes_moved + other.bytes_moved,
        )

    def seconds(self, rates: FsdpRates, device: Device) -> float:
        """Return the seconds that a device takes.

        Raises:
            BadInput: the device has no speed for bfloat16.
        """
        peak, moved = device.peak(COMPUTE_DTYPE).value, device.memory_bandwidth.value
        return (
            self.matmul / (peak * rates.matmul)
            + self.attention / (peak * rates.attention)
            + self.bytes_moved / (moved * rates.memory)
        )


def pass_work(operations: Iterable[LayerOperation]) -> tuple[PassWork, PassWork]:
    """Return the work of operations, forward and backward."""
    forward, backward = PassWork(), PassWork()
    for one in operations:
        forward += _kernel_work(one.forward, one.is_attention_core)
        for kernel in one.backward:
            backward += _kernel_work(kernel, one.is_attention_core)
    return forward, backward


def _kernel_work(kernel: KernelCost, is_attention: bool) -> PassWork:
    flops = {"attention" if is_attention else "matmul": kernel.flops}
    return PassWork(bytes_moved=kernel.bytes_moved, **flops)


def dense(tokens: int, outputs: int, inputs: int) -> LayerOperation:
    """Return a product of tokens with a matrix of weights; backward in two kernels."""
    one = matmul(tokens, outputs, inputs).forward
    # All three products have both sides of the weights as a side or as their depth.
    filled = 1 + FILL_SIDE * (1 / outputs + 1 / inputs)
    kernel = replace(one, flops=filled * one.flops)
    return LayerOperation(forward=kernel, backward=(kernel, kernel))


def block_operations(
    model: MegatronModel, microbatch: int
) -> tuple[LayerOperation, ...]:
    """Return the operations of one block, without dropout.

    Args:
        model: sizes.
        microbatch: samples.
    """
    tokens, h, f = microbatch * model.sequence, model.hidden, model.feedforward
    wide = model.attention_width
    # Numbers, each of two bytes: the factors below are bytes, read and written.
    whole, heads, deep = tokens * h, tokens * wide, tokens * f
    # Backward passes of norms read the gradient and the input twice: for the input's
    # gradient, which is written, and for those of the weights.
    norm = memory_operation(4 * whole, 10 * whole)
    residual = memory_operation(6 * whole, 6 * whole)
    # Gradients of biases are sums over tokens, of three, one and one outputs of h.
    biases = memory_operation(0, 2 * (3 * heads + 2 * whole + deep))
    # Causal: half of the 4 s^2 h FLOPs a sample of both products.
    scores = 2.0 * tokens * model.sequence * wide
    # Backward in float32: the products of outputs with their gradients, zeros and sums
    # for the gradient of queries, which is rounded; then the three gradients are put
    # beside another for the projection.
    attention = LayerOperation(
        forward=KernelCost(scores, 0.0),
        backward=(KernelCost(ATTENTION_BACKWARD * scores, 26 * heads),),
        is_attention_core=True,
    )
    return (
        norm,
        dense(tokens, 3 * wide, h),
        attention,
        dense(tokens, h, wide),
        residual,
        norm,
        dense(tokens, f, h),
        memory_operation(4 * deep, 6 * deep),  # GELU
        dense(tokens, h, f),
        residual,
        biases,
    )


def embedding_operations(
    model: MegatronModel, microbatch: int
) -> tuple[LayerOperation, ...]:
    """Return the operations before the first block: tokens plus positions."""
    whole = microbatch * model.sequence * model.hidden
    return (memory_operation(4 * whole, 4 * whole), memory_operation(6 * whole, 0))


def head_operations(
    model: MegatronModel, microbatch: int
) -> tuple[LayerOperation, ...]:
    """Return the operations behind the last block: norm, head, fused cross entropy."""
    tokens = microbatch * model.sequence
    whole, scores = tokens * model.hidden, tokens * model.vocabulary
    return (
        memory_operation(4 * whole, 10 * whole),
        dense(tokens, model.vocabulary, model.hidden),
        # One kernel reads the scores, and one turns them into their gradients in place.
        memory_operation(2 * scores, 4 * scores),
    )
