"""Data parallelism: every replica sees its own samples, and gradients are summed.

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
from jaxdist.core.dtypes import accumulation_dtype
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
    dealt = plan.spatial_then == "samples"
    shards = plan.mesh.size(*plan.sample_axes) * microbatches
    if batch % shards:
        near = sorted({batch // shards * shards, -(-batch // shards) * shards} - {0})
        raise BadInput(
            "the global batch does not divide over the mesh",
            rule="data.batch is a multiple of "
            + "plan.mesh.replica x " * (plan.replicas > 1)
            + "plan.mesh.data x plan.mesh.fsdp"
            + " x the spatial axes" * dealt
            + " x optim.accumulate" * (microbatches > 1),
            values=f"data.batch = {batch}, {plan.title} splits it in {shards}"
            + f" with {microbatches} microbatches" * (microbatches > 1),
            remedy=(
                " or ".join(f"data.batch={size}" for size in near),
                *["plan.spatial_then=repeat"] * dealt,
            ),
        )


def check_norm_groups(plan: Plan, calls: Sequence[LayerCall]) -> None:
    """Refuse batch norms whose groups of replicas the mesh does not have.

    Raises:
        BadInput: with the nearest groups that it has.
    """
    shards = plan.mesh.batch_shards
    sizes = [size for size in range(1, shards + 1) if _group_size_fits(plan, size)]
    for call in calls_of_type(calls, BatchNorm):
        group = _norm_group_size(plan, call.layer)
        if group not in sizes:
            raise BadInput(
                "the replicas do not divide into groups for batch statistics",
                rule="model.norm_group divides plan.mesh.fsdp, or is plan.mesh.fsdp "
                "times a divisor of plan.mesh.data",
                values=f"{call.path}: model.norm_group = {group}, {plan.title} has "
                f"{shards} replicas",
                remedy=f"model.norm_group={_nearest(sizes, group)}",
            )


def batch_group_axes(plan: Plan, replicas: int) -> tuple[str, ...]:
    """Name the innermost axes of the batch that so many replicas lie along.

    >>> from jaxdist.core.plan import MeshShape
    >>> batch_group_axes(Plan(mesh=MeshShape(data=4, fsdp=2)), 4)
    ('data[2]', 'fsdp')
    """
    found: list[str] = []
    for axis in reversed(nontrivial_axes(plan, BATCH_AXES)):
        here = min(replicas, size := plan.mesh.size(axis))
        if here > 1:
            found.insert(0, axis if here == size else sub_axis_name(axis, here))
        replicas //= here
    return tuple(found)


def _group_size_fits(plan: Plan, replicas: int) -> bool:
    inner = plan.mesh.fsdp
    whole = replicas % inner == 0 and plan.mesh.data % (replicas // inner) == 0
    return whole or inner % replicas == 0


def _norm_group_size(plan: Plan, norm: BatchNorm) -> int:
    everyone = norm.statistics == "global"
    return plan.mesh.batch_shards if everyone else norm.group


def _nearest(sizes: Sequence[int], wanted: int) -> int:
    return min(sizes, key=lambda size: abs(size - wanted))


def gradient_traffic(
    plan: Plan,
    leaves: Sequence[LeafSharding],
    reduce_axes: Sequence[tuple[str, ...]],
    updates: int = 1,
) -> Iterator[PlannedCollective]:
    """Yield the exact sums of gradients and loss, a row for arrays of a size.

    Scalars and vectors that are summed over the same axes travel as one array
    (`jaxdist.collectives.reduce.all_reduce_leaves`).

    Args:
        plan: the layout.
        leaves: all parameters.
        reduce_axes: axes over which the gradient of each is summed.
        updates: times that parameters move in a step; the loss is summed once.
    """
    width = max(4, *(np.dtype(leaf.dtype).itemsize for leaf in leaves))
    loss = plan.sum_axes, np.dtype(f"float{8 * width}")
    alone: Counter[tuple[tuple[str, ...], int]] = Counter()
    short: Counter[tuple[tuple[str, ...], np.dtype[Any]]] = Counter({loss: width})
    times = {loss: 1}
    for leaf, over in zip(leaves, reduce_axes, strict=True):
        size = math.prod(leaf.local_shape(plan)) * np.dtype(leaf.dtype).itemsize
        if len(leaf.shape) < 2:
            vectors = over, np.dtype(leaf.dtype)
            short[vectors] += updates * size
            times[vectors] = updates
        else:
            alone[over, size] += updates
    for (over, size), arrays in alone.items():
        yield from _all_reduce_row(over, arrays * size, arrays)
    for vectors, payload in short.items():
        yield from _all_reduce_row(vectors[0], payload, times[vectors])


def _all_reduce_row(
    axes: tuple[str, ...], payload: int, arrays: int
) -> Iterator[PlannedCollective]:
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
    """Yield what batch norms sum, forward and backward."""
    for call in calls_of_type(calls, BatchNorm):
        norm, width = (
            call.layer,
            call.shape[-1] * accumulation_dtype(call.dtype).itemsize,
        )
        width //= plan.mesh.tensor if roles.get(call.path) == "inner" else 1
        batch_axes = batch_group_axes(plan, _norm_group_size(plan, norm))
        parts = [((*batch_axes, *nontrivial_axes(plan, SPATIAL_AXES)), 4)]
        if norm.statistics == "replica":
            # One running average for all replicas, forward alone.
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
