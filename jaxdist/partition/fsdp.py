"""Fully sharded data parallelism: devices share out what data parallelism repeats.

Rule: a parameter is split along its largest dim that the fsdp axis divides; one that no
dim of divides stays whole. Samples divide over fsdp as over data.
Traffic a step of a parameter of W bytes (p devices along fsdp, V vectors together):

    zero 3   all-gather of W before its use, once more backward if it is no vector and
             its value has a part in a gradient, in each microbatch; reduce-scatter of
             its gradient, W / p
    zero 1   reduce-scatter of its gradient, W / p; all-gather of its new value, W

Parameters travel in the dtype of the activations, vectors in their own. Source:
Rajbhandari et al. 2020, arXiv:1910.02054, sections 5 and 7.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdist.collectives.compress.codec import Codec
from jaxdist.collectives.compress.method import (
    AllReduceAlgorithm,
    ReduceScatterAllReduce,
)
from jaxdist.collectives.registry import ALL_REDUCE_ALGORITHMS
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.plan import Plan
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.partition.traffic import PlannedCollective

FSDP_AXIS = "fsdp"


def fsdp_traffic(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    backward_reads: Sequence[bool],
    dtype: Any,
    microbatches: int = 1,
    scatter_compressor: AllReduceAlgorithm = ALL_REDUCE_ALGORITHMS["exact"],
    gather_compressor: Codec | None = None,
) -> Iterator[PlannedCollective]:
    """Yield what is gathered and scattered of parameters and gradients.

    Args:
        plan: the layout.
        leaves: all parameters.
        backward_reads: whether the backward pass reads each one's value.
        dtype: of the activations; None is the parameters' own.
        microbatches: microbatches a step, each of which reads the parameters.
        scatter_compressor: how gradients of matrices are summed.
        gather_compressor: how matrices travel; none: as they are.
    """
    sizes = {FSDP_AXIS: plan.mesh.size(FSDP_AXIS)}
    reads = microbatches if plan.zero == 3 else 1
    twice = {
        leaf.name for leaf, read in zip(leaves, backward_reads, strict=True) if read
    }
    for name, group in _message_groups(leaves).items():
        sent = _transport_dtype(group[0], dtype if plan.zero == 3 else None)
        numbers = sum(_gathered_elements(plan, leaf) for leaf in group)
        part, matrix = numbers // sizes[FSDP_AXIS], len(group[0].shape) > 1
        times_read = (
            reads * (1 + any(x.name in twice for x in group)) if matrix else reads
        )
        message = part * sent.itemsize
        if matrix and gather_compressor is not None:
            message = gather_compressor.message_bytes(
                part, accumulation_dtype(sent).itemsize
            )
        yield PlannedCollective(
            what="parameters",
            kind="all-gather",
            axes=(FSDP_AXIS,),
            payload=times_read * sizes[FSDP_AXIS] * message,
            layer=name,
            arrays=times_read,
        )
        way = (
            scatter_compressor
            if matrix and isinstance(scatter_compressor, ReduceScatterAllReduce)
            else None
        )
        for kind, payload in _reduce_scatter_payloads(
            way, part, accumulation_dtype(sent).itemsize, sizes
        ):
            yield PlannedCollective(
                what="gradients",
                kind=kind,
                axes=(FSDP_AXIS,),
                payload=payload,
                layer=name,
            )


def _reduce_scatter_payloads(
    way: ReduceScatterAllReduce | None,
    part: int,
    itemsize: int,
    sizes: Mapping[str, int],
) -> Iterator[tuple[str, int]]:
    """Yield kind and bytes of a sum whose parts have so many numbers."""
    if way is None:
        yield "reduce-scatter", part * itemsize
        return
    for payload in way.reduce_scatter_payloads(part, itemsize, sizes):
        yield payload.kind, payload.payload_bytes


def _gathered_elements(plan: Plan, leaf: LeafSharding) -> int:
    """Count the numbers of a leaf when it is put together."""
    return math.prod(leaf.local_shape(plan, include_fsdp=False))


def _message_groups(leaves: Sequence[LeafSharding]) -> dict[str, list[LeafSharding]]:
    """Group the shared leaves as they travel: alone, or as vectors of one dtype."""
    groups: dict[str, list[LeafSharding]] = defaultdict(list)
    for leaf in leaves:
        if leaf.fsdp_dim is not None:
            vector = f"vectors of {np.dtype(leaf.dtype).name}"
            groups[leaf.name if len(leaf.shape) > 1 else vector].append(leaf)
    return groups


def _transport_dtype(leaf: LeafSharding, dtype: Any) -> np.dtype[Any]:
    """Return the dtype in which a leaf travels."""
    return np.dtype(dtype if dtype is not None and len(leaf.shape) > 1 else leaf.dtype)
