"""Data parallelism: each replica has its own samples, and gradients are summed.

Rule: the global batch is a multiple of data x fsdp and of the microbatches; replicas
that share statistics are a whole part of an axis.
Traffic a step (G parameters' bytes, C channels of a norm):

    gradients    an all-reduce of G and of the loss over all axes that share the loss;
                 of a split parameter's gradient over those that do not split it
    statistics   mean and variance of each batch norm and, backward, their gradients:
                 4 all-reduces of C numbers over the devices that share them
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxdist.core.axes import BATCH_AXES, SPATIAL_AXES, sub_axis_name
from jaxdist.core.dtypes import accumulation_dtype, real_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import BatchNorm
from jaxdist.layers.tensor_role import Roles
from jaxdist.partition.param_sharding import LeafSharding
from jaxdist.partition.traffic import PlannedCollective, nontrivial_axes
from jaxdist.profile.layer_calls import LayerCall, calls_of_type


def check_batch_size(plan: Plan, batch: int, microbatches: int = 1) -> None:
    """Refuse a global batch that does not divide over the mesh and its microbatches.

    Raises:
        BadInput: with the nearest batches that do.
    """
    # With plan.spatial_end_mode=samples the spatial axes split the batch as data does.
    exchanged = plan.spatial_end_mode == "samples"
    shards = plan.mesh.size(*plan.sample_axes) * microbatches
    if batch % shards:
        # Rounding down may give no sample at all, which is no remedy.
        near = sorted({batch // shards * shards, -(-batch // shards) * shards} - {0})
        raise BadInput(
            "the global batch does not divide over the mesh",
            rule="data.batch is a multiple of "
            + "plan.mesh.replica x " * (plan.replicas > 1)
            + "plan.mesh.data x plan.mesh.fsdp"
            + " x plan.mesh.expert" * (plan.mesh.expert > 1)
            + " x the spatial axes" * exchanged
            + " x optim.accumulate" * (microbatches > 1),
            values=f"data.batch = {batch}, {plan.title} splits it in {shards}"
            + f" with {microbatches} microbatches" * (microbatches > 1),
            remedy=(
                " or ".join(f"data.batch={size}" for size in near),
                *["plan.spatial_end_mode=repeat"] * exchanged,
            ),
        )


def check_norm_groups(plan: Plan, calls: Sequence[LayerCall]) -> None:
    """Refuse batch norms whose groups of replicas the mesh does not have.

    Raises:
        BadInput: with the nearest groups that it has.
    """
    # A group lies along part of fsdp, the innermost axis of the batch, or along all of
    # it and part of data: only then is it one sub-axis for a collective.
    shards, inner = plan.mesh.batch_shards, plan.mesh.fsdp
    sizes = [
        size
        for size in range(1, shards + 1)
        if inner % size == 0
        or (size % inner == 0 and plan.mesh.data % (size // inner) == 0)
    ]
    for call in calls_of_type(calls, BatchNorm):
        group = _norm_group_size(plan, call.layer)
        if group not in sizes:
            nearest = min(sizes, key=lambda size: abs(size - group))
            raise BadInput(
                "the replicas do not divide into groups for batch statistics",
                rule="model.norm_group divides plan.mesh.fsdp, or is plan.mesh.fsdp "
                "times a divisor of plan.mesh.data",
                values=f"{call.path}: model.norm_group = {group}, {plan.title} has "
                f"{shards} replicas",
                remedy=f"model.norm_group={nearest}",
            )


def batch_group_axes(plan: Plan, replicas: int) -> tuple[str, ...]:
    """Return the innermost axes of the batch that so many neighbouring replicas fill.

    >>> from jaxdist.core.plan import MeshShape
    >>> batch_group_axes(Plan(mesh=MeshShape(data=4, fsdp=2)), 4)
    ('data[2]', 'fsdp')
    """
    found: list[str] = []
    for axis in reversed(nontrivial_axes(plan, BATCH_AXES)):
        # Neighbouring replicas fill the innermost axis first, then outer ones in turn.
        here = min(replicas, size := plan.mesh.size(axis))
        if here > 1:
            found.insert(0, axis if here == size else sub_axis_name(axis, here))
        replicas //= here
    return tuple(found)


def _norm_group_size(plan: Plan, norm: BatchNorm) -> int:
    return plan.mesh.batch_shards if norm.statistics == "global" else norm.group


def gradient_traffic(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    reduce_axes: Sequence[tuple[str, ...]],
    updates: int = 1,
) -> Iterator[PlannedCollective]:
    """Yield the exact all-reduces of gradients and loss, one row for arrays of a size.

    Scalars and vectors that are summed over the same axes travel as one array
    (`jaxdist.partition.gradient_buckets.all_reduce_leaves`).

    Args:
        plan: the layout.
        leaves: all parameters.
        reduce_axes: axes over which the gradient of each is summed.
        updates: parameter updates a step; the loss is summed once.
    """
    # The loss is summed in the widest dtype of a parameter, float32 at least, so it
    # travels with the vectors of that dtype.
    width = max(4, *(real_dtype(leaf.dtype).itemsize for leaf in leaves))
    loss = plan.sum_axes, np.dtype(f"float{8 * width}")
    matrices: Counter[tuple[tuple[str, ...], int]] = Counter()
    vectors: Counter[tuple[tuple[str, ...], np.dtype[Any]]] = Counter({loss: width})
    times = {loss: 1}
    for leaf, over in zip(leaves, reduce_axes, strict=True):
        size = math.prod(leaf.local_shape(plan)) * np.dtype(leaf.dtype).itemsize
        # Vectors and scalars are joined per dtype and axes; matrices travel alone, so
        # that their sums overlap with the rest of the backward pass.
        if len(leaf.shape) < 2:
            together = over, np.dtype(leaf.dtype)
            vectors[together] += updates * size
            times[together] = updates
        else:
            matrices[over, size] += updates
    sums = [(over, n * size, n) for (over, size), n in matrices.items()]
    sums += [(key[0], payload, times[key]) for key, payload in vectors.items()]
    for axes, payload, arrays in sums:
        if axes:
            yield PlannedCollective(
                what="all-reduce",
                kind="all-reduce",
                axes=axes,
                payload=payload,
                layer="reduce_gradients",
                arrays=arrays,
            )


def batch_norm_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield the all-reduces of batch norms, forward and backward."""
    for call in calls_of_type(calls, BatchNorm):
        norm: BatchNorm = call.layer
        width = call.shape[-1] * accumulation_dtype(call.dtype).itemsize
        # Between the layers of a tensor-parallel pair a device has a slice of channels.
        width //= plan.mesh.tensor if roles.get(call.path) == "inner" else 1
        # Statistics cover whole images, so the spatial axes share them in any case.
        # Forward the mean and then the variance, backward the gradients of both: 4.
        batch_axes = batch_group_axes(plan, _norm_group_size(plan, norm))
        both = 2 * (1 + call.input_gradient)
        parts = [((*batch_axes, *nontrivial_axes(plan, SPATIAL_AXES)), both)]
        if norm.statistics == "replica":
            # Statistics of each replica alone, but one running average of all of them:
            # mean and variance, forward alone.
            parts.append((nontrivial_axes(plan, BATCH_AXES), 2))
        for axes, arrays in parts:
            if axes:
                yield PlannedCollective(
                    what="statistics",
                    kind="all-reduce",
                    axes=axes,
                    payload=arrays * width,
                    layer=call.path,
                    arrays=arrays,
                )
