"""Kernels: what a layer's forward and backward passes multiply and move on a device.

A matmul of m x k with k x n has 2 m n k FLOPs forward and twice as many backward, in
two kernels. What is not a matmul moves bytes: what it reads and writes of half-size
numbers, masks of one byte. With t devices along tensor each has 1/t of heads and of the
feed-forward part; norms, dropout and residuals are of all features on each, or of 1/t
of the tokens with sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxdist.oracle.published.megatron.model import MegatronModel

_BYTES_PER_ELEMENT = 2
"""Bytes of a number."""


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
    """What a network does once: kernels forward, and those of its backward pass."""

    forward: KernelCost
    backward: tuple[KernelCost, ...]
    is_attention_core: bool = False
    """Between queries, keys and values: computed again where that is selective."""


def matmul(
    m: int, n: int, k: int, *, count: int = 1, is_attention_core: bool = False
) -> LayerOperation:
    """Return m x k times k x n, `count` at once; backward in two kernels."""
    moved = _BYTES_PER_ELEMENT * count * (m * k + k * n + m * n)
    one = KernelCost(2.0 * m * n * k * count, moved, not (m % 8 or n % 8 or k % 8))
    return LayerOperation(
        forward=one, backward=(one, one), is_attention_core=is_attention_core
    )


def memory_operation(
    forward_bytes: float, backward_bytes: float, *, is_attention_core: bool = False
) -> LayerOperation:
    """Return an operation that moves so many bytes forward and backward."""
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
    tokens = microbatch * model.sequence
    whole = tokens * model.hidden / (tensor if sequence_parallel else 1)
    return (
        *_attention(model, microbatch, tensor, whole),
        *_feedforward(model, tokens, tensor, whole),
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
    tokens = microbatch * model.sequence
    scores, whole = tokens * vocabulary_rows, tokens * model.hidden
    return (
        memory_operation(
            2 * _BYTES_PER_ELEMENT * whole, 5 * _BYTES_PER_ELEMENT * whole
        ),  # norm
        matmul(tokens, vocabulary_rows, model.hidden),
        memory_operation(6 * scores, 6 * scores),  # to float32, and back
        memory_operation(4 * scores, 0),  # the largest
        memory_operation(8 * scores, 0),  # what is below it
        memory_operation(8 * scores, 0),  # exponents
        memory_operation(4 * scores, 0),  # their sum
        memory_operation(8 * scores, 8 * scores),  # parts of it, times the slope
    )


def embedding_operations(
    model: MegatronModel, microbatch: int
) -> tuple[LayerOperation, ...]:
    """Return the operations of a device's part of the embedding."""
    whole = microbatch * model.sequence * model.hidden
    return (
        memory_operation(
            2 * _BYTES_PER_ELEMENT * whole, 2 * _BYTES_PER_ELEMENT * whole
        ),  # rows of tokens, and their sums
        memory_operation(
            3 * _BYTES_PER_ELEMENT * whole, _BYTES_PER_ELEMENT * whole
        ),  # with positions
        memory_operation(5 * whole, 5 * whole),  # dropout
    )


def _attention(
    model: MegatronModel, microbatch: int, tensor: int, norm_elements: float
) -> Iterator[LayerOperation]:
    s, h, d = model.sequence, model.hidden, model.head_size
    tokens, heads = microbatch * s, microbatch * model.heads // tensor
    own = model.attention_width // tensor
    scores = heads * s * s
    yield memory_operation(
        2 * _BYTES_PER_ELEMENT * norm_elements, 5 * _BYTES_PER_ELEMENT * norm_elements
    )  # norm
    yield matmul(tokens, 3 * own, h)
    yield memory_operation(
        6 * _BYTES_PER_ELEMENT * tokens * own, 6 * _BYTES_PER_ELEMENT * tokens * own
    )  # queries, keys, values
    yield matmul(s, s, d, count=heads, is_attention_core=True)
    yield memory_operation(
        2 * _BYTES_PER_ELEMENT * scores,
        3 * _BYTES_PER_ELEMENT * scores,
        is_attention_core=True,
    )  # softmax
    yield memory_operation(
        5 * scores, 5 * scores, is_attention_core=True
    )  # dropout, with its mask
    yield matmul(s, d, s, count=heads, is_attention_core=True)
    yield memory_operation(
        2 * _BYTES_PER_ELEMENT * tokens * own, 2 * _BYTES_PER_ELEMENT * tokens * own
    )  # heads beside another
    yield matmul(tokens, h, own)
    yield memory_operation(
        7 * norm_elements, 8 * norm_elements
    )  # bias, dropout, residual


def _feedforward(
    model: MegatronModel, tokens: int, tensor: int, norm_elements: float
) -> Iterator[LayerOperation]:
    h, own = model.hidden, model.feedforward // tensor
    yield memory_operation(
        2 * _BYTES_PER_ELEMENT * norm_elements, 5 * _BYTES_PER_ELEMENT * norm_elements
    )  # norm
    yield matmul(tokens, own, h)
    yield memory_operation(
        2 * _BYTES_PER_ELEMENT * tokens * own, 3 * _BYTES_PER_ELEMENT * tokens * own
    )  # bias, GELU
    yield matmul(tokens, h, own)
    yield memory_operation(
        7 * norm_elements, 8 * norm_elements
    )  # bias, dropout, residual
