"""Fully sharded data parallelism: each device stores a shard of what DP replicates.

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
from collections.abc import Iterator, Sequence
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
    """Yield the all-gathers of parameters and the reduce-scatters of gradients.

    Args:
        plan: the layout.
        leaves: all parameters.
        backward_reads: whether the backward pass reads each one's value.
        dtype: of the activations; None is the parameters' own.
        microbatches: microbatches a step, each of which reads the parameters.
        scatter_compressor: how gradients of matrices are summed.
        gather_compressor: how matrices are encoded; None: not at all.
    """
    # zero 3 gathers parameters in every microbatch; zero 1 gathers the new values once,
    # behind the update.
    shards = plan.mesh.size(FSDP_AXIS)
    reads = microbatches if plan.zero == 3 else 1
    read_again = {
        leaf.name for leaf, read in zip(leaves, backward_reads, strict=True) if read
    }
    # A matrix is a message of its own; vectors of one dtype travel as one array.
    messages: dict[str, list[LeafSharding]] = defaultdict(list)
    for leaf in leaves:
        if leaf.fsdp_dim is not None:
            vector = f"vectors of {np.dtype(leaf.dtype).name}"
            # A leaf that no dim of divides is whole on each device: nothing to gather.
            messages[leaf.name if len(leaf.shape) > 1 else vector].append(leaf)

    for name, group in messages.items():
        is_matrix = len(group[0].shape) > 1
        # A cast before the gather halves its bytes. Vectors are few and keep their
        # digits, and zero 1 sends the parameters themselves.
        narrow = is_matrix and plan.zero == 3 and dtype is not None
        sent = np.dtype(dtype if narrow else group[0].dtype)
        wide = accumulation_dtype(sent).itemsize
        whole = (math.prod(x.local_shape(plan, include_fsdp=False)) for x in group)
        part = sum(whole) // shards
        # Dropped after the forward pass; vectors are small and kept until the backward.
        backward = is_matrix and any(x.name in read_again for x in group)
        times_read = reads * (1 + backward)
        # An encoded shard has scales beside its numbers, so its codec counts the bytes.
        message = part * sent.itemsize
        if is_matrix and gather_compressor is not None:
            message = gather_compressor.message_bytes(part, wide)
        yield PlannedCollective(
            what="parameters",
            kind="all-gather",
            axes=(FSDP_AXIS,),
            payload=times_read * shards * message,
            layer=name,
            arrays=times_read,
        )
        # Sums of gradients are taken in float32 at least.
        sums = [("reduce-scatter", part * wide)]
        if is_matrix and isinstance(scatter_compressor, ReduceScatterAllReduce):
            payloads = scatter_compressor.reduce_scatter_payloads(
                part, wide, {FSDP_AXIS: shards}
            )
            sums = [(each.kind, each.payload_bytes) for each in payloads]
        for kind, payload in sums:
            yield PlannedCollective(
                what="gradients",
                kind=kind,
                axes=(FSDP_AXIS,),
                payload=payload,
                layer=name,
            )
