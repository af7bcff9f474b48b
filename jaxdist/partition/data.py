"""Data parallelism: every replica sees its own samples, and gradients are summed.

Rule: the global batch is a multiple of data x fsdp.
Traffic a step (G parameters' bytes, C channels of a norm):

    gradients    an all-reduce of G and of the loss over all axes that share the loss;
                 of a split parameter's gradient over those that do not split it
    statistics   mean and variance of each batch norm and, backward, their gradients:
                 4 all-reduces of C numbers over the devices that share them
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from jaxdist.collectives.reduce import axes_without
from jaxdist.core.axes import BATCH_AXES, SPATIAL_AXES
from jaxdist.core.dtypes import wide
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import BatchNorm
from jaxdist.layers.role import Roles
from jaxdist.partition.leaves import Leaf
from jaxdist.partition.traffic import Traffic, real_axes
from jaxdist.profile.calls import Call, of_kind


def check(plan: Plan, batch: int) -> None:
    """Refuse a global batch that does not divide over the mesh.

    Raises:
        BadInput: with the nearest batches that do.
    """
    shards = plan.mesh.batch_shards
    if batch % shards:
        near = sorted({batch // shards * shards, -(-batch // shards) * shards} - {0})
        raise BadInput(
            "the global batch does not divide over the mesh",
            rule="data.batch is a multiple of plan.mesh.data x plan.mesh.fsdp",
            values=f"data.batch = {batch}, {plan.title} splits it in {shards}",
            remedy=" or ".join(f"data.batch={size}" for size in near),
        )


def gradients(plan: Plan, leaves: Sequence[Leaf]) -> Iterator[Traffic]:
    """Yield the sums of gradients and loss, each over the axes that do not split it."""
    sums: Counter[tuple[str, ...]] = Counter()
    for leaf in leaves:
        size = math.prod(leaf.local(plan)) * np.dtype(leaf.dtype).itemsize
        sums[axes_without(plan.sum_axes, leaf.spec())] += size
    sums[plan.sum_axes] += max(4, *(np.dtype(leaf.dtype).itemsize for leaf in leaves))
    for axes, payload in sums.items():
        if axes:
            yield Traffic(
                what="all-reduce",
                kind="all-reduce",
                axes=axes,
                payload=payload,
                layer="reduce_gradients",
            )


def statistics(plan: Plan, calls: Sequence[Call], roles: Roles) -> Iterator[Traffic]:
    """Yield what batch norms sum, forward and backward."""
    for call in of_kind(calls, BatchNorm):
        norm, width = call.layer, call.shape[-1] * wide(call.dtype).itemsize
        width //= plan.mesh.tensor if roles.get(call.path) == "inner" else 1
        everyone = norm.statistics == "global"
        shared = (*SPATIAL_AXES, *(BATCH_AXES if everyone else ()))
        parts = [(shared, 4 * width)]
        if not everyone:  # one running average for all replicas, forward alone
            parts.append((BATCH_AXES, 2 * width))
        for group, payload in parts:
            if axes := real_axes(plan, group):
                yield Traffic(
                    what="statistics",
                    kind="all-reduce",
                    axes=axes,
                    payload=payload,
                    layer=call.path,
                )
