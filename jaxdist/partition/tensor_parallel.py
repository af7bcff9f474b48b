"""Tensor parallelism: the roles that a plan gives to layers, and their traffic.

A strategy gives every layer a role (`jaxdist.partition.tensor_roles`); what moves
follows from the role alone. For an output y of one device, forward and backward:

    filter       all-gather of y         reduce-scatter of its gradient
    channel      all-reduce of y         all-reduce of its gradient
    row          all-reduce of y         all-reduce of its gradient
    vocabulary   all-reduce of y         all-reduce of its gradient
    logits       all-reduce of a row's largest and of two sums, of these two's gradients
    scatter      reduce-scatter of y     all-gather of its gradient
    lookup       reduce-scatter of y     all-gather of its gradient
    gather       all-gather of y         reduce-scatter of its gradient
    column, inner, own, whole layers     nothing
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np
from flax import nnx

from jaxdist.core.axes import spatial_axes
from jaxdist.core.dtypes import accumulation_dtype
from jaxdist.core.errors import BadInput
from jaxdist.core.plan import Plan
from jaxdist.layers import Gather
from jaxdist.layers.tensor_role import TENSOR_AXIS, Role, Roles, role_key
from jaxdist.partition import tensor_roles
from jaxdist.partition.tensor_roles import ShardableLayer
from jaxdist.partition.traffic import PlannedCollective
from jaxdist.profile.layer_calls import LayerCall

_TERM_NAMES: Final = MappingProxyType(
    {
        "filter": "filters",
        "channel": "channels",
        "row": "pairs",
        "vocabulary": "vocabulary",
        "logits": "vocabulary",
        "scatter": "pairs",
        "lookup": "vocabulary",
        "gather": "tokens",
    }
)
"""The name of a role's traffic in reports."""

TensorStrategy = Callable[[Sequence[ShardableLayer], nnx.Module, int], Roles]
"""`(layers, network, devices) -> roles`; raises `BadInput`."""

TENSOR_STRATEGIES: Final[Mapping[str, TensorStrategy]] = MappingProxyType(
    {
        "pairs": tensor_roles.megatron_roles,
        "filter": tensor_roles.column_parallel_roles,
        "channel": tensor_roles.row_parallel_roles,
        "sequence": tensor_roles.sequence_parallel_roles,
    }
)


def assign_roles(plan: Plan, calls: Sequence[LayerCall], network: nnx.Module) -> Roles:
    """Return what each layer does with the tensor axis of a plan.

    Raises:
        BadInput: a layer that the plan's strategy cannot split, or nothing to split.
    """
    # An idle axis repeats the whole work: no layer has a role then.
    devices = plan.mesh.tensor
    if devices == 1 or TENSOR_AXIS in plan.replicated_axes:
        return {}
    layers = tensor_roles.shardable_layers(calls)
    given = TENSOR_STRATEGIES[plan.tensor_strategy](layers, network, devices)
    if not given:
        raise BadInput(
            "nothing is split along tensor",
            rule="a mesh axis larger than one splits samples, images or weights",
            values=f"plan.mesh.tensor = {devices}, "
            f"plan.tensor_strategy = {plan.tensor_strategy}; "
            f"none of {len(layers)} layers of jaxdist.layers divides",
            remedy=f"plan.mesh.data={plan.mesh.data * devices} plan.mesh.tensor=1",
        )
    # A gather of images between the layers of a pair gathers a device's own features.
    inner: list[str] = []
    last: Role | None = None
    for call in calls:
        if isinstance(call.layer, Gather) and last in ("column", "inner"):
            inner.append(call.path)
        last = given.get(call.path, last)
    # Gathers are not layers with weights, so no strategy gives them roles.
    return {**given, **dict.fromkeys(inner, "inner")}


def tensor_traffic(
    plan: Plan, calls: Sequence[LayerCall], roles: Roles
) -> Iterator[PlannedCollective]:
    """Yield what layers gather and sum of their outputs, forward and backward."""
    for call in calls:
        role = roles.get(role_key(call.path, call.method))
        # The layer's whole output on one device, all channels.
        elements = (
            math.prod(call.padded_out_shape)
            // plan.mesh.batch_shards
            // plan.mesh.size(*spatial_axes(len(call.out_shape)))
        )
        # Values that are only copied travel in their dtype, sums in the wider one.
        width = np.dtype(call.dtype).itemsize
        wide = accumulation_dtype(call.dtype).itemsize
        part = elements // plan.mesh.tensor * wide
        moved: tuple[tuple[str, int, int], ...] = ()
        if role in ("filter", "gather"):
            moved = ("all-gather", elements * width, 1), ("reduce-scatter", part, 1)
        elif role in ("scatter", "lookup"):
            moved = ("all-gather", elements * wide, 1), ("reduce-scatter", part, 1)
        elif role in ("channel", "row", "vocabulary"):
            moved = (("all-reduce", 2 * elements * wide, 2),)
        elif role == "logits":
            # Five numbers a row of logits: see the table above.
            rows = elements // call.out_shape[-1]
            moved = (("all-reduce", 5 * rows * wide, 5),)
        for kind, payload, arrays in moved:
            yield PlannedCollective(
                what=_TERM_NAMES.get(role or "", ""),
                kind=kind,
                axes=(TENSOR_AXIS,),
                payload=payload,
                layer=call.path,
                arrays=arrays,
            )


def localize_channels(plan: Plan, roles: Roles, call: LayerCall) -> LayerCall:
    """Return a call with the channels that one device reads and makes."""
    role = roles.get(role_key(call.path, call.method))
    if role is None:
        return call
    groups, devices = getattr(call.layer, "feature_group_count", 1), plan.mesh.tensor
    # Channels of one device; rows and samples are the block's matter.
    reads, makes = call.shape[-1], call.out_shape[-1]
    # Grouped filters: a device with several whole groups reads their channels alone,
    # one with a part of a group reads that group.
    if role in ("filter", "column", "logits"):
        reads, makes = reads * max(groups // devices, 1) // groups, makes // devices
    elif role in ("channel", "row", "scatter"):
        reads //= devices
    elif role == "inner":
        reads, makes = reads // devices, makes // devices
    return replace(
        call,
        shape=(*call.shape[:-1], reads),
        out_shape=(*call.out_shape[:-1], makes),
        padded=(*call.padded_shape[:-1], reads),
        out_padded=(*call.padded_out_shape[:-1], makes),
    )
